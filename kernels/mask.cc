#include "kernels/mask.h"

#include <algorithm>

namespace flashbob {
namespace {

// Pairs of `query_len` x `key_len` with j - i <= diagonal: the sum over i of clamp(i + diagonal + 1, 0, key_len).
double PairsUpTo(double query_len, double key_len, double diagonal) {
  // Rows before `first` see nothing, rows from `full` on see every key; between them the count grows by one a row.
  const double first = std::clamp(-diagonal, 0.0, query_len);
  const double full = std::clamp(key_len - 1 - diagonal, first, query_len);
  const double ramp_rows = full - first;
  const double ramp_start = first + diagonal + 1;
  return ramp_rows * ramp_start + ramp_rows * (ramp_rows - 1) / 2 + (query_len - full) * key_len;
}

}  // namespace

double BandMask::VisiblePairs() const {
  const auto rows = static_cast<double>(query_len);
  const auto columns = static_cast<double>(key_len);
  const double all = rows * columns;
  const double right_edge = right < 0 ? all : PairsUpTo(rows, columns, static_cast<double>(shift + right));
  const double left_edge = left < 0 ? 0 : PairsUpTo(rows, columns, static_cast<double>(shift - left - 1));
  return right_edge - left_edge;
}

}  // namespace flashbob
