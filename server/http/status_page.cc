#include "server/http/status_page.h"

#include <algorithm>
#include <ctime>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace flashbob::server {
namespace {

constexpr char kHead[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>FlashBoB status</title>
<style>
body { font: 16px/1.4 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 0.8rem; }
h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1.05rem; margin: 1.4rem 0 0.4rem; }
.ready { color: #08730e; } .not-ready { color: #c00; } .quiet { opacity: 0.7; }
table { border-collapse: collapse; font-size: 0.9rem; width: 100%; }
th, td { text-align: left; padding: 0.2rem 0.6rem 0.2rem 0; vertical-align: top; border-bottom: 1px solid #8884; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
.wide { overflow-x: auto; }
.call { border-left: 3px solid #88a; padding: 0.1rem 0 0.1rem 0.6rem; margin: 0.6rem 0; overflow-wrap: anywhere; }
.failed { border-color: #c00; }
meter { width: 3.5rem; }
@media (prefers-color-scheme: dark) { .ready { color: #6d6; } .not-ready { color: #f77; } }
</style></head><body>
)";

std::string Bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double number = static_cast<double>(bytes);
  size_t unit = 0;
  while (number >= 1024 && unit + 1 < std::size(kUnits)) {
    number /= 1024;
    ++unit;
  }
  const bool whole = number == static_cast<double>(static_cast<int64_t>(number));
  return whole ? absl::StrFormat("%.0f %s", number, kUnits[unit]) : absl::StrFormat("%.1f %s", number, kUnits[unit]);
}

std::string Seconds(Duration duration) {
  const double seconds = ToSeconds(duration);
  if (seconds < 1) return absl::StrFormat("%.1f ms", 1e3 * seconds);
  if (seconds < 120) return absl::StrFormat("%.1f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f min", seconds / 60);
  return absl::StrFormat("%.1f h", seconds / 3600);
}

std::string Time(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts = {};
  gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

std::string Limit(int64_t limit, const std::string& text) { return limit == 0 ? "no bound" : text; }

// A row of a table; numbers stand on the right.
class Row {
 public:
  Row& Text(std::string_view text) { return Cell("", EscapeHtml(text)); }
  Row& Number(std::string_view text) { return Cell(" class=\"number\"", EscapeHtml(text)); }
  Row& Number(int64_t number) { return Number(absl::StrCat(number)); }
  Row& Meter(int64_t value, int64_t limit) {
    return Cell(
        "", absl::StrCat("<meter min=\"0\" max=\"", std::max<int64_t>(limit, 1), "\" value=\"", value, "\"></meter>"));
  }
  std::string Done() const { return absl::StrCat("<tr>", cells_, "</tr>\n"); }

 private:
  Row& Cell(const char* attributes, const std::string& html) {
    absl::StrAppend(&cells_, "<td", attributes, ">", html, "</td>");
    return *this;
  }
  std::string cells_;
};

std::string Table(std::initializer_list<const char*> heads, const std::string& rows) {
  std::string html = "<div class=\"wide\"><table><tr>";
  for (const char* head : heads) {
    const bool number = *head == '#';  // marks a column of numbers
    absl::StrAppend(&html, number ? "<th class=\"number\">" : "<th>", head + (number ? 1 : 0), "</th>");
  }
  return absl::StrCat(html, "</tr>\n", rows, "</table></div>\n");
}

std::string Devices(const StatusSnapshot& status) {
  std::string rows;
  for (const auto& device : status.devices) {
    Row row;
    row.Text(device.name).Text(device.model);
    if (device.unified_memory) {
      row.Text("in host memory").Text("").Text("");
    } else {
      row.Number(absl::StrCat(Bytes(device.memory.reserved_bytes), " of ", Bytes(device.memory.limit_bytes)))
          .Meter(device.memory.reserved_bytes, device.memory.limit_bytes)
          .Number(Bytes(device.memory.largest_free_bytes));
    }
    rows += row.Done();
  }
  return Table({"Device", "Model", "#Memory held", "", "#Largest free"}, rows);
}

std::string Pools(const StatusSnapshot& status) {
  const PoolUse& host = status.host_memory;
  std::string rows = Row()
                         .Text("Host memory")
                         .Number(Bytes(host.reserved_bytes))
                         .Number(Bytes(host.limit_bytes))
                         .Meter(host.reserved_bytes, host.limit_bytes)
                         .Number(Bytes(host.largest_free_bytes))
                         .Done();
  rows += Row()
              .Text("Stored tensors")
              .Number(Bytes(status.store.bytes))
              .Number(Bytes(status.store.max_bytes))
              .Meter(status.store.bytes, status.store.max_bytes)
              .Number(Bytes(status.store.max_bytes - status.store.bytes))
              .Done();
  return absl::StrCat(Table({"Pool", "#Held", "#Limit", "", "#Free"}, rows), "<p>At most ",
                      Bytes(host.high_water_bytes), " of host memory were held so far; ", host.waiting,
                      " reservations wait for some. ", status.store.tensors, " tensors are stored.</p>\n");
}

std::string Queues(const StatusSnapshot& status) {
  constexpr const char* kWaitFor[kNumRequestStates] = {
      "host memory", "their inputs", "their turn on a device", "the device", "their client to take outputs", nullptr};
  std::string rows;
  for (int state = 0; state < kNumRequestStates; ++state) {
    if (kWaitFor[state] == nullptr) continue;
    const auto index = static_cast<size_t>(state);
    rows +=
        Row().Text(Name(static_cast<RequestState>(state))).Number(status.requests[index]).Text(kWaitFor[state]).Done();
  }
  const int64_t waiting = status.requests[0] + status.requests[1] + status.requests[2];
  return absl::StrCat(Table({"Requests", "#Now", "wait for"}, rows), "<p>", waiting, " of at most ", status.queue_limit,
                      " wait before they compute; a new one would wait for about ", Seconds(status.estimated_wait),
                      ".</p>\n");
}

std::string Tenants(const StatusSnapshot& status) {
  std::string rows;
  for (const auto& [settings, use] : status.tenants) {
    rows += Row()
                .Text(settings.name)
                .Number(use.in_flight)
                .Number(Limit(settings.max_in_flight, absl::StrCat(settings.max_in_flight)))
                .Number(Bytes(use.bytes))
                .Number(Limit(settings.max_bytes, Bytes(settings.max_bytes)))
                .Number(absl::StrFormat("%g", settings.weight))
                .Done();
  }
  return Table({"Tenant", "#In flight", "#at most", "#Held", "#at most", "#Weight"}, rows);
}

// "double_backward of BHND ... for alpha"
std::string What(const CallView& call) {
  std::string text = call.operation.empty() ? call.method : call.operation;
  if (!call.problem.empty()) absl::StrAppend(&text, " of ", call.problem);
  if (!call.tenant.empty()) absl::StrAppend(&text, " for ", call.tenant);
  return EscapeHtml(text);
}

std::string InFlight(const StatusSnapshot& status) {
  if (status.calls.empty()) return "<p class=\"quiet\">None.</p>\n";
  std::string html;
  for (const CallView& call : status.calls) {
    absl::StrAppend(&html, "<div class=\"call\"><b>", EscapeHtml(call.state), "</b> for ", Seconds(call.age), ": ",
                    What(call), "<br>waits for ", EscapeHtml(call.waits_for), "<br><span class=\"quiet\">",
                    EscapeHtml(call.request_id), " from ", EscapeHtml(call.peer), "</span></div>\n");
  }
  const auto more = status.calls_in_flight - static_cast<int64_t>(status.calls.size());
  if (more > 0) absl::StrAppend(&html, "<p>and ", more, " more.</p>\n");
  return html;
}

std::string Ended(const StatusSnapshot& status) {
  if (status.ended.empty()) return "<p class=\"quiet\">None yet.</p>\n";
  std::string html;
  for (const EndedCall& ended : status.ended) {
    const bool ok = ended.error.empty();
    absl::StrAppend(&html, "<div class=\"call", ok ? "" : " failed", "\"><b>", EscapeHtml(ended.code), "</b> after ",
                    Seconds(ended.call.age), ": ", What(ended.call), ok ? "" : "<br>", EscapeHtml(ended.error),
                    "<br><span class=\"quiet\">", Time(ended.ended), ", ", EscapeHtml(ended.call.request_id), " from ",
                    EscapeHtml(ended.call.peer), "</span></div>\n");
  }
  return html;
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        // No control characters, and no bytes that are perhaps no UTF-8.
        html += c < ' ' || c == 127 ? '?' : c;
    }
  }
  return html;
}

std::string RenderStatusPage(const StatusSnapshot& status) {
  const bool ready = status.not_ready.empty();
  return absl::StrCat(kHead, "<h1>FlashBoB ", EscapeHtml(status.server_name), " <span class=\"",
                      ready ? "ready\">ready" : "not-ready\">", ready ? "" : EscapeHtml(status.not_ready),
                      "</span></h1>\n<p class=\"quiet\">version ", EscapeHtml(status.version), ", up for ",
                      Seconds(status.uptime), ", as of ", Time(status.now), "</p>\n<h2>Devices</h2>\n", Devices(status),
                      "<h2>Memory</h2>\n", Pools(status), "<h2>Queue</h2>\n", Queues(status), "<h2>Tenants</h2>\n",
                      Tenants(status), "<h2>Calls in flight (", status.calls_in_flight, ")</h2>\n", InFlight(status),
                      "<h2>Calls that ended</h2>\n", Ended(status), "</body></html>\n");
}

}  // namespace flashbob::server
