// The CUDA engine's plumbing: what holds on every machine, and, where there is a GPU, memory, streams and refusals.
#include "kernels/cuda/cuda_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/conformance/case.h"

namespace flashbob {
namespace {

TEST(CudaDevicesTest, NoDeviceHasAReasonAndADeviceHasNone) {
  EXPECT_EQ(CudaDevices().empty(), !WhyNoCudaDevices().empty()) << WhyNoCudaDevices();
}

TEST(CudaDevicesTest, ADeviceThatIsNotThereIsNotFound) {
  EXPECT_EQ(CreateCudaEngine(4096).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CreateCudaEngine(-1).status().code(), absl::StatusCode::kNotFound);
}

class CudaEngineTest : public testing::Test {
 protected:
  void SetUp() override {
    if (CudaDevices().empty()) GTEST_SKIP() << "no GPU to test on: " << WhyNoCudaDevices();
    absl::StatusOr<std::unique_ptr<Engine>> engine = CreateCudaEngine(CudaDevices().front());
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  std::unique_ptr<Engine> engine_;
};

TEST_F(CudaEngineTest, SaysWhatItsDeviceIs) {
  EXPECT_EQ(engine_->device().name, "cuda:" + std::to_string(CudaDevices().front()));
  EXPECT_FALSE(engine_->device().model.empty());
  EXPECT_GT(engine_->device().compute_units, 0);
  EXPECT_GT(engine_->device().memory_bytes, 0);
  EXPECT_FALSE(engine_->unified_memory());
}

TEST_F(CudaEngineTest, CopiesThereAndBack) {
  constexpr size_t kBytes = 1 << 20;
  absl::StatusOr<std::unique_ptr<Stream>> stream = engine_->CreateStream();
  ASSERT_TRUE(stream.ok());
  absl::StatusOr<void*> host = engine_->AllocateHost(2 * kBytes);
  absl::StatusOr<void*> device = engine_->Allocate(kBytes);
  ASSERT_TRUE(host.ok() && device.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(*device) % kTensorAlignment, 0u);
  auto* bytes = static_cast<unsigned char*>(*host);
  for (size_t i = 0; i < kBytes; ++i) {
    bytes[i] = static_cast<unsigned char>(i * 31 + i / 256);
    bytes[kBytes + i] = 0;
  }
  ASSERT_TRUE(engine_->CopyToDevice(*device, bytes, kBytes, **stream).ok());
  ASSERT_TRUE(engine_->CopyToHost(bytes + kBytes, *device, kBytes, **stream).ok());
  ASSERT_TRUE((*stream)->Synchronize().ok());
  EXPECT_TRUE(std::equal(bytes, bytes + kBytes, bytes + kBytes));
  engine_->Free(*device);
  engine_->FreeHost(*host);
}

TEST_F(CudaEngineTest, CopiesThatGoTogetherChangeTheirBytesAlone) {
  struct Piece {
    size_t bytes;
    size_t host_shift = 0;  // past a multiple of 256
    size_t device_shift = 0;
  };
  // More than go as one, some at addresses that are no multiples of the unit, some too long, some of no whole number of
  // units, one empty.
  std::vector<Piece> pieces = {{48, 8, 0}, {48, 0, 8}, {16},      {48}, {2048},  {65536}, {65552},
                               {262144},   {262160},   {1 << 20}, {7},  {65537}, {0}};
  for (size_t i = 0; i < 15; ++i) pieces.push_back({4096 + 16 * i});
  constexpr size_t kGap = 256;
  const auto room = [](const Piece& piece) { return (piece.bytes + 8 + kGap - 1) / kGap * kGap + kGap; };
  size_t all = kGap;
  for (const Piece& piece : pieces) all += room(piece);
  absl::StatusOr<std::unique_ptr<Stream>> stream = engine_->CreateStream();
  absl::StatusOr<void*> host = engine_->AllocateHost(3 * all);
  absl::StatusOr<void*> device = engine_->Allocate(all);
  ASSERT_TRUE(stream.ok() && host.ok() && device.ok());
  auto* const sent = static_cast<unsigned char*>(*host);
  unsigned char* const there = sent + all;
  unsigned char* const back = there + all;
  ASSERT_EQ(reinterpret_cast<uintptr_t>(sent) % kGap, 0u);
  ASSERT_EQ(reinterpret_cast<uintptr_t>(*device) % kGap, 0u);
  std::vector<unsigned char> expected_there(all, 1);
  std::vector<unsigned char> expected_back(all, 2);
  std::fill_n(there, all, expected_there[0]);
  std::fill_n(back, all, expected_back[0]);
  for (size_t i = 0; i < all; ++i) sent[i] = static_cast<unsigned char>(i * 31 + i / 256);
  ASSERT_TRUE(engine_->CopyToDevice(*device, there, all, **stream).ok());
  std::vector<HostCopy> up;
  std::vector<HostCopy> down;
  size_t at = kGap;
  for (const Piece& piece : pieces) {
    const size_t on_host = at + piece.host_shift;
    const size_t on_device = at + piece.device_shift;
    auto* const address = static_cast<unsigned char*>(*device) + on_device;
    up.push_back({address, sent + on_host, piece.bytes});
    down.push_back({address, back + on_host, piece.bytes});
    std::copy_n(sent + on_host, piece.bytes, expected_there.begin() + static_cast<std::ptrdiff_t>(on_device));
    std::copy_n(sent + on_host, piece.bytes, expected_back.begin() + static_cast<std::ptrdiff_t>(on_host));
    at += room(piece);
  }
  ASSERT_TRUE(engine_->CopyAllToDevice(up, **stream).ok());
  ASSERT_TRUE(engine_->CopyAllToHost(down, **stream).ok());
  ASSERT_TRUE(engine_->CopyToHost(there, *device, all, **stream).ok());
  ASSERT_TRUE((*stream)->Synchronize().ok());
  EXPECT_TRUE(std::equal(there, there + all, expected_there.begin()));
  EXPECT_TRUE(std::equal(back, back + all, expected_back.begin()));
  ASSERT_TRUE(engine_->CopyAllToDevice({}, **stream).ok());
  engine_->Free(*device);
  engine_->FreeHost(*host);
}

TEST_F(CudaEngineTest, ALaunchMayBeTheFirstThatAThreadAsksOfTheGpu) {
  conformance::CaseSpec spec;
  spec.dtype = DType::kBFloat16;  // tensor maps on Hopper
  spec.query_len = spec.key_len = spec.head_dim = spec.value_dim = 64;
  const Computation computation = MakeComputation(spec).value();
  absl::StatusOr<std::unique_ptr<const Plan>> plan = engine_->MakePlan(computation);
  absl::StatusOr<std::unique_ptr<Stream>> stream = engine_->CreateStream();
  ASSERT_TRUE(plan.ok() && stream.ok());
  std::vector<void*> owned;
  const auto allocate = [&](size_t bytes) { return owned.emplace_back(engine_->Allocate(bytes).value()); };
  TensorPointers tensors;
  (computation.inputs() | computation.outputs()).ForEach([&](TensorName name) {
    tensors.Set(name, allocate(static_cast<size_t>(computation.problem().NumBytes(name))));
  });
  void* const workspace = allocate((*plan)->workspace_bytes() + 1);
  absl::Status status;
  std::thread([&] { status = engine_->Launch(**plan, 0, tensors, workspace, **stream); }).join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE((*stream)->Synchronize().ok());
  for (void* pointer : owned) engine_->Free(pointer);
}

TEST_F(CudaEngineTest, TooLargeAnAllocationNamesTheNumbersAndLeavesTheEngineWorking) {
  const absl::StatusOr<void*> huge = engine_->Allocate(size_t{1} << 46);
  ASSERT_EQ(huge.status().code(), absl::StatusCode::kResourceExhausted) << huge.status();
  EXPECT_NE(huge.status().message().find("70368744177664"), std::string_view::npos) << huge.status();
  const absl::StatusOr<void*> small = engine_->Allocate(1 << 20);
  ASSERT_TRUE(small.ok()) << small.status();
  engine_->Free(*small);
}

}  // namespace
}  // namespace flashbob
