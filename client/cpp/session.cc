#include "flashbob/session.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"

namespace flashbob::client {
namespace {

// A server that keeps losing handles as fast as they are restored is not waited for.
constexpr int kRestores = 4;

// Deleting is a courtesy: the leases end by themselves.
constexpr auto kDeleteTimeout = std::chrono::seconds(2);

bool IsLostHandle(const absl::Status& status) { return absl::IsNotFound(status) && ReasonOf(status) == "HANDLE"; }

}  // namespace

// How kept outputs came to be, shared by all of one call.
struct Recipe {
  SessionRequest request;  // its inputs live for as long as its outputs
  std::map<std::string, std::weak_ptr<KeptTensor::Node>> outputs;
};

struct Session::State {
  State(Client client, std::chrono::seconds lease) : client(std::move(client)), lease(lease) {}

  Client client;
  const std::chrono::seconds lease;
  Mutex restoring;  // one thread sends and computes again; held over calls, and before `mutex`
  Mutex mutex;
  std::vector<StoredTensor> forgotten FLASHBOB_GUARDED_BY(mutex);  // nobody names them any more

  std::optional<StoredTensor> StoredOf(const KeptTensor& tensor) FLASHBOB_EXCLUDES(mutex);
  // The server knows none of these any more, or will not be asked again.
  void Lose(const std::vector<KeptTensor>& tensors) FLASHBOB_EXCLUDES(mutex);
  // Sees to it that a tensor is on the server, as far as is known here.
  absl::Status Restore(const KeptTensor& tensor, const CallOptions& call) FLASHBOB_REQUIRES(restoring);
  absl::StatusOr<Result> Run(const SessionRequest& request, const CallOptions& call) FLASHBOB_EXCLUDES(mutex);
  absl::Status RestoreAll(const std::vector<KeptTensor>& tensors, const CallOptions& call)
      FLASHBOB_EXCLUDES(restoring, mutex);
  void DeleteForgotten() FLASHBOB_EXCLUDES(mutex);
};

struct KeptTensor::Node {
  std::weak_ptr<Session::State> session;
  std::string name;
  DataType dtype = DataType::kFP32;
  Shape shape;
  TensorView source;               // of the caller's
  std::shared_ptr<Recipe> recipe;  // of an output; null for the caller's
  // Guarded by the session's mutex. Nothing: it is not on the server.
  std::optional<StoredTensor> stored;

