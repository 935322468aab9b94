// What --devices chooses on machines that are only described.
#include "kernels/devices/device_list.h"

#include <gtest/gtest.h>

#include "kernels/devices/devices.h"

namespace flashbob {
namespace {

using Names = std::vector<std::string>;

MachineDevices CpuOnly() { return {.gpus = {}, .why_no_gpus = "no driver"}; }

MachineDevices WithGpus(const std::vector<std::string>& models) {
  MachineDevices machine;
  for (const std::string& model : models) {
    machine.gpus.push_back({static_cast<int>(machine.gpus.size()), model});
  }
  return machine;
}

Names Chosen(std::string_view list, const MachineDevices& machine) {
  const absl::StatusOr<DeviceChoice> choice = ChooseDevices(list, machine);
  EXPECT_TRUE(choice.ok()) << choice.status();
  return choice.ok() ? choice->names : Names();
}

void ExpectError(std::string_view list, const MachineDevices& machine, absl::StatusCode code,
                 std::initializer_list<std::string> parts) {
  const absl::Status status = ChooseDevices(list, machine).status();
  EXPECT_EQ(status.code(), code) << list << ": " << status;
  const std::string text(status.message());
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

TEST(DeviceListTest, AutoAndAllTakeEveryGpu) {
  const MachineDevices machine = WithGpus({"H200", "H200", "H200"});
  const Names all = {"cuda:0", "cuda:1", "cuda:2"};
  EXPECT_EQ(Chosen("auto", machine), all);
  EXPECT_EQ(Chosen("all", machine), all);
  EXPECT_EQ(ChooseDevices("auto", machine)->note, "");
}

TEST(DeviceListTest, AutoTakesTheCpuWhereThereIsNoGpuAndSaysWhy) {
  const absl::StatusOr<DeviceChoice> choice = ChooseDevices("auto", CpuOnly());
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->names, Names{"cpu"});
  EXPECT_EQ(choice->note, "no driver");
}

TEST(DeviceListTest, AllInsistsOnAGpu) { ExpectError("all", CpuOnly(), absl::StatusCode::kNotFound, {"no driver"}); }

TEST(DeviceListTest, TheCpuCanBeChosenBesideGpus) {
  EXPECT_EQ(Chosen("cpu", WithGpus({"H200"})), Names{"cpu"});
  EXPECT_EQ(Chosen("cpu", CpuOnly()), Names{"cpu"});
}

TEST(DeviceListTest, AListKeepsItsOrder) {
  const Names swapped = {"cuda:2", "cuda:0"};
  EXPECT_EQ(Chosen("cuda:2,cuda:0", WithGpus({"A", "A", "A"})), swapped);
}

TEST(DeviceListTest, NumbersAreCudasNotPositions) {
  MachineDevices machine;  // number 0 is too old, say
  machine.gpus = {{1, "H100"}};
  EXPECT_EQ(Chosen("auto", machine), Names{"cuda:1"});
  ExpectError("cuda:0", machine, absl::StatusCode::kNotFound, {"cuda:0", "cuda:1 (H100)"});
}

TEST(DeviceListTest, ADeviceThatIsNotThereIsAnsweredWithThoseThatAre) {
  ExpectError("cuda:2", WithGpus({"H200", "H200"}), absl::StatusCode::kNotFound,
              {"no device cuda:2", "cpu", "cuda:0 (H200)", "cuda:1 (H200)"});
  ExpectError("cuda:0", CpuOnly(), absl::StatusCode::kNotFound, {"no device cuda:0", "cpu alone", "no driver"});
}

TEST(DeviceListTest, WhatIsNoDeviceIsRefused) {
  const MachineDevices machine = WithGpus({"H200"});
  for (const char* list : {"", "gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:0,", ",cuda:0", "CPU", "0",
                           "cuda:0;1", "cuda:99999999999"}) {
    ExpectError(list, machine, absl::StatusCode::kInvalidArgument, {"is none of", "cuda:0 (H200)"});
  }
}

TEST(DeviceListTest, ADeviceComesOnce) {
  ExpectError("cuda:0,cuda:00", WithGpus({"H200"}), absl::StatusCode::kInvalidArgument, {"cuda:0 comes twice"});
}

TEST(DeviceListTest, TheCpuServesAlone) {
  ExpectError("cpu,cuda:0", WithGpus({"H200"}), absl::StatusCode::kInvalidArgument, {"cpu stands alone"});
  ExpectError("cuda:0,all", WithGpus({"H200"}), absl::StatusCode::kInvalidArgument, {"all stands alone"});
}

TEST(DeviceListTest, OnlyAlikeGpusServeTogether) {
  const MachineDevices machine = WithGpus({"T1000", "H200", "H200"});
  const absl::StatusOr<DeviceChoice> choice = ChooseDevices("auto", machine);
  ASSERT_TRUE(choice.ok()) << choice.status();
  const Names alike = {"cuda:1", "cuda:2"};
  EXPECT_EQ(choice->names, alike);
  EXPECT_NE(choice->note.find("cuda:0 (T1000)"), std::string::npos) << choice->note;
  ExpectError("cuda:0,cuda:1", machine, absl::StatusCode::kInvalidArgument, {"cuda:0 (T1000)", "cuda:1 (H200)"});
  EXPECT_EQ(Chosen("cuda:0", machine), Names{"cuda:0"});
}

TEST(DevicesTest, WhatIsChosenHereHasAnEngine) {
  const absl::StatusOr<DeviceChoice> choice = ChooseDevices("auto", FindDevices());
  ASSERT_TRUE(choice.ok()) << choice.status();
  for (const std::string& name : choice->names) {
    const absl::StatusOr<std::unique_ptr<Engine>> engine = CreateEngine(name);
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_EQ((*engine)->device().name, name);
    EXPECT_GT((*engine)->device().usable_bytes, 0);
    EXPECT_LE((*engine)->device().usable_bytes, (*engine)->device().memory_bytes);
  }
}

}  // namespace
}  // namespace flashbob
