// Products of dense tiles: fp32 through oneDNN, fp64 through Eigen (README.md says why).
#ifndef FLASHBOB_KERNELS_CPU_TILE_PRODUCT_H_
#define FLASHBOB_KERNELS_CPU_TILE_PRODUCT_H_

#include <cstdint>

#include "absl/status/status.h"

namespace flashbob::cpu {

// Rows of a row-major matrix: element (i, j) is data[i * stride + j].
template <typename Real>
struct Matrix {
  Real* data = nullptr;
  int64_t stride = 0;
};

// A matrix as a factor: as it lies, or transposed.
template <typename Real>
struct Factor {
  Matrix<const Real> matrix;
  bool transposed = false;
};

template <typename Real>
Factor<Real> AsIs(Matrix<const Real> matrix) {
  return {matrix, false};
}
template <typename Real>
Factor<Real> Transposed(Matrix<const Real> matrix) {
  return {matrix, true};
}

enum class Into : bool { kOverwrite, kAccumulate };

// Computes tile products and keeps the first failure, so that a chain of products is checked once, at its end. For one
// thread; it computes on that thread alone, provided that a SerialScope is alive on it.
class TileProducts {
 public:
  // c (rows x columns) := or += alpha * a * b, where a is rows x depth and b depth x columns once transposed as said.
  // Every extent is at least 1. With kOverwrite, c is not read.
  void Multiply(int64_t rows, int64_t columns, int64_t depth, float alpha, Factor<float> a, Factor<float> b, Into into,
                Matrix<float> c);
  void Multiply(int64_t rows, int64_t columns, int64_t depth, double alpha, Factor<double> a, Factor<double> b,
                Into into, Matrix<double> c);

  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

// While alive, OpenMP (in which oneDNN runs) uses no threads but the one that made it.
class SerialScope {
 public:
  SerialScope();
  ~SerialScope();
  SerialScope(const SerialScope&) = delete;
  SerialScope& operator=(const SerialScope&) = delete;

 private:
  int threads_before_;
};

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_TILE_PRODUCT_H_