  ~Node() {
    const std::shared_ptr<Session::State> state = session.lock();
    if (state == nullptr || !stored.has_value()) return;
    MutexLock lock(state->mutex);
    state->forgotten.push_back(*std::move(stored));
  }
};

DataType KeptTensor::dtype() const { return node_->dtype; }
const Shape& KeptTensor::shape() const { return node_->shape; }

namespace {

std::vector<KeptTensor> KeptInputs(const SessionRequest& request) {
  std::vector<KeptTensor> kept;
  for (const SessionInput& input : request.inputs) {
    if (const auto* tensor = std::get_if<KeptTensor>(&input.tensor)) kept.push_back(*tensor);
  }
  return kept;
}

}  // namespace

std::optional<StoredTensor> Session::State::StoredOf(const KeptTensor& tensor) {
  MutexLock lock(mutex);
  return tensor.node()->stored;
}

void Session::State::Lose(const std::vector<KeptTensor>& tensors) {
  MutexLock lock(mutex);
  for (const KeptTensor& tensor : tensors) {
    // Some may be there yet: the server names one that it lacks, not all.
    std::optional<StoredTensor>& stored = tensor.node()->stored;
    if (stored.has_value()) forgotten.push_back(*std::exchange(stored, std::nullopt));
  }
}

absl::Status Session::State::Restore(const KeptTensor& tensor, const CallOptions& call) {
  if (StoredOf(tensor).has_value()) return absl::OkStatus();
  KeptTensor::Node& node = *tensor.node();
  if (node.recipe == nullptr) {
    FLASHBOB_ASSIGN_OR_RETURN(const std::vector<StoredTensor> stored,
                              client.PutTensors({{.name = node.name, .tensor = node.source}}, lease, call));
    MutexLock lock(mutex);
    node.stored = stored.front();
    return absl::OkStatus();
  }
  const std::shared_ptr<Recipe> recipe = node.recipe;
  absl::StatusOr<Result> result = absl::InternalError("not run");
  for (int i = 0; i < kRestores; ++i) {
    const std::vector<KeptTensor> inputs = KeptInputs(recipe->request);
    for (const KeptTensor& input : inputs) FLASHBOB_RETURN_IF_ERROR(Restore(input, call));
    result = Run(recipe->request, call);
    if (!IsLostHandle(result.status())) break;
    Lose(inputs);
  }
  FLASHBOB_RETURN_IF_ERROR(result.status());
  std::vector<std::shared_ptr<KeptTensor::Node>> outputs;  // released once unlocked: a node's end takes the lock
  MutexLock lock(mutex);
  for (NamedOutput& output : result->outputs) {
    if (!output.stored.has_value()) continue;
    const std::shared_ptr<KeptTensor::Node>& kept = outputs.emplace_back(recipe->outputs[output.name].lock());
    // What is on the server twice now is wanted once.
    if (kept == nullptr || kept->stored.has_value()) {
      forgotten.push_back(*std::move(output.stored));
    } else {
      kept->stored = std::move(output.stored);
    }
  }
  return absl::OkStatus();
}

absl::Status Session::State::RestoreAll(const std::vector<KeptTensor>& tensors, const CallOptions& call) {
  if (std::all_of(tensors.begin(), tensors.end(), [&](const auto& tensor) { return StoredOf(tensor).has_value(); })) {
    return absl::OkStatus();
  }
  MutexLock lock(restoring);
  for (const KeptTensor& tensor : tensors) FLASHBOB_RETURN_IF_ERROR(Restore(tensor, call));
  return absl::OkStatus();
}

absl::StatusOr<Result> Session::State::Run(const SessionRequest& request, const CallOptions& call) {
  Request plain{.operation = request.operation, .options = request.options, .outputs = request.outputs};
  for (const SessionInput& input : request.inputs) {
    if (const auto* view = std::get_if<TensorView>(&input.tensor)) {
      plain.inputs.push_back({.name = input.name, .tensor = *view});
      continue;
    }
    const KeptTensor& kept = std::get<KeptTensor>(input.tensor);
    // One that another thread has just lost goes as what it would be called: the server does not know it either.
    plain.inputs.push_back(
        {.name = input.name, .stored = StoredOf(kept).value_or(StoredTensor{"lost", kept.dtype(), kept.shape()})});
  }
  for (const std::string& name : request.keep) plain.outputs.push_back({.name = name, .keep = lease});
  return client.Compute(plain, call);
}

void Session::State::DeleteForgotten() {
  std::vector<StoredTensor> tensors;
  {
    MutexLock lock(mutex);
    tensors.swap(forgotten);
  }
  if (tensors.empty()) return;
  const absl::StatusOr<int64_t> deleted = client.DeleteTensors(tensors, {.timeout = kDeleteTimeout});
  if (deleted.ok()) return;
  MutexLock lock(mutex);  // perhaps with a later call
  forgotten.insert(forgotten.end(), tensors.begin(), tensors.end());
}

Session::Session(Client client, std::chrono::seconds lease)
    : state_(std::make_shared<State>(std::move(client), lease)) {}

Session::~Session() { state_->DeleteForgotten(); }

KeptTensor Session::Keep(std::string name, TensorView tensor) {
  auto node = std::make_shared<KeptTensor::Node>();
  node->session = state_;
  node->name = std::move(name);
  node->dtype = tensor.dtype;
  node->shape = tensor.shape;
  node->source = std::move(tensor);
  return KeptTensor(std::move(node));
}

absl::StatusOr<SessionResult> Session::Compute(const SessionRequest& request, const CallOptions& call) {
  if (request.outputs.empty() && request.keep.empty()) {
    return absl::InvalidArgumentError("neither `outputs` nor `keep` names an output");
  }
  state_->DeleteForgotten();
  const std::vector<KeptTensor> inputs = KeptInputs(request);
  absl::StatusOr<Result> computed = absl::InternalError("not run");
  for (int i = 0; i < kRestores; ++i) {
    // What is sent now is there; what is lost was there before.
    std::vector<KeptTensor> before;
    std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(before),
                 [&](const KeptTensor& input) { return state_->StoredOf(input).has_value(); });
    FLASHBOB_RETURN_IF_ERROR(state_->RestoreAll(inputs, call));
    computed = state_->Run(request, call);
    if (!IsLostHandle(computed.status())) break;
    state_->Lose(before.empty() ? inputs : before);
  }
  FLASHBOB_RETURN_IF_ERROR(computed.status());
  SessionResult result;
  std::vector<NamedOutput> sent;
  const auto recipe = std::make_shared<Recipe>();
  recipe->request = request;
  recipe->request.outputs.clear();  // those need not be sent again
  for (NamedOutput& output : computed->outputs) {
    if (!output.stored.has_value()) {
      sent.push_back(std::move(output));
      continue;
    }
    auto node = std::make_shared<KeptTensor::Node>();
    node->session = state_;
    node->name = output.name;
    node->dtype = output.stored->dtype;
    node->shape = output.stored->shape;
    node->recipe = recipe;
    node->stored = std::move(output.stored);
    recipe->outputs[output.name] = node;
    result.kept.emplace(output.name, KeptTensor(std::move(node)));
  }
  computed->outputs = std::move(sent);
  result.result = *std::move(computed);
  return result;
}

absl::StatusOr<Tensor> Session::Fetch(const KeptTensor& tensor, const CallOptions& call) {
  absl::StatusOr<std::vector<Tensor>> fetched = absl::InternalError("not run");
  for (int i = 0; i < kRestores; ++i) {
    FLASHBOB_RETURN_IF_ERROR(state_->RestoreAll({tensor}, call));
    const std::optional<StoredTensor> stored = state_->StoredOf(tensor);
    if (!stored.has_value()) continue;  // another thread has just lost it
    fetched = state_->client.GetTensors({*stored}, call);
    if (!IsLostHandle(fetched.status())) break;
    state_->Lose({tensor});
  }
  FLASHBOB_RETURN_IF_ERROR(fetched.status());
  return std::move(fetched->front());
}

}  // namespace flashbob::client
