#include "kernels/reference/formulas.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/convert.h"

namespace flashbob::reference {
namespace {

using enum TensorName;
using Column = Eigen::VectorXd;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows of queries that are materialised at a time: they are independent, and this bounds memory to rows x keys.
constexpr int64_t kRowsAtATime = 256;

// math.md, "The mask", as it stands there: i + s - left <= j <= i + s + right.
bool Visible(const HeadOptions& options, int64_t i, int64_t j) {
  const int64_t offset = j - i - options.shift;
  return (options.window_left < 0 || offset >= -options.window_left) &&
         (options.window_right < 0 || offset <= options.window_right);
}

// The signed arithmetic of the formulas, or that of their absolute values, where a difference is a sum.
struct Arithmetic {
  bool absolute = false;
  std::optional<DType> rounding;

  double sign() const { return absolute ? 1 : -1; }
  Matrix Minus(const Matrix& a, const Matrix& b) const { return a + sign() * b; }
  Matrix Minus(const Matrix& a, const Column& b) const { return a.colwise() + sign() * b; }
  Matrix Of(const Matrix& a) const { return absolute ? Matrix(a.cwiseAbs()) : a; }
  Matrix Rounded(const Matrix& a) const {
    if (!rounding.has_value()) return a;
    return a.unaryExpr([dtype = *rounding](double x) { return RoundTo(dtype, x); });
  }
};

// What the formulas of one block of rows are made of. With `t` stand the cotangents u of double backward too.
struct Factors {
  double tau = 1;
  Matrix p;
  Matrix q, k, v, o, d_o;
  Matrix tq, tk, tv, td_o;
};

Matrix Dot(const Matrix& a, const Matrix& b) { return a.cwiseProduct(b); }
Column RowSum(const Matrix& a) { return a.rowwise().sum(); }
Matrix ScaleRows(const Column& factors, const Matrix& a) { return factors.asDiagonal() * a; }

// "Order 1".
Tensors Backward(const Factors& f, const Matrix& d_o, const Arithmetic& a) {
  const Column d = RowSum(Dot(d_o, f.o));
  const Matrix dp = d_o * f.v.transpose();
  const Matrix ds = a.Rounded(Dot(f.p, a.Minus(dp, d)));
  return {{kDq, f.tau * ds * f.k}, {kDk, f.tau * ds.transpose() * f.q}, {kDv, a.Rounded(f.p).transpose() * d_o}};
}

Matrix ScoreTangent(const Factors& f) { return f.tau * (f.tq * f.k.transpose() + f.q * f.tk.transpose()); }

// "Forward mode".
Tensors Jvp(const Factors& f, const Arithmetic& a) {
  const Matrix g = ScoreTangent(f);
  const Column c = RowSum(Dot(f.p, g));
  const Matrix to = a.Minus(a.Rounded(Dot(f.p, g)) * f.v + a.Rounded(f.p) * f.tv, ScaleRows(c, f.o));
  return {{kTo, to}, {kTlse, c}};
}

// "Order 2".
Tensors DoubleBackward(const Factors& f, const Arithmetic& a) {
  const Tensors jvp = Jvp(f, a);
  const Matrix& gdo = jvp.at(kTo);
  const Column c = jvp.at(kTlse);
  const Matrix g = ScoreTangent(f);
  const Column r = RowSum(Dot(f.d_o, gdo));

  const Matrix dp = f.d_o * f.v.transpose();
  const Matrix h = f.d_o * f.tv.transpose();
  const Column d = RowSum(Dot(f.d_o, f.o));
  const Matrix x = a.Rounded(Dot(f.p, a.Minus(g, c)));
  const Matrix y = a.Rounded(Dot(f.p, a.Minus(Dot(a.Minus(g, c), a.Minus(dp, d)) + h, r)));
  const Matrix z = a.Rounded(Dot(f.p, a.Minus(dp, d)));
  return {{kGdo, gdo},
          {kGv, x.transpose() * f.d_o},
          {kGk, f.tau * (y.transpose() * f.q + z.transpose() * f.tq)},
          {kGq, f.tau * (y * f.k + z * f.tk)}};
}

Tensors Evaluate(const Factors& f, const HeadOptions& options, bool has_do, const Arithmetic& a) {
  switch (options.operation) {
    case Operation::kForward:
      return {{kO, f.o}};
    case Operation::kBackward:
      return Backward(f, f.d_o, a);
    case Operation::kDoubleBackward:
      return DoubleBackward(f, a);
    case Operation::kJvp: {
      Tensors results = Jvp(f, a);
      if (has_do) {  // "The other compositions": forward over reverse
        const Tensors bob = DoubleBackward(f, a);
        const Tensors backward = Backward(f, f.td_o, a);
        results[kTdq] = bob.at(kGq) + backward.at(kDq);
        results[kTdk] = bob.at(kGk) + backward.at(kDk);
        results[kTdv] = bob.at(kGv) + backward.at(kDv);
      }
      return results;
    }
  }
  return {};
}

// logsumexp of each row; -inf where all of it is -inf.
Column LogSumExp(const Matrix& scores) {
  Column lse(scores.rows());
  for (int64_t i = 0; i < scores.rows(); ++i) {
    double largest = -kInfinity;
    bool has_nan = false;
    for (int64_t j = 0; j < scores.cols(); ++j) {
      largest = std::max(largest, scores(i, j));
      has_nan = has_nan || std::isnan(scores(i, j));
    }
    double sum = 0;
    for (int64_t j = 0; j < scores.cols(); ++j) sum += std::exp(scores(i, j) - largest);
    lse[i] = largest == -kInfinity && !has_nan ? -kInfinity : largest + std::log(sum);
  }
  return lse;
}

// One head's tensors, of which a block of rows at a time is looked at.
class Head {
 public:
  Head(const HeadOptions& options, const Tensors& inputs) : options_(options), inputs_(inputs) {}

