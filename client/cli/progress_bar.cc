#include "client/cli/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include "absl/strings/str_format.h"

namespace flashbob::cli {
namespace {

constexpr int kWidth = 40;
constexpr std::chrono::seconds kPatience{1};
constexpr std::chrono::milliseconds kInterval{100};
constexpr char kClearLine[] = "\r\x1b[K";

}  // namespace

ProgressBar::ProgressBar(std::ostream& out, bool enabled, Now now)
    : out_(out), enabled_(enabled), now_(std::move(now)), next_draw_(now_() + kPatience) {}

ProgressBar ProgressBar::OnTerminal() {
  return {std::cerr, isatty(STDERR_FILENO) != 0, [] { return std::chrono::steady_clock::now(); }};
}

ProgressBar::~ProgressBar() {
  if (drawn_) out_ << kClearLine << std::flush;
}

void ProgressBar::Update(double fraction, const std::string& what) {
  if (!enabled_) return;
  const auto now = now_();
  if (now < next_draw_) return;
  next_draw_ = now + kInterval;
  drawn_ = true;
  // Written so that NaN, as of 0 of 0, becomes 0.
  const double cut = fraction > 0 ? std::min(fraction, 1.0) : 0;
  const auto filled = static_cast<size_t>(cut * kWidth);
  out_ << kClearLine
       << absl::StrFormat("[%s%s] %3.0f %% %s", std::string(filled, '#'), std::string(kWidth - filled, ' '), 100 * cut,
                          what)
       << std::flush;
}

}  // namespace flashbob::cli
