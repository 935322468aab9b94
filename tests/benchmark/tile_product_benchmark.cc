// The rate of one library's fp32 products of attention's tile shapes, on every core at once: what a tiled engine could
// reach if all else were free. Prints one JSON object. Built for x86-64-v3 and v4, since Eigen takes what it is
// compiled for; OpenBLAS takes its core type from OPENBLAS_CORETYPE (compare_cpu.py sets it).
#include <cblas.h>
#include <dnnl.h>

#include <CLI/CLI.hpp>
#include <Eigen/Core>
#include <algorithm>
#include <barrier>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/benchmark/clocks.h"

extern "C" {
void omp_set_num_threads(int threads);
char* openblas_get_corename(void);
void openblas_set_num_threads(int threads);
}

namespace flashbob {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// c (rows x columns) = or += a b, one factor of which may lie transposed.
struct Product {
  const char* name;
  int rows;
  int columns;
  int depth;
  bool a_transposed;
  bool b_transposed;
  bool accumulate;
};

std::vector<Product> Products(int queries, int keys, int width) {
  return {{"Q K^T", queries, keys, width, false, true, false},
          {"Y^T Q", keys, width, queries, true, false, true},
          {"Y K", queries, width, keys, false, false, true}};
}

// One product on matrices of its own.
class Job {
 public:
  explicit Job(const Product& product)
      : product_(product),
        a_(product.a_transposed ? RowMajor::Random(product.depth, product.rows)
                                : RowMajor::Random(product.rows, product.depth)),
        b_(product.b_transposed ? RowMajor::Random(product.columns, product.depth)
                                : RowMajor::Random(product.depth, product.columns)),
        c_(RowMajor::Zero(product.rows, product.columns)) {}

  void RunOneDnn() {
    dnnl_sgemm(product_.a_transposed ? 'T' : 'N', product_.b_transposed ? 'T' : 'N', product_.rows, product_.columns,
               product_.depth, 1.0f, a_.data(), a_.cols(), b_.data(), b_.cols(), product_.accumulate ? 1.0f : 0.0f,
               c_.data(), c_.cols());
  }

  void RunOpenBlas() {
    cblas_sgemm(CblasRowMajor, product_.a_transposed ? CblasTrans : CblasNoTrans,
                product_.b_transposed ? CblasTrans : CblasNoTrans, product_.rows, product_.columns, product_.depth,
                1.0f, a_.data(), static_cast<int>(a_.cols()), b_.data(), static_cast<int>(b_.cols()),
                product_.accumulate ? 1.0f : 0.0f, c_.data(), static_cast<int>(c_.cols()));
  }

  void RunEigen() {
    if (product_.b_transposed) {
      c_.noalias() = a_ * b_.transpose();
    } else if (product_.a_transposed) {
      c_.noalias() += a_.transpose() * b_;
    } else {
      c_.noalias() += a_ * b_;
    }
  }

 private:
  Product product_;
  RowMajor a_;
  RowMajor b_;
  RowMajor c_;
};

// FLOP/s of all threads together, the best of several rounds: by the wall, and by CPU time (what they would reach if
// nothing else ran).
struct Rates {
  double wall = 0;
  double cpu = 0;
};

Rates Measure(const Product& product, int threads, double seconds, void (Job::*run)()) {
  constexpr int kRounds = 5;
  const double flops = 2.0 * product.rows * product.columns * product.depth;
  std::vector<Rates> rates(static_cast<size_t>(threads));
  std::barrier start(threads);
  Rates best;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> workers;
    for (int thread = 0; thread < threads; ++thread) {
      workers.emplace_back([&, thread] {
        omp_set_num_threads(1);
        Job job(product);
        (job.*run)();
        start.arrive_and_wait();
        const Times begin = ThreadNow();
        double done = 0;
        Times elapsed;
        do {
          for (int i = 0; i < 8; ++i) (job.*run)();
          done += 8 * flops;
          elapsed = ThreadNow() - begin;
        } while (elapsed.wall < seconds / kRounds);
        rates[static_cast<size_t>(thread)] = {done / elapsed.wall, done / elapsed.cpu};
      });
    }
    for (std::thread& worker : workers) worker.join();
    Rates sum;
    for (const Rates& rate : rates) sum = {sum.wall + rate.wall, sum.cpu + rate.cpu};
    best = {std::max(best.wall, sum.wall), std::max(best.cpu, sum.cpu)};
  }
  return best;
}

}  // namespace
}  // namespace flashbob

int main(int argc, char** argv) {
  using namespace flashbob;
  CLI::App app("Rates of fp32 tile products");
  std::string library = "onednn";
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  double seconds = 0.1;
  int width = 64;
  app.add_option("--library", library, "onednn, openblas or eigen")
      ->check(CLI::IsMember({"onednn", "openblas", "eigen"}));
  app.add_option("--threads", threads, "Threads, each with its own tiles");
  app.add_option("--seconds", seconds, "For each shape");
  app.add_option("--width", width, "Head dim");
  CLI11_PARSE(app, argc, argv);

  openblas_set_num_threads(1);
  void (Job::*run)() = &Job::RunOneDnn;
  if (library == "openblas") run = &Job::RunOpenBlas;
  if (library == "eigen") run = &Job::RunEigen;
  nlohmann::json result = {{"library", library}, {"threads", threads}};
  Rates best;
  if (library == "openblas") result["core_type"] = openblas_get_corename();
  for (const auto& [queries, keys] : {std::pair<int, int>{64, 64}, {64, 128}, {128, 128}, {128, 256}, {256, 256}}) {
    for (const Product& product : Products(queries, keys, width)) {
      const Rates rates = Measure(product, threads, seconds, run);
      result["products"].push_back({{"product", product.name},
                                    {"queries", queries},
                                    {"keys", keys},
                                    {"gflops", rates.wall / 1e9},
                                    {"gflops_by_cpu_time", rates.cpu / 1e9}});
      best = {std::max(best.wall, rates.wall), std::max(best.cpu, rates.cpu)};
    }
  }
  result["best_gflops"] = best.wall / 1e9;
  result["best_gflops_by_cpu_time"] = best.cpu / 1e9;
  std::puts(result.dump().c_str());
  return 0;
}
