// ProgressBar: a line that shows how far something has come.
//
// On a terminal only, and only for what takes over a second; gone without a trace when the bar is. One thread at a
// time.
#ifndef FLASHBOB_CLIENT_CLI_PROGRESS_BAR_H_
#define FLASHBOB_CLIENT_CLI_PROGRESS_BAR_H_

#include <chrono>
#include <functional>
#include <iosfwd>
#include <string>

namespace flashbob::cli {

class ProgressBar {
 public:
  using Now = std::function<std::chrono::steady_clock::time_point()>;

  // Draws on `out`, where `enabled`.
  ProgressBar(std::ostream& out, bool enabled, Now now);
  // On standard error, where that is a terminal.
  static ProgressBar OnTerminal();
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `fraction` is within 0 to 1; what is not is cut to it.
  void Update(double fraction, const std::string& what);

 private:
  std::ostream& out_;
  const bool enabled_;
  const Now now_;
  std::chrono::steady_clock::time_point next_draw_;
  bool drawn_ = false;
};

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_PROGRESS_BAR_H_
