#include "kernels/cuda/parts.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace flashbob::cuda {

// CTAs start in order, each where one ended first.
double SecondsInParts(const DivisiblePass& pass, int32_t parts) {
  constexpr double kStartSeconds = 4e-6;         // until the first products of a CTA
  constexpr double kMeetSeconds = 4e-6;          // leaving sums and learning who is last
  constexpr double kStateBytesPerSecond = 1e11;  // one multiprocessor reading them
  const double meet = parts == 1 ? 0
                                 : kMeetSeconds + static_cast<double>(parts) * static_cast<double>(pass.state_bytes) /
                                                      kStateBytesPerSecond;
  if (pass.tiles.empty()) return 0;
  if (static_cast<int64_t>(pass.tiles.size()) * parts <= pass.wave) {  // all start at once
    const int64_t longest = *std::max_element(pass.tiles.begin(), pass.tiles.end());
    return kStartSeconds + static_cast<double>((longest + parts - 1) / parts) * pass.tile_seconds + meet;
  }
  std::priority_queue<double, std::vector<double>, std::greater<>> ends(
      std::greater<>(), std::vector<double>(static_cast<size_t>(std::max<int64_t>(pass.wave, 1)), 0.0));
  double last = 0;
  for (int64_t tiles : pass.tiles) {
    for (int32_t part = 0; part < parts; ++part) {
      const auto share = static_cast<double>(tiles * (part + 1) / parts - tiles * part / parts);
      const double end = ends.top() + kStartSeconds + share * pass.tile_seconds + meet;
      ends.pop();
      ends.push(end);
      last = std::max(last, end);
    }
  }
  return last;
}

int32_t ChooseParts(const DivisiblePass& pass, size_t most_state_bytes) {
  constexpr int32_t kMostParts = 16;
  constexpr double kWorthwhile = 0.97;
  const size_t items = pass.tiles.size();
  // Many waves leave a tail of at most one walk in as many.
  if (items == 0 || pass.state_bytes == 0 || static_cast<double>(items) > 8.0 * static_cast<double>(pass.wave))
    return 1;
  int32_t best = 1;
  double best_seconds = SecondsInParts(pass, 1);
  for (int32_t parts = 2; parts <= kMostParts; ++parts) {
    if (items * static_cast<size_t>(parts) * pass.state_bytes > most_state_bytes) break;
    const double seconds = SecondsInParts(pass, parts);
    if (seconds < kWorthwhile * best_seconds) {
      best = parts;
      best_seconds = seconds;
    }
  }
  return best;
}

}  // namespace flashbob::cuda
