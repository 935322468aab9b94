// Between safetensors files and computations: which tensors of a file are inputs, and what an output file holds.
#ifndef FLASHBOB_CLIENT_CLI_TENSOR_FILE_H_
#define FLASHBOB_CLIENT_CLI_TENSOR_FILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/host_buffer.h"
#include "client/cli/safetensors.h"
#include "kernels/computation.h"

namespace flashbob::cli {

// What a file gives an operation. The bytes stay the file's.
struct FileInputs {
  std::vector<TensorInfo> tensors;
  TensorPointers pointers;
  std::vector<int64_t> cu_seqlens_q;
  std::vector<int64_t> cu_seqlens_k;
  std::vector<std::string> ignored;  // tensors in the file that the operation does not take
};

// INVALID_ARGUMENT where an input is of integers or cu_seqlens are not.
absl::StatusOr<FileInputs> InputsOf(const safetensors::File& file, Operation operation);

// Writes outputs with the computation's description in the metadata: operation, layout, window, align, scale, probes.
absl::Status WriteOutputs(const std::string& path, const Computation& computation, const std::string& device,
                          const std::map<TensorName, HostBuffer>& outputs);

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_TENSOR_FILE_H_
