#include "kernels/cpu/tile_product.h"

#include <Eigen/Core>
#include <new>

#include "absl/strings/str_cat.h"
#include "dnnl.h"

// Of the OpenMP runtime that oneDNN is linked with (libgomp). Declared here since clang finds no <omp.h> without a
// runtime of its own, which must not be mixed in.
extern "C" {
void omp_set_num_threads(int threads);
int omp_get_max_threads(void);
}

namespace flashbob::cpu {

SerialScope::SerialScope() : threads_before_(omp_get_max_threads()) { omp_set_num_threads(1); }
SerialScope::~SerialScope() { omp_set_num_threads(threads_before_); }

void TileProducts::Multiply(int64_t rows, int64_t columns, int64_t depth, float alpha, Factor<float> a, Factor<float> b,
                            Into into, Matrix<float> c) {
  const dnnl_status_t result = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', rows, columns, depth,
                                          alpha, a.matrix.data, a.matrix.stride, b.matrix.data, b.matrix.stride,
                                          into == Into::kAccumulate ? 1.0f : 0.0f, c.data, c.stride);
  if (result != dnnl_success && status_.ok()) {
    const absl::StatusCode code =
        result == dnnl_out_of_memory ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal;
    status_ = absl::Status(code, absl::StrCat("oneDNN answered ", static_cast<int>(result), " to a product of ", rows,
                                              " x ", depth, " and ", depth, " x ", columns));
  }
}

void TileProducts::Multiply(int64_t rows, int64_t columns, int64_t depth, double alpha, Factor<double> a,
                            Factor<double> b, Into into, Matrix<double> c) {
  using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using ColumnMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
  using Stride = Eigen::OuterStride<>;
  using Rows = Eigen::Map<const RowMajor, Eigen::Unaligned, Stride>;
  using Columns = Eigen::Map<const ColumnMajor, Eigen::Unaligned, Stride>;
  Eigen::Map<RowMajor, Eigen::Unaligned, Stride> result(c.data, rows, columns, Stride(c.stride));
  const auto multiply = [&](const auto& left, const auto& right) {
    if (into == Into::kOverwrite) {
      result.noalias() = alpha * left * right;
    } else {
      result.noalias() += alpha * left * right;
    }
  };
  // A transposed row-major matrix is a column-major one.
  const auto with_left = [&](const auto& left) {
    if (b.transposed) {
      multiply(left, Columns(b.matrix.data, depth, columns, Stride(b.matrix.stride)));
    } else {
      multiply(left, Rows(b.matrix.data, depth, columns, Stride(b.matrix.stride)));
    }
  };
  try {
    if (a.transposed) {
      with_left(Columns(a.matrix.data, rows, depth, Stride(a.matrix.stride)));
    } else {
      with_left(Rows(a.matrix.data, rows, depth, Stride(a.matrix.stride)));
    }
  } catch (const std::bad_alloc&) {
    if (status_.ok()) {
      status_ = absl::ResourceExhaustedError(absl::StrCat("no memory for Eigen's copies of a product of ", rows, " x ",
                                                          depth, " and ", depth, " x ", columns));
    }
  }
}

}  // namespace flashbob::cpu
