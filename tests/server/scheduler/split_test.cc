// Requests that several devices share.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "kernels/conformance/cases.h"
#include "kernels/conformance/host_tensor.h"
#include "kernels/conformance/run.h"
#include "kernels/cpu/cpu_engine.h"
#include "server/base/errors.h"
#include "tests/seed.h"
#include "tests/server/testing/forwarding_engine.h"
#include "tests/server/testing/scheduler_bench.h"

namespace flashbob::server {
namespace {

using conformance::HostTensor;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kNever = std::numeric_limits<double>::infinity();

double SplitRequestsOf(ServerMetrics& metrics) {
  for (const prometheus::MetricFamily& family : metrics.Collect()) {
    if (family.name == "flashbob_split_requests_total") return family.metric[0].counter.value;
  }
  return -1;
}

// A bench of two devices with memory of their own, on which a FLOP takes a second over 1e6.
struct SplitBench : Bench {
  explicit SplitBench(double split_seconds, int slices = 1, int64_t inline_copy_bytes = 0,
                      int64_t device_memory_bytes = 1 << 30)
      : Bench({.slices = slices,
               .unified_memory = false,
               .workspace_bytes = 1000,
               .device_memory_bytes = device_memory_bytes,
               .flops_per_second = 1e6},
              100, true, inline_copy_bytes, Duration(0), split_seconds) {}
  void LetGo() {
    engine.LetGo();
    second.LetGo();
  }
  double SplitRequests() { return SplitRequestsOf(metrics); }
  int64_t placed_bytes(size_t device) const { return scheduler->Devices()[device].memory.reserved_bytes; }
};

// 2 heads of 64 tokens: 0.26 s on a device of the bench, 0.13 s on each of two.
Computation TwoHeads() { return Forward(64, DType::kFloat32, 2); }
double SecondsOf(const Computation& computation) { return computation.flops() / 1e6; }

TEST(SplitTest, BothDevicesComputeTheirHeadsAndTheOutputIsOne) {
  for (const int64_t inline_copy_bytes : {int64_t{0}, int64_t{1} << 20}) {
    SplitBench bench(0.1, 3, inline_copy_bytes);
    Sent sent(bench, TwoHeads());
    sent.WaitUntilAdmitted();
    std::vector<std::byte> expected;
    for (size_t head = 0; head < 2; ++head) {
      TensorPointers inputs;
      sent.request().computation().inputs().ForEach([&](TensorName name) {
        std::byte* bytes = sent.request().HostData(name) + head * 2048;
        std::memset(bytes, static_cast<int>(17 * head + static_cast<size_t>(name)), 2048);
        inputs.Set(name, bytes);
      });
      for (const std::byte byte : PatternOf(Forward(64), inputs, TensorName::kO)) expected.push_back(byte);
    }
    sent.Ready();
    bench.engine.WaitForLaunches(1);
    bench.second.WaitForLaunches(1);
    EXPECT_EQ(bench.In(RequestState::kRunning), 1);
    EXPECT_EQ(bench.placed_bytes(0), 4 * 2048 + 1024) << "half of the tensors and a workspace";
    EXPECT_EQ(bench.placed_bytes(1), bench.placed_bytes(0));
    EXPECT_EQ(bench.scheduler->Ahead().requests, 1);
    bench.LetGo();
    ASSERT_TRUE(sent.listener->WaitUntilComputed().ok());
    EXPECT_EQ(std::memcmp(sent.request().HostData(TensorName::kO), expected.data(), expected.size()), 0);
    EXPECT_EQ(bench.placed_bytes(0) + bench.placed_bytes(1), 0);
    EXPECT_EQ(bench.In(RequestState::kSending), 1);
    EXPECT_EQ(bench.SplitRequests(), 1);
    const RequestView view = bench.scheduler->View(sent.request());
    EXPECT_EQ(view.slices, 6);
    EXPECT_EQ(view.slices_done, 6);
    EXPECT_TRUE(view.device == "stepped, second" || view.device == "second, stepped") << view.device;
    double done = 0;
    for (const double flops : sent.listener->progress()) done = std::max(done, flops);
    EXPECT_NEAR(done, sent.request().computation().flops() * 5 / 6, sent.request().computation().flops() / 5);
  }
}

TEST(SplitTest, StoredInputsAreReadByEveryPartAndTheOutputMayBeKept) {
  SplitBench bench(0);
  const Computation computation = TwoHeads();
  Reservation reservation = *bench.pool.TryReserve(3 * HostMemoryPool::BlockBytes(4096));
  const auto listener = std::make_shared<RecordingListener>();
  Submission submission{"id", computation, kNoDeadline, listener};
  std::vector<TensorPointers> of_head(2);
  computation.inputs().ForEach([&](TensorName name) {
    HostBuffer buffer = *bench.pool.Allocate(reservation, 4096);
    for (size_t head = 0; head < 2; ++head) {
      std::byte* bytes = buffer.data() + head * 2048;
      std::memset(bytes, static_cast<int>(31 * head + static_cast<size_t>(name)), 2048);
      of_head[head].Set(name, bytes);
    }
    submission.stored[static_cast<size_t>(name)] = std::make_shared<const HostBuffer>(std::move(buffer));
  });
  std::vector<std::byte> expected;
  for (const TensorPointers& inputs : of_head) {
    for (const std::byte byte : PatternOf(Forward(64), inputs, TensorName::kO)) expected.push_back(byte);
  }
  const Submitted submitted = *bench.scheduler->Submit(submission);
  if (!submitted.admitted) listener->WaitUntilAdmitted();
  bench.LetGo();
  bench.scheduler->Ready(submitted.request);
  ASSERT_TRUE(listener->WaitUntilComputed().ok());
  EXPECT_EQ(bench.SplitRequests(), 1);
  submission.stored = {};
  const auto [output, hold] = submitted.request->TakeOutput(TensorName::kO);
  bench.scheduler->Release(submitted.request);
  EXPECT_EQ(bench.pool.Use().reserved_bytes, HostMemoryPool::BlockBytes(4096)) << "the output alone";
  EXPECT_EQ(std::memcmp(output.data(), expected.data(), expected.size()), 0);
}

TEST(SplitTest, OnlyLongRequestsAreSplit) {
  SplitBench bench(SecondsOf(TwoHeads()));
  bench.LetGo();
  const auto split = [&](const Computation& computation) {
    const double before = bench.SplitRequests();
    Sent sent(bench, computation);
    sent.WaitUntilAdmitted();
    sent.Ready();
    EXPECT_TRUE(sent.listener->WaitUntilComputed().ok());
    return bench.SplitRequests() > before;
  };
  EXPECT_TRUE(split(TwoHeads()));
  EXPECT_FALSE(split(Forward(63, DType::kFloat32, 2)));
  EXPECT_FALSE(split(Forward(512))) << "one head is for one device";
}

TEST(SplitTest, RequestsThatWantTheSameBitsEachTimeAreNotSplit) {
  SplitBench bench(0);
  bench.LetGo();
  ProblemOptions options;
  options.deterministic = true;
  const Computation plain = TwoHeads();
  std::vector<TensorInfo> inputs;
  plain.inputs().ForEach([&](TensorName name) {
    inputs.push_back({name, plain.problem().DTypeOf(name), plain.problem().ShapeOf(name)});
  });
  Sent sent(bench, *Computation::Create(Operation::kForward, options, inputs, {TensorName::kO}));
  sent.WaitUntilAdmitted();
  sent.Ready();
  EXPECT_TRUE(sent.listener->WaitUntilComputed().ok());
  EXPECT_EQ(bench.SplitRequests(), 0);
}

TEST(SplitTest, NothingIsSplitWhileMoreIsAheadThanItself) {
  SplitBench bench(0.1);
  Sent ahead(bench, Forward(256, DType::kFloat32, 2));  // 4 s, or 2 s for each
  ahead.WaitUntilAdmitted();
  ahead.Ready();
  EXPECT_EQ(bench.SplitRequests(), 1);
  Sent behind(bench, TwoHeads());
  behind.WaitUntilAdmitted();
  behind.Ready();
  EXPECT_EQ(bench.SplitRequests(), 1);
  bench.LetGo();
  EXPECT_TRUE(ahead.listener->WaitUntilComputed().ok());
  EXPECT_TRUE(behind.listener->WaitUntilComputed().ok());
}

TEST(SplitTest, DeadlineThatOnlyAllDevicesTogetherMeetIsAccepted) {
  const double alone = SecondsOf(TwoHeads());
  const auto deadline = [&](const Bench& bench) { return bench.clock.Now() + FromSeconds(alone * 0.4); };
  SplitBench split(0.1);
  EXPECT_TRUE(Sent(split, TwoHeads(), deadline(split)).refusal().ok());
  SplitBench whole(kNever);
  EXPECT_EQ(ReasonOf(Sent(whole, TwoHeads(), deadline(whole)).refusal()), "DEADLINE");
}

TEST(SplitTest, ReleasedPartIsFreeAtOnceAndTheRestAfterTheSliceThatRuns) {
  SplitBench bench(0, 3);
  Sent sent(bench, TwoHeads());
  sent.WaitUntilAdmitted();
  sent.Ready();
  bench.engine.WaitForLaunches(1);
  bench.second.WaitForLaunches(1);
  bench.engine.Step(1);
  bench.engine.WaitForLaunches(2);
  sent.Release();
  EXPECT_GT(bench.pool.Use().reserved_bytes, 0) << "both devices may still read it";
  bench.engine.LetGo();
  while (bench.placed_bytes(0) > 0) std::this_thread::yield();
  EXPECT_GT(bench.placed_bytes(1), 0);
  EXPECT_GT(bench.pool.Use().reserved_bytes, 0) << "one device may still read it";
  bench.second.LetGo();
  bench.WaitUntilAllIsFree();
  EXPECT_EQ(bench.placed_bytes(1), 0);
  EXPECT_EQ(bench.engine.launches(), 2);
  EXPECT_EQ(bench.second.launches(), 1);
  EXPECT_FALSE(sent.listener->computed());
  for (int64_t count : bench.scheduler->CountByState()) EXPECT_EQ(count, 0);
}

TEST(SplitTest, DeadlineEndsEveryPart) {
  SplitBench bench(0, 3);
  Sent sent(bench, TwoHeads(), bench.clock.Now() + seconds(1));
  sent.WaitUntilAdmitted();
  sent.Ready();
  bench.engine.WaitForLaunches(1);
  bench.second.WaitForLaunches(1);
  bench.clock.Step(seconds(2));
  bench.LetGo();
  EXPECT_EQ(ReasonOf(sent.listener->WaitUntilComputed()), "DEADLINE");
  bench.WaitUntilAllIsFree();
  EXPECT_EQ(bench.engine.launches() + bench.second.launches(), 2);
  EXPECT_EQ(bench.placed_bytes(0) + bench.placed_bytes(1), 0);
}

TEST(SplitTest, LostDeviceEndsTheWholeRequestWithOneStatusAndTheOtherDeviceGoesOn) {
  SplitBench bench(0, 3);
  Sent sent(bench, TwoHeads());
  sent.WaitUntilAdmitted();
  sent.Ready();
  bench.engine.WaitForLaunches(1);
  bench.second.WaitForLaunches(1);
  bench.second.Lose(absl::InternalError("an illegal memory access"), true);
  bench.second.LetGo();
  while (bench.placed_bytes(1) > 0) std::this_thread::yield();
  EXPECT_FALSE(sent.listener->computed()) << "its memory is in use as yet";
  bench.engine.LetGo();
  EXPECT_EQ(ReasonOf(sent.listener->WaitUntilComputed()), "DEVICE_LOST");
  bench.WaitUntilAllIsFree();
  EXPECT_EQ(bench.engine.launches(), 1);
  EXPECT_EQ(bench.devices_lost, 1);
  Sent later(bench, TwoHeads());
  later.WaitUntilAdmitted();
  later.Ready();
  EXPECT_TRUE(later.listener->WaitUntilComputed().ok());
  EXPECT_EQ(bench.SplitRequests(), 1) << "there is one device left";
}

TEST(SplitTest, PartThatWaitsForADeviceThatIsLostIsTakenByTheOther) {
  SplitBench bench(0, 1, 0, 70000);
  Sent blocker(bench, Forward(512));  // it leaves too little memory on its device for a part
  blocker.WaitUntilAdmitted();
  blocker.Ready();
  while (bench.placed_bytes(0) + bench.placed_bytes(1) == 0) std::this_thread::yield();
  const bool on_first = bench.placed_bytes(0) > 0;
  SteppedEngine& lost = on_first ? bench.engine : bench.second;
  SteppedEngine& other = on_first ? bench.second : bench.engine;
  Sent sent(bench, TwoHeads());
  sent.WaitUntilAdmitted();
  sent.Ready();
  other.WaitForLaunches(1);
  lost.Fail(absl::InternalError("unspecified launch failure"));
  lost.LetGo();
  EXPECT_EQ(ReasonOf(blocker.listener->WaitUntilComputed()), "DEVICE_LOST");
  EXPECT_FALSE(sent.listener->computed());
  other.LetGo();
  EXPECT_TRUE(sent.listener->WaitUntilComputed().ok());
  EXPECT_EQ(sent.request().device_name(), other.device().name);
  EXPECT_EQ(other.launches(), 2);
  EXPECT_EQ(bench.SplitRequests(), 1);
}

TEST(SplitTest, NothingLeaksUnderRandomCancellationsOfSplitRequests) {
  const uint64_t seed = testing_seed::Seed();
  SplitBench bench(0, 3, 9000);
  bench.LetGo();
  const auto tenant = Tenant::Create({.name = "t", .max_in_flight = 3});
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      for (int i = 0; i < 100; ++i) {
        const auto length = static_cast<int64_t>(random() % 200);
        const auto heads = static_cast<int64_t>(1 + random() % 4);
        Sent sent(bench, Forward(length, DType::kFloat32, heads), kNoDeadline, t % 2 == 0 ? tenant : nullptr);
        if (!sent.submitted.ok()) continue;
        sent.WaitUntilAdmitted();
        sent.Ready();
        for (uint64_t turns = random() % 200; turns > 0; --turns) std::this_thread::yield();
        if (random() % 2 == 0) continue;
        EXPECT_TRUE(sent.listener->WaitUntilComputed().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  bench.WaitUntilAllIsFree();
  EXPECT_GT(bench.SplitRequests(), 50);
  for (int64_t count : bench.scheduler->CountByState()) EXPECT_EQ(count, 0);
  EXPECT_EQ(tenant->GetUse().bytes, 0);
  EXPECT_EQ(tenant->GetUse().in_flight, 0);
  EXPECT_EQ(bench.placed_bytes(0) + bench.placed_bytes(1), 0);
  EXPECT_EQ(bench.engine.live_device_bytes() + bench.second.live_device_bytes(), 0);
}

// CPU engines as devices with memory of their own.
class CpuDevices {
 public:
  CpuDevices(int count, double split_seconds) {
    std::vector<Engine*> engines;
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) {
      names.push_back("cpu:" + std::to_string(i));
      engines_.push_back(std::make_unique<ApartEngine>(cpu::CreateCpuEngine({.threads = 1}), names.back()));
      engines.push_back(engines_.back().get());
    }
    pool_ = std::make_unique<HostMemoryPool>(*engines_.front(), clock_, int64_t{1} << 30);
    metrics_ = std::make_unique<ServerMetrics>("test", names);
    FairScheduler::Options options;
    options.split_seconds = split_seconds;
    scheduler_ = *FairScheduler::Create(engines, *pool_, clock_, *metrics_, options);
  }

  // A conformance::Runner.
  absl::Status Run(const Computation& computation, const TensorPointers& tensors) {
    const auto listener = std::make_shared<RecordingListener>();
    const absl::StatusOr<Submitted> submitted = scheduler_->Submit({"id", computation, kNoDeadline, listener});
    if (!submitted.ok()) return submitted.status();
    if (!submitted->admitted) listener->WaitUntilAdmitted();
    const std::shared_ptr<Request>& request = submitted->request;
    const auto bytes = [&](TensorName name) { return static_cast<size_t>(computation.problem().NumBytes(name)); };
    computation.inputs().ForEach([&](TensorName name) {
      if (bytes(name) > 0) std::memcpy(request->HostData(name), tensors.Get(name), bytes(name));
    });
    scheduler_->Ready(request);
    const absl::Status status = listener->WaitUntilComputed();
    if (status.ok()) {
      computation.outputs().ForEach([&](TensorName name) {
        if (bytes(name) > 0) std::memcpy(tensors.Get(name), request->HostData(name), bytes(name));
      });
    }
    scheduler_->Release(request);
    return status;
  }
  double SplitRequests() const { return SplitRequestsOf(*metrics_); }

 private:
  const SteadyClock clock_;
  std::vector<std::unique_ptr<ApartEngine>> engines_;
  std::unique_ptr<HostMemoryPool> pool_;
  std::unique_ptr<ServerMetrics> metrics_;
  std::unique_ptr<FairScheduler> scheduler_;
};

// Enough heads for each of three devices that the CPU engine cuts shards and the whole into the same tiles.
conformance::CaseSpec LargeCase(Operation operation, Layout layout, DType dtype) {
  conformance::CaseSpec spec;
  spec.operation = operation;
  spec.dtype = dtype;
  spec.options.layout = layout;
  spec.options.window_right = 0;
  spec.batch = 2;
  spec.heads = 48;
  spec.kv_heads = 24;
  spec.query_len = 140;
  spec.key_len = 250;
  if (layout == Layout::kTHD) {
    spec.options.cu_seqlens_q = {0, 100, 130, 280};
    spec.options.cu_seqlens_k = {0, 250, 400, 500};
  }
  spec.head_dim = 8;
  spec.value_dim = 5;
  spec.seed = testing_seed::Seed();
  if (operation == Operation::kDoubleBackward) {
    spec.options.probes = 2;
    spec.optional_inputs = {TensorName::kUq, TensorName::kUk, TensorName::kUv, TensorName::kO, TensorName::kLse};
  }
  if (operation == Operation::kJvp) {
    spec.optional_inputs = {TensorName::kTq, TensorName::kTk, TensorName::kTv, TensorName::kDo, TensorName::kTdo};
  }
  return spec;
}

TEST(SplitTest, BitsAreThoseOfTheUnsplitRequest) {
  CpuDevices devices(3, 0);
  const std::unique_ptr<Engine> alone = cpu::CreateCpuEngine({.threads = 1});
  for (Operation operation : kAllOperations) {
    for (Layout layout : {Layout::kBHND, Layout::kBNHD, Layout::kTHD}) {
      const DType dtype = layout == Layout::kBHND ? DType::kBFloat16 : DType::kFloat32;
      const auto one = conformance::ConformanceCase::Create(LargeCase(operation, layout, dtype));
      ASSERT_TRUE(one.ok()) << one.status();
      SCOPED_TRACE(one->shape());
      const Computation& computation = one->computation();
      const auto inputs = conformance::MakeInputs(*one);
      ASSERT_TRUE(inputs.ok()) << inputs.status();
      std::vector<HostTensor> memory;
      memory.reserve(2 * kNumTensorNames);
      TensorPointers split;
      TensorPointers whole;
      for (const auto& [name, values] : *inputs) {
        memory.emplace_back(computation.problem().DTypeOf(name), values);
        split.Set(name, memory.back().data());
        whole.Set(name, memory.back().data());
      }
      computation.outputs().ForEach([&](TensorName name) {
        for (TensorPointers* tensors : {&split, &whole}) {
          memory.emplace_back(computation.problem().DTypeOf(name),
                              static_cast<size_t>(computation.problem().NumElements(name)));
          tensors->Set(name, memory.back().data());
        }
      });
      ASSERT_TRUE(RunToCompletion(*alone, computation, whole).ok());
      const double splits = devices.SplitRequests();
      ASSERT_TRUE(devices.Run(computation, split).ok());
      EXPECT_EQ(devices.SplitRequests(), splits + 1);
      computation.outputs().ForEach([&](TensorName name) {
        const auto bytes = static_cast<size_t>(computation.problem().NumBytes(name));
        EXPECT_EQ(std::memcmp(split.Get(name), whole.Get(name), bytes), 0) << Name(name);
      });
    }
  }
}

TEST(SplitTest, ConformsWhereWhateverCanBeSplitIs) {
  CpuDevices devices(2, 0);
  for (const conformance::ConformanceCase& one : conformance::QuickCases(testing_seed::Seed())) {
    const auto report = conformance::RunCase(one, conformance::BarKind::kCpu,
                                             [&](const Computation& computation, const TensorPointers& tensors) {
                                               return devices.Run(computation, tensors);
                                             });
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->ok) << report->ToString();
  }
  EXPECT_GT(devices.SplitRequests(), 20);
}

}  // namespace
}  // namespace flashbob::server
