#include "server/http/status_page.h"

#include <gtest/gtest.h>

namespace flashbob::server {
namespace {

constexpr char kAttack[] = "</b><script>alert(\"1\")</script><img src=x onerror='alert(2)'>&";

StatusSnapshot Everything(const std::string& text) {
  StatusSnapshot status;
  status.server_name = text;
  status.version = text;
  status.not_ready = text;
  status.devices = {{text, text, false, {100, 50, 70, 40}}, {text, text, true, {}}};
  status.host_memory.limit_bytes = int64_t{3} << 30;
  status.host_memory.reserved_bytes = 1536;
  status.requests = {1, 2, 3, 4, 5, 0};
  Tenant::Settings settings;
  settings.name = text;
  status.tenants = {{settings, {}}};
  CallView call;
  for (std::string* field : {&call.method, &call.peer, &call.request_id, &call.tenant, &call.operation, &call.problem,
                             &call.state, &call.waits_for}) {
    *field = text;
  }
  status.calls = {call};
  status.calls_in_flight = 3;
  status.ended = {{call, {}, text, text}};
  return status;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(StatusPageTest, NoTextCanBecomeMarkup) {
  const std::string page = RenderStatusPage(Everything(kAttack));
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(page.find(kAttack), std::string::npos);
  EXPECT_GE(Count(page, EscapeHtml(kAttack)), 16u) << "every field is shown\n" << page;
  // All markup is the page's own.
  const std::string plain = RenderStatusPage(Everything("text"));
  EXPECT_EQ(Count(page, "<"), Count(plain, "<"));
  EXPECT_EQ(Count(page, "\""), Count(plain, "\""));
}

TEST(StatusPageTest, EscapesWhatHtmlAndTerminalsReadAsMore) {
  EXPECT_EQ(EscapeHtml("a<b>&\"'c"), "a&lt;b&gt;&amp;&quot;&#39;c");
  EXPECT_EQ(EscapeHtml(std::string_view("\0\x1b[31m\n\x7f", 8)), "??[31m??");
}

TEST(StatusPageTest, SaysWhatWaitsForWhat) {
  StatusSnapshot status = Everything("text");
  status.calls[0].state = "ready";
  status.calls[0].waits_for = "its turn on a device";
  const std::string page = RenderStatusPage(status);
  for (const char* part : {"<b>ready</b> for", "waits for its turn on a device", "and 2 more", "1.5 KiB", "3 GiB",
                           "no bound", "6 of at most", "name=\"viewport\""}) {
    EXPECT_NE(page.find(part), std::string::npos) << part << " in\n" << page;
  }
  status.not_ready.clear();
  EXPECT_NE(RenderStatusPage(status).find("<span class=\"ready\">ready</span>"), std::string::npos);
}

}  // namespace
}  // namespace flashbob::server
