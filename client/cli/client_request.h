// A computation of the kernel engine's, as the client library asks a server for it. A free function; any thread.
#ifndef FLASHBOB_CLIENT_CLI_CLIENT_REQUEST_H_
#define FLASHBOB_CLIENT_CLI_CLIENT_REQUEST_H_

#include "flashbob/attention.h"
#include "kernels/engine.h"

namespace flashbob::cli {

// Reads the inputs and writes the wanted outputs in the host memory that `tensors` names.
client::Request ToClientRequest(const Computation& computation, const TensorPointers& tensors);

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_CLIENT_REQUEST_H_
