#include "tests/soak/tally.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "flashbob/errors.h"

namespace flashbob::soak {
namespace {

constexpr size_t kShown = 40;

}  // namespace

void Tally::Count(const std::string& action, const std::string& outcome) {
  MutexLock lock(mutex_);
  ++outcomes_[{action, outcome}];
}

void Tally::Fault(const std::string& action, const std::string& what) {
  MutexLock lock(mutex_);
  const int64_t times = ++faults_[action + ": " + what];
  if (times == 1 && faults_.size() <= kShown) {
    std::printf("FAULT: %s: %s\n", action.c_str(), what.c_str());
    std::fflush(stdout);
  }
}

void Tally::CountChecked(int64_t bytes) {
  MutexLock lock(mutex_);
  ++checked_;
  checked_bytes_ += bytes;
}

int64_t Tally::faults() const {
  MutexLock lock(mutex_);
  int64_t sum = 0;
  for (const auto& [what, count] : faults_) sum += count;
  return sum;
}

int64_t Tally::actions() const {
  MutexLock lock(mutex_);
  int64_t sum = 0;
  for (const auto& [what, count] : outcomes_) sum += count;
  return sum;
}

int64_t Tally::Of(const std::string& action) const {
  MutexLock lock(mutex_);
  int64_t sum = 0;
  for (const auto& [what, count] : outcomes_) sum += what.first == action ? count : 0;
  return sum;
}

std::string Tally::ToString() const {
  MutexLock lock(mutex_);
  std::string text;
  std::string action;
  for (const auto& [what, count] : outcomes_) {
    if (what.first != action) absl::StrAppend(&text, text.empty() ? "" : "\n", absl::StrFormat("  %-18s", what.first));
    action = what.first;
    absl::StrAppend(&text, " ", what.second, " ", count, ";");
  }
  absl::StrAppend(&text, "\n  ", checked_, " answers of ", checked_bytes_ >> 20, " MiB have the bits of in process\n");
  size_t shown = 0;
  for (const auto& [what, count] : faults_) {
    if (++shown > kShown) break;
    absl::StrAppend(&text, "  FAULT, ", count, " times: ", what, "\n");
  }
  return text;
}

std::string OutcomeOf(const absl::Status& status) {
  if (status.ok()) return "OK";
  const std::string reason = client::ReasonOf(status);
  return absl::StrCat(absl::StatusCodeToString(status.code()), reason.empty() ? "" : " ", reason);
}

}  // namespace flashbob::soak
