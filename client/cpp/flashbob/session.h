// Session: tensors that stay on the server between calls, so that forward, backward and double backward of one layer
// send each of them once; and that come back by themselves where the server lost them.
//
//   Session session(client);
//   KeptTensor q = session.Keep("q", {q_values, shape}), k = ..., v = ..., dout = ...;
//   auto forward = session.Compute({.operation = Operation::kForward,
//                                   .inputs = {{"q", q}, {"k", k}, {"v", v}}, .keep = {"o", "lse"}});
//   auto bob = session.Compute({.operation = Operation::kDoubleBackward,
//                               .inputs = {{"q", q}, ..., {"o", forward->kept.at("o")}, ...}, .outputs = {{"gq"}}});
//
// A server that was restarted, or a lease that ended, leaves handles that nobody knows any more. The session then sends
// the caller's tensors again, computes again what the server had computed, and repeats the call.
#ifndef FLASHBOB_CLIENT_CPP_FLASHBOB_SESSION_H_
#define FLASHBOB_CLIENT_CPP_FLASHBOB_SESSION_H_

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "flashbob/client.h"

namespace flashbob::client {

// Names a tensor that a session keeps: one of the caller's or an output. Copies name the same one; once the last is
// gone, and with it all that was computed from it, the server forgets it with the session's next call.
// Thread safety: as of any value.
class KeptTensor {
 public:
  struct Node;
  DataType dtype() const;
  const Shape& shape() const;

  // For Session.
  explicit KeptTensor(std::shared_ptr<Node> node) : node_(std::move(node)) {}
  const std::shared_ptr<Node>& node() const { return node_; }

 private:
  std::shared_ptr<Node> node_;
};

struct SessionInput {
  std::string name;
  std::variant<KeptTensor, TensorView> tensor;
};

struct SessionRequest {
  Operation operation = Operation::kForward;
  AttentionOptions options = {};
  std::vector<SessionInput> inputs = {};
  std::vector<WantedOutput> outputs = {};  // that are sent back
  std::vector<std::string> keep = {};      // that stay on the server
};

struct SessionResult {
  Result result;                           // with the outputs that were sent back
  std::map<std::string, KeptTensor> kept;  // by name
};

// Thread safety: all methods from any thread. Memory of the caller's tensors, also of those that were inputs of kept
// outputs without being kept, must live and stay as it is for as long as the KeptTensors that need it.
class Session {
 public:
  struct State;
  // Tensors stay for `lease` after their last use; 0: as long as the server likes.
  explicit Session(Client client, std::chrono::seconds lease = std::chrono::seconds(0));
  // Has the server forget what nobody names any more, where it can be reached; the rest goes when its lease is over.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // A tensor of the caller's; it is sent with the first call that needs it. `name` is one of attention's: what the
  // tensor is by itself, under whatever name it serves later.
  KeptTensor Keep(std::string name, TensorView tensor);

  // The errors of Client::Compute. Outputs that are neither in `outputs` nor in `keep` are not computed.
  absl::StatusOr<SessionResult> Compute(const SessionRequest& request, const CallOptions& call = {});

  // Brings a kept tensor here.
  absl::StatusOr<Tensor> Fetch(const KeptTensor& tensor, const CallOptions& call = {});

 private:
  std::shared_ptr<State> state_;
};

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_FLASHBOB_SESSION_H_
