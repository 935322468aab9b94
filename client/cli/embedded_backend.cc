#include "client/cli/embedded_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/devices/devices.h"

namespace flashbob::cli {
namespace {

class EmbeddedBackend : public Backend {
 public:
  explicit EmbeddedBackend(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  absl::StatusOr<Outcome> Compute(const Computation& computation, const TensorPointers& tensors,
                                  const ProgressCallback& progress) override {
    const auto begin = std::chrono::steady_clock::now();
    std::function<void(double)> done_flops;
    if (progress) done_flops = [&](double done) { progress(done / computation.flops(), "computing"); };
    FLASHBOB_RETURN_IF_ERROR(RunToCompletion(*engine_, computation, tensors, done_flops));
    return Outcome{.device = engine_->device().name, .compute = std::chrono::steady_clock::now() - begin};
  }

  absl::StatusOr<client::ServerInfo> Info() override {
    const DeviceInfo& device = engine_->device();
    client::ServerInfo info;
    info.version = FLASHBOB_VERSION;
    info.devices.push_back({.name = device.name,
                            .model = device.model,
                            .memory = {.limit_bytes = device.usable_bytes},
                            .compute_units = device.compute_units});
    info.capabilities.push_back(
        {.operations = {client::Operation::kForward, client::Operation::kBackward, client::Operation::kDoubleBackward,
                        client::Operation::kJvp},
         .dtypes = {client::DataType::kBF16, client::DataType::kFP16, client::DataType::kFP32, client::DataType::kFP64},
         .layouts = {client::Layout::kBHND, client::Layout::kBNHD, client::Layout::kTHD},
         .max_head_dim = AttentionProblem::kMaxHeadDim,
         .max_value_dim = AttentionProblem::kMaxHeadDim,
         .device = device.name});
    return info;
  }

  absl::Status Health() override { return absl::OkStatus(); }

 private:
  const std::unique_ptr<Engine> engine_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeEmbeddedBackend(const std::string& device) {
  FLASHBOB_ASSIGN_OR_RETURN(const DeviceChoice choice, ChooseDevices(device, FindDevices()));
  if (device != "auto" && choice.names.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("device \"", device, "\" names ", choice.names.size(), " devices; without a server it is one"));
  }
  FLASHBOB_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, CreateEngine(choice.names.front()));
  return std::make_unique<EmbeddedBackend>(std::move(engine));
}

}  // namespace flashbob::cli
