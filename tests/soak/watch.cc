#include "tests/soak/watch.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/integration/http_get.h"

namespace flashbob::soak {
namespace {

constexpr double kAllowedGrowth = 1.05;
// The mean over less than some minutes still follows the tensors that happen to be there.
constexpr double kAllowedInAShortTime = 1.15;
constexpr size_t kLong = 5 * 60 * 4;  // samples
constexpr size_t kWindows = 10;

// Metrics that are 0 where nothing is going on; a family's name stands for all its series.
constexpr const char* kZeroWhenIdle[] = {
    "flashbob_calls_in_flight",
    "flashbob_requests_in_state",
    "flashbob_queue_depth",
    "flashbob_store_tensors",
    "flashbob_store_bytes",
    "flashbob_host_memory_reserved_bytes",
    "flashbob_device_memory_reserved_bytes",
    "flashbob_tenant_requests_in_flight",
    "flashbob_tenant_held_bytes",
};

int64_t Entries(const std::string& directory) {
  int64_t count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end; ++entry) ++count;
  return count;
}

int64_t Resident(pid_t pid) {
  int64_t pages = 0;
  std::ifstream(absl::StrCat("/proc/", pid, "/statm")) >> pages >> pages;
  return pages * 4096;
}

double Mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

double Mean(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

int64_t Median(std::vector<int64_t> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

Watch::Watch(const integration::ServerProcess& server, int metrics_port)
    : server_(server),
      metrics_port_(metrics_port),
      files_(Entries(absl::StrCat("/proc/", server.pid(), "/fd"))),
      threads_(Entries(absl::StrCat("/proc/", server.pid(), "/task"))),
      idle_bytes_(Resident(server.pid())) {}

void Watch::Sample(bool warm) {
  if (warm) warm_bytes_.push_back(Resident(server_.pid()));
}

std::string Watch::BackAtTheStart(std::chrono::seconds patience) const {
  const auto until = std::chrono::steady_clock::now() + patience;
  std::string not_yet = NotAtTheStart();
  while (!not_yet.empty() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    not_yet = NotAtTheStart();
  }
  return not_yet;
}

std::string Watch::NotAtTheStart() const {
  const std::string page = integration::HttpGet(metrics_port_, "/metrics");
  if (page.empty()) return "/metrics does not answer";
  std::istringstream lines(page);
  std::string line;
  std::string wrong;
  while (std::getline(lines, line)) {
    const std::string family = line.substr(0, line.find_first_of("{ "));
    const bool idle = std::find(std::begin(kZeroWhenIdle), std::end(kZeroWhenIdle), family) != std::end(kZeroWhenIdle);
    if (idle && std::strtod(line.c_str() + line.rfind(' '), nullptr) != 0) absl::StrAppend(&wrong, line, "; ");
  }
  const int64_t files = Entries(absl::StrCat("/proc/", server_.pid(), "/fd"));
  if (files > files_) absl::StrAppend(&wrong, files, " open files, ", files_, " at the start; ");
  return wrong;
}

std::vector<int64_t> Watch::Windows() const {
  std::vector<int64_t> windows;
  const size_t each = warm_bytes_.size() / kWindows;
  if (each == 0) return windows;
  for (size_t i = 0; i < kWindows; ++i) {
    const auto begin = warm_bytes_.begin() + static_cast<std::ptrdiff_t>(i * each);
    windows.push_back(Median({begin, begin + static_cast<std::ptrdiff_t>(each)}));
  }
  return windows;
}

std::string Watch::Growth() const {
  const auto half = static_cast<std::ptrdiff_t>(warm_bytes_.size() / 2);
  if (half == 0) return "too short a time to say whether memory grows";
  const double before = Mean({warm_bytes_.begin(), warm_bytes_.begin() + half});
  const double after = Mean({warm_bytes_.begin() + half, warm_bytes_.end()});
  const double allowed = warm_bytes_.size() < kLong ? kAllowedInAShortTime : kAllowedGrowth;
  if (after <= allowed * before) return "";
  return absl::StrFormat("resident memory grew from %.1f to %.1f MiB after the warm-up", before / (1 << 20),
                         after / (1 << 20));
}

std::string Watch::ToString() const {
  std::string text = absl::StrFormat("  resident: %.1f MiB before the first call; median of each tenth of the time:",
                                     Mebibytes(idle_bytes_));
  for (int64_t window : Windows()) absl::StrAppend(&text, absl::StrFormat(" %.1f", Mebibytes(window)));
  const int64_t peak = warm_bytes_.empty() ? 0 : *std::max_element(warm_bytes_.begin(), warm_bytes_.end());
  absl::StrAppend(&text,
                  absl::StrFormat("; %.1f at most, %.1f now\n", Mebibytes(peak), Mebibytes(Resident(server_.pid()))));
  absl::StrAppend(&text, "  open files: ", files_, " at the start, ",
                  Entries(absl::StrCat("/proc/", server_.pid(), "/fd")), " now; threads: ", threads_, ", ",
                  Entries(absl::StrCat("/proc/", server_.pid(), "/task")), " now\n");
  return text;
}

}  // namespace flashbob::soak
