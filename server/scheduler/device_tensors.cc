#include "server/scheduler/device_tensors.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"

namespace flashbob::server {
namespace {

// Rows so long are copied one by one: nothing is lost, and each can be copied a piece at a time.
constexpr size_t kLongRowBytes = 1 << 20;

int64_t Align(int64_t bytes) {
  constexpr auto kAlignment = static_cast<int64_t>(kTensorAlignment);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

TensorSet TensorsOf(const Plan& plan) { return plan.computation().inputs() | plan.computation().outputs(); }

}  // namespace

int64_t DeviceTensors::BytesOf(const Engine& engine, const Plan& plan) {
  if (engine.unified_memory()) return 0;
  int64_t bytes = Align(static_cast<int64_t>(plan.workspace_bytes()));
  TensorsOf(plan).ForEach([&](TensorName name) { bytes += Align(plan.computation().problem().NumBytes(name)); });
  return bytes;
}

absl::StatusOr<DeviceTensors> DeviceTensors::Create(Engine& engine, const Plan& plan, const RequestMemory& memory,
                                                    const AttentionProblem& whole, const Shard& shard) {
  DeviceTensors made(engine);
  const TensorSet all = TensorsOf(plan);
  if (engine.unified_memory()) {
    all.ForEach([&](TensorName name) { made.tensors_.Set(name, memory.Data(name)); });
    made.workspace_ = memory.workspace.data();
    return made;
  }
  const int64_t bytes = BytesOf(engine, plan);
  if (bytes == 0) return made;
  FLASHBOB_ASSIGN_OR_RETURN(made.block_, engine.Allocate(static_cast<size_t>(bytes)));
  std::byte* next = static_cast<std::byte*>(made.block_);
  all.ForEach([&](TensorName name) {
    const int64_t tensor_bytes = plan.computation().problem().NumBytes(name);
    if (tensor_bytes == 0) return;
    made.tensors_.Set(name, next);
    AddPieces(memory.Data(name), next, RowsOf(whole, shard, name),
              plan.computation().HasInput(name) ? made.inputs_ : made.outputs_);
    next += Align(tensor_bytes);
  });
  made.workspace_ = next;
  std::reverse(made.inputs_.begin(), made.inputs_.end());
  return made;
}

DeviceTensors::DeviceTensors(DeviceTensors&& other) noexcept
    : engine_(other.engine_),
      tensors_(other.tensors_),
      workspace_(other.workspace_),
      inputs_(std::move(other.inputs_)),
      outputs_(std::move(other.outputs_)),
      copied_input_bytes_(other.copied_input_bytes_),
      block_(std::exchange(other.block_, nullptr)) {}

DeviceTensors::~DeviceTensors() {
  if (block_ != nullptr) engine_.Free(block_);
}

void DeviceTensors::AddPieces(std::byte* host, std::byte* device, const std::vector<ByteRows>& blocks,
                              std::vector<Piece>& pieces) {
  for (const ByteRows& block : blocks) {
    const auto row_bytes = static_cast<size_t>(block.row_bytes);
    const auto pitch = static_cast<size_t>(block.pitch);
    const auto rows = static_cast<size_t>(block.rows);
    const bool apart = row_bytes >= kLongRowBytes;
    for (size_t row = 0; row < rows; row += apart ? 1 : rows) {
      pieces.push_back({host + block.offset + row * pitch, device, {row_bytes, apart ? 1 : rows, pitch}});
      device += pieces.back().rows.rows * row_bytes;
    }
  }
}

absl::StatusOr<bool> DeviceTensors::CopyMoreInputs(int64_t max_bytes, Stream& stream) {
  auto left = static_cast<size_t>(max_bytes);
  while (left > 0 && !inputs_.empty()) {
    Piece& piece = inputs_.back();
    HostRows& rows = piece.rows;
    if (rows.rows == 1) {
      const size_t bytes = std::min(left, rows.row_bytes);
      FLASHBOB_RETURN_IF_ERROR(engine_.CopyToDevice(piece.device, piece.host, bytes, stream));
      left -= bytes;
      copied_input_bytes_ += static_cast<int64_t>(bytes);
      piece.host += bytes;
      piece.device += bytes;
      rows.row_bytes -= bytes;
      if (rows.row_bytes == 0) inputs_.pop_back();
      continue;
    }
    HostRows some = rows;
    some.rows = std::min(rows.rows, std::max<size_t>(left / rows.row_bytes, 1));
    FLASHBOB_RETURN_IF_ERROR(engine_.CopyRowsToDevice(piece.device, piece.host, some, stream));
    left -= std::min(left, some.rows * some.row_bytes);
    copied_input_bytes_ += static_cast<int64_t>(some.rows * some.row_bytes);
    piece.host += some.rows * some.pitch;
    piece.device += some.rows * some.row_bytes;
    rows.rows -= some.rows;
    if (rows.rows == 0) inputs_.pop_back();
  }
  return !inputs_.empty();
}

absl::Status DeviceTensors::CopyInputsTogether(Stream& stream) {
  std::vector<HostCopy> copies;
  for (const Piece& piece : inputs_) {
    copied_input_bytes_ += static_cast<int64_t>(piece.rows.rows * piece.rows.row_bytes);
    if (piece.rows.rows == 1) {
      copies.push_back({piece.device, piece.host, piece.rows.row_bytes});
    } else {
      FLASHBOB_RETURN_IF_ERROR(engine_.CopyRowsToDevice(piece.device, piece.host, piece.rows, stream));
    }
  }
  inputs_.clear();
  return engine_.CopyAllToDevice(copies, stream);
}

absl::Status DeviceTensors::CopyOutputsTogether(Stream& stream) const {
  std::vector<HostCopy> copies;
  for (const Piece& piece : outputs_) {
    if (piece.rows.rows == 1) {
      copies.push_back({piece.device, piece.host, piece.rows.row_bytes});
    } else {
      FLASHBOB_RETURN_IF_ERROR(engine_.CopyRowsToHost(piece.host, piece.rows, piece.device, stream));
    }
  }
  return engine_.CopyAllToHost(copies, stream);
}

absl::Status DeviceTensors::CopyOutputs(Stream& stream) const {
  for (const Piece& piece : outputs_) {
    FLASHBOB_RETURN_IF_ERROR(piece.rows.rows == 1
                                 ? engine_.CopyToHost(piece.host, piece.device, piece.rows.row_bytes, stream)
                                 : engine_.CopyRowsToHost(piece.host, piece.rows, piece.device, stream));
  }
  return absl::OkStatus();
}

}  // namespace flashbob::server