  HeadResult EvaluateRows(int64_t begin, int64_t rows) const {
    HeadResult result;
    const Matrix q = inputs_.at(kQ).middleRows(begin, rows);
    const Matrix& k = inputs_.at(kK);
    Matrix scores = options_.scale * q * k.transpose();
    // L of the absolute values of the terms: the scale of an error in L.
    Matrix abs_scores = std::abs(options_.scale) * q.cwiseAbs() * k.cwiseAbs().transpose();
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < k.rows(); ++j) {
        if (Visible(options_, begin + i, j)) {
          result.max_abs_score = std::max(result.max_abs_score, std::abs(scores(i, j)));
        } else {
          scores(i, j) = -kInfinity;
          abs_scores(i, j) = -kInfinity;
        }
      }
    }
    const Column lse = Given(kLse) ? Column(inputs_.at(kLse).middleRows(begin, rows)) : LogSumExp(scores);
    Matrix p(rows, k.rows());
    for (int64_t i = 0; i < rows; ++i) {
      // Where L is -inf the row sees no key, and P is 0 rather than exp(-inf + inf).
      const double l = lse[i] == -kInfinity ? kInfinity : lse[i];
      // Not Eigen's exp, which takes -inf to a small number.
      for (int64_t j = 0; j < k.rows(); ++j) p(i, j) = std::exp(scores(i, j) - l);
    }

    const Arithmetic signed_terms = {false, options_.rounding};
    const Arithmetic absolute_terms = {true, std::nullopt};
    result.value = Evaluate(FactorsOf(p, begin, rows, signed_terms), options_, Given(kDo), signed_terms);
    result.abs = Evaluate(FactorsOf(p, begin, rows, absolute_terms), options_, Given(kDo), absolute_terms);
    if (options_.operation == Operation::kForward) {
      result.value[kLse] = lse;
      result.abs[kLse] = LogSumExp(abs_scores);
    }
    return result;
  }

 private:
  bool Given(TensorName name) const { return inputs_.contains(name); }

  Factors FactorsOf(const Matrix& p, int64_t begin, int64_t rows, const Arithmetic& a) const {
    const bool bob = options_.operation == Operation::kDoubleBackward;
    const int64_t head_dim = inputs_.at(kQ).cols();
    const int64_t value_dim = inputs_.at(kV).cols();
    const int64_t keys = inputs_.at(kK).rows();
    const auto query_side = [&](TensorName name, int64_t width) -> Matrix {
      return Given(name) ? a.Of(inputs_.at(name).middleRows(begin, rows)) : Matrix::Zero(rows, width);
    };
    const auto key_side = [&](TensorName name, int64_t width) -> Matrix {
      return Given(name) ? a.Of(inputs_.at(name)) : Matrix::Zero(keys, width);
    };
    Factors f;
    f.tau = a.absolute ? std::abs(options_.scale) : options_.scale;
    f.p = p;
    f.q = query_side(kQ, head_dim);
    f.k = key_side(kK, head_dim);
    f.v = key_side(kV, value_dim);
    f.o = Given(kO) ? query_side(kO, value_dim) : Matrix(a.Rounded(p) * f.v);
    f.d_o = query_side(kDo, value_dim);
    f.tq = query_side(bob ? kUq : kTq, head_dim);
    f.tk = key_side(bob ? kUk : kTk, head_dim);
    f.tv = key_side(bob ? kUv : kTv, value_dim);
    f.td_o = query_side(kTdo, value_dim);
    return f;
  }

  const HeadOptions& options_;
  const Tensors& inputs_;
};

// The rows of a block into their place, or the block's share of a sum over queries.
void Gather(const Tensors& block, int64_t begin, int64_t queries, Tensors& all) {
  for (const auto& [name, rows] : block) {
    const int64_t all_rows = IsQuerySide(name) ? queries : rows.rows();
    const auto [place, inserted] = all.try_emplace(name, Matrix::Zero(all_rows, rows.cols()));
    place->second.middleRows(IsQuerySide(name) ? begin : 0, rows.rows()) += rows;
  }
}

}  // namespace

HeadResult EvaluateHead(const HeadOptions& options, const Tensors& inputs) {
  const Head head(options, inputs);
  const int64_t queries = inputs.at(kQ).rows();
  HeadResult result;
  int64_t begin = 0;
  do {  // also where there is no query: sums over queries are then zeros
    const int64_t rows = std::min(kRowsAtATime, queries - begin);
    const HeadResult block = head.EvaluateRows(begin, rows);
    Gather(block.value, begin, queries, result.value);
    Gather(block.abs, begin, queries, result.abs);
    result.max_abs_score = std::max(result.max_abs_score, block.max_abs_score);
    begin += rows;
  } while (begin < queries);
  return result;
}

}  // namespace flashbob::reference
