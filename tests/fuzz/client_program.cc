#include "tests/fuzz/client_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/message_mutator.h"
#include "tests/server/testing/compute_client.h"

namespace flashbob::fuzz {
namespace {

using server::Decode;
using server::WireError;
using std::chrono::milliseconds;

// Longer than anything takes: a call that needs it hangs.
constexpr milliseconds kHang{60000};
// Of what is wrong and may yet be a problem that is large.
constexpr milliseconds kWrong{5000};
constexpr size_t kMostKept = 12;

// The pieces of `bytes`, as chunks of input `index`.
template <typename Request>
std::vector<std::string> Chunks(uint32_t index, const std::string& bytes, std::mt19937_64& random) {
  std::vector<std::string> chunks;
  for (size_t offset = 0; offset < bytes.size();) {
    const size_t size = std::min<size_t>(bytes.size() - offset, 1 + random() % (bytes.size() + bytes.size() / 2));
    Request request;
    request.mutable_chunk()->set_tensor_index(index);
    request.mutable_chunk()->set_byte_offset(static_cast<int64_t>(offset));
    request.mutable_chunk()->set_data(bytes.substr(offset, size));
    chunks.push_back(request.SerializeAsString());
    offset += size;
  }
  return chunks;
}

std::string NameOf(const WireError& error) {
  if (error.code == grpc::StatusCode::OK) return "OK";
  if (!error.reason.empty()) return error.reason;
  if (error.code == grpc::StatusCode::CANCELLED) return "CANCELLED";
  if (error.code == grpc::StatusCode::DEADLINE_EXCEEDED) return "DEADLINE_EXCEEDED";
  return absl::StrCat("code ", static_cast<int>(error.code));
}

}  // namespace

void Statistics::Add(const std::string& outcome) {
  MutexLock lock(mutex_);
  ++counts_[outcome];
}

int64_t Statistics::Count(const std::string& outcome) const {
  MutexLock lock(mutex_);
  const auto found = counts_.find(outcome);
  return found == counts_.end() ? 0 : found->second;
}

std::string Statistics::ToString() const {
  MutexLock lock(mutex_);
  std::string text;
  int64_t total = 0;
  for (const auto& [outcome, count] : counts_) {
    absl::StrAppend(&text, ", ", outcome, " ", count);
    total += count;
  }
  return absl::StrCat(total, " calls", text);
}

void SharedHandles::Add(const std::string& tenant, const std::string& handle) {
  MutexLock lock(mutex_);
  handles_.emplace(tenant, handle);
}

std::optional<std::string> SharedHandles::OfAnother(const std::string& tenant, std::mt19937_64& random) const {
  MutexLock lock(mutex_);
  std::vector<std::string> others;
  for (const auto& [owner, handle] : handles_) {
    if (owner != tenant) others.push_back(handle);
  }
  if (others.empty()) return std::nullopt;
  return others[random() % others.size()];
}

void SharedHandles::Clear() {
  MutexLock lock(mutex_);
  handles_.clear();
}

v1::TenantInfo InfoOf(int port, const std::string& token) {
  const auto stub = v1::AttentionService::NewStub(server::ConnectTo(port));
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + token);
  v1::GetServerInfoResponse response;
  const grpc::Status status = stub->GetServerInfo(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.tenant();
}

ClientProgram::ClientProgram(int port, std::string tenant, const cpu::CpuEngineOptions& engine, uint64_t seed,
                             SharedHandles& handles, Statistics& statistics)
    : tenant_(std::move(tenant)),
      seed_(seed),
      random_(seed),
      shared_(handles),
      statistics_(statistics),
      engine_(cpu::CreateCpuEngine(engine)),
      stub_(server::ConnectTo(port)) {}

void ClientProgram::Step() {
  ++steps_;
  if (kept_.size() > kMostKept) return Delete();
  const uint64_t choice = random_() % 20;
  if (choice < 10) return Compute();
  if (choice < 14) return Put();
  if (choice < 17) return Get();
  if (choice < 19) return Delete();
  Ask();
}

std::string ClientProgram::Where() const {
  return absl::StrCat("tenant ", tenant_, ", program of seed ", seed_, ", step ", steps_);
}

template <typename Request>
void ClientProgram::Sabotage(std::vector<std::string>& messages) {
  const size_t i = random_() % messages.size();
  const size_t j = random_() % messages.size();
  std::string& message = messages[i];
  const auto at = messages.begin() + static_cast<std::ptrdiff_t>(i);
  switch (random_() % 8) {
    case 0:
      messages.erase(at);
      return;
    case 1:
      messages.insert(at, messages[j]);
      return;
    case 2:
      std::swap(message, messages[j]);
      return;
    case 3:
      messages.insert(at, std::string(random_() % 20, static_cast<char>(random_())));
      return;
    case 4:
      if (!message.empty()) message[random_() % message.size()] = static_cast<char>(random_());
      return;
    case 5:
      message.resize(random_() % (message.size() + 1));
      return;
    default: {
      Request request;
      Random mutations(static_cast<uint32_t>(random_()));
      if (!request.ParseFromString(message)) return;
      for (uint64_t times = 1 + random_() % 3; times > 0; --times) MutateMessage(request, mutations);
      message = request.SerializeAsString();
    }
  }
}

template <typename Request, typename Spec>
ClientProgram::Upload ClientProgram::MakeUpload(const Spec& spec, const std::vector<std::string>& inputs) {
  Upload upload;
  Request request;
  *request.mutable_spec() = spec;
  upload.messages.push_back(request.SerializeAsString());
  // Pieces of all tensors in any order that keeps each tensor's own.
  std::vector<std::vector<std::string>> chunks;
  for (size_t t = 0; t < inputs.size(); ++t) {
    chunks.push_back(Chunks<Request>(static_cast<uint32_t>(t), inputs[t], random_));
    std::reverse(chunks.back().begin(), chunks.back().end());
  }
  const auto done = [](const auto& list) { return list.empty(); };
  while (chunks.erase(std::remove_if(chunks.begin(), chunks.end(), done), chunks.end()), !chunks.empty()) {
    std::vector<std::string>& next = chunks[random_() % chunks.size()];
    upload.messages.push_back(next.back());
    next.pop_back();
  }
  if (OneIn(3)) {
    upload.right = false;
    Sabotage<Request>(upload.messages);
    return upload;
  }
  constexpr Ending kWrongEndings[] = {Ending::kCloseEarly, Ending::kCancelEarly, Ending::kCancelLate, Ending::kDrop,
                                      Ending::kShortDeadline};
  if (OneIn(4)) {
    upload.right = false;
    upload.ending = kWrongEndings[random_() % std::size(kWrongEndings)];
  } else if (std::is_same_v<Request, v1::ComputeRequest> && OneIn(8)) {
    upload.ending = Ending::kStayOpen;
  }
  return upload;
}

ClientProgram::Answer ClientProgram::Send(const std::string& method, const Upload& upload) {
  const bool early =
      upload.ending == Ending::kCloseEarly || upload.ending == Ending::kCancelEarly || upload.ending == Ending::kDrop;
  const size_t messages = early ? random_() % (upload.messages.size() + 1) : upload.messages.size();
  const milliseconds deadline = upload.ending == Ending::kShortDeadline ? milliseconds(1 + random_() % 10)
                                : upload.right                          ? kHang
                                                                        : kWrong;
  Answer answer;
  RawCall call(stub_, method, tenant_, deadline);
  bool open = true;
  for (size_t i = 0; open && i < messages; ++i) open = call.Write(upload.messages[i]);
  if (upload.ending == Ending::kDrop) {
    answer.status = grpc::Status(grpc::StatusCode::CANCELLED, "dropped");
    return answer;
  }
  if (upload.ending == Ending::kCancelEarly) call.Cancel();
  if (open && upload.ending != Ending::kStayOpen) call.HalfClose();
  while (std::optional<std::string> message = call.Read()) {
    answer.messages.push_back(*std::move(message));
    if (upload.ending == Ending::kCancelLate && OneIn(2)) call.Cancel();
  }
  answer.status = call.Finish();
  return answer;
}

ClientProgram::Answer ClientProgram::SendOne(const std::string& method, const std::string& message) {
  Upload upload;
  upload.messages = {message};
  return Send(method, upload);
}

bool ClientProgram::Judge(const std::string& method, const Upload& upload, const grpc::Status& status) {
  const WireError error = Decode(status);
  statistics_.Add(absl::StrCat(method, " ", NameOf(error)));
  if (status.ok()) return true;
  if (error.code == grpc::StatusCode::RESOURCE_EXHAUSTED) {
    EXPECT_TRUE((error.reason == "QUEUE_FULL" || error.reason == "QUOTA") && error.retry_seconds.has_value())
        << Where() << ": " << error.text;
    return false;
  }
  EXPECT_FALSE(upload.right) << Where() << ": " << method << " was right, and ended with " << NameOf(error) << ": "
                             << error.text;
  const bool cancelled =
      upload.ending == Ending::kCancelEarly || upload.ending == Ending::kCancelLate || upload.ending == Ending::kDrop;
  if (error.code == grpc::StatusCode::CANCELLED) {
    EXPECT_TRUE(cancelled) << Where() << ": " << error.text;
  } else if (error.code != grpc::StatusCode::DEADLINE_EXCEEDED) {
    EXPECT_TRUE(!error.reason.empty() && error.domain == "flashbob")
        << Where() << ": " << NameOf(error) << ": " << error.text;
    EXPECT_FALSE(error.retry_seconds.has_value()) << Where() << ": " << error.text;
  }
  return false;
}

void ClientProgram::CheckOutputs(const RandomProblem& problem, const std::vector<std::string>& messages) {
  v1::ComputeResult result;
  std::vector<std::string> outputs;
  int accepted = 0;
  for (const std::string& bytes : messages) {
    v1::ComputeResponse response;
    ASSERT_TRUE(response.ParseFromString(bytes)) << Where();
    if (response.has_accepted() || response.result().has_accepted()) ++accepted;
    if (response.has_result()) {
      result = response.result();
      bool within = result.has_accepted();
      for (const v1::ResultTensor& tensor : result.tensors()) {
        outputs.push_back(tensor.data());
        within = within || !tensor.data().empty();
      }
      EXPECT_TRUE(!within || problem.spec.brief_answer()) << Where() << ": " << result.ShortDebugString();
    }
    if (!response.has_chunk()) continue;
    ASSERT_LT(response.chunk().tensor_index(), outputs.size()) << Where() << ": a chunk before its result";
    std::string& output = outputs[response.chunk().tensor_index()];
    ASSERT_EQ(response.chunk().byte_offset(), static_cast<int64_t>(output.size())) << Where();
    output += response.chunk().data();
  }
  EXPECT_EQ(accepted, 1) << Where();
  const std::vector<std::string> expected = ComputeHere(*engine_, problem);
  ASSERT_EQ(outputs.size(), expected.size()) << Where();
  for (size_t i = 0; i < expected.size(); ++i) {
    const v1::ResultTensor& tensor = result.tensors(static_cast<int>(i));
    const bool kept = problem.spec.outputs(static_cast<int>(i)).has_keep();
    EXPECT_EQ(kept, !tensor.handle().empty()) << Where();
    if (kept) {
      EXPECT_EQ(outputs[i], "") << Where() << ": a kept output's bytes were sent";
      Keep(tensor.handle(), tensor.tensor(), expected[i]);
    } else {
      EXPECT_TRUE(outputs[i] == expected[i])
          << Where() << ": output " << i
          << " is not what the engine computes here: " << problem.spec.ShortDebugString();
    }
  }
}

void ClientProgram::Compute() {
  RandomProblem problem;
  v1::ComputeSpec spec;
  std::vector<std::string> inline_bytes;
  bool all_live = true;
  const auto dead = [&](const Group& group) {
    return std::any_of(group.handles.begin(), group.handles.end(),
                       [&](const std::string& handle) { return kept_.count(handle) == 0; });
  };
  if (!OneIn(8)) groups_.erase(std::remove_if(groups_.begin(), groups_.end(), dead), groups_.end());
  if (!groups_.empty() && OneIn(2)) {
    const Group& group = groups_[random_() % groups_.size()];
    problem = group.problem;
    inline_bytes = problem.inputs;
    spec = problem.spec;
    for (size_t i = 0; i < group.handles.size(); ++i) {
      if (OneIn(3)) continue;
      spec.mutable_inputs(static_cast<int>(i))->set_handle(group.handles[i]);
      inline_bytes[i].clear();
      all_live = all_live && kept_.count(group.handles[i]) > 0;
    }
  } else {
    problem = MakeRandomProblem(random_);
    inline_bytes = problem.inputs;
    spec = problem.spec;
  }
  spec.set_brief_answer(OneIn(2));
  problem.spec.set_brief_answer(spec.brief_answer());
  for (int i = 0; i < spec.outputs_size(); ++i) {
    if (OneIn(4))
      spec.mutable_outputs(i)->mutable_keep()->set_lease_seconds(static_cast<int64_t>(random_() % 2) * 3600);
    *problem.spec.mutable_outputs(i) = spec.outputs(i);
  }
  Upload upload = MakeUpload<v1::ComputeRequest>(spec, inline_bytes);
  const bool right = upload.right;
  if (!all_live) upload.right = false;
  const Answer answer = Send("Compute", upload);
  const bool ok = Judge("Compute", upload, answer.status);
  if (right && !all_live) {
    EXPECT_FALSE(ok) << Where() << ": a handle that was deleted";
  } else if (ok && right) {
    CheckOutputs(problem, answer.messages);
  }
}

void ClientProgram::Put() {
  const RandomProblem problem = MakeRandomProblem(random_);
  v1::PutTensorsSpec spec;
  if (OneIn(2)) spec.set_request_id(absl::StrCat(tenant_, "-", seed_, "-", steps_));
  spec.set_lease_seconds(static_cast<int64_t>(random_() % 2) * 3600);
  for (const v1::InputTensor& input : problem.spec.inputs()) *spec.add_tensors() = input.tensor();
  Upload upload = MakeUpload<v1::PutTensorsRequest>(spec, problem.inputs);
  const Answer answer = Send("PutTensors", upload);
  if (!Judge("PutTensors", upload, answer.status) || !upload.right) return;
  v1::PutTensorsResponse response;
  ASSERT_EQ(answer.messages.size(), 1u) << Where();
  ASSERT_TRUE(response.ParseFromString(answer.messages[0])) << Where();
  ASSERT_EQ(response.handles_size(), spec.tensors_size()) << Where();
  Group group{problem, {response.handles().begin(), response.handles().end()}};
  for (size_t i = 0; i < group.handles.size(); ++i) {
    Keep(group.handles[i], spec.tensors(static_cast<int>(i)), problem.inputs[i]);
  }
  groups_.push_back(std::move(group));
  if (groups_.size() > 4) groups_.erase(groups_.begin());
  if (spec.request_id().empty() || !OneIn(4)) return;
  // The same again, as a client does that missed the answer: nothing is stored twice.
  const Answer again = Send("PutTensors", upload);
  if (!Judge("PutTensors", upload, again.status)) return;
  EXPECT_EQ(again.messages, answer.messages) << Where();
}

void ClientProgram::Get() {
  v1::GetTensorsRequest request;
  bool right = true;
  for (uint64_t i = random_() % 3; i > 0 && !kept_.empty(); --i) request.add_handles(AnyKept());
  if (OneIn(4)) {
    request.add_handles(BadHandle());
    right = false;
  }
  Upload upload;
  upload.messages = {request.SerializeAsString()};
  upload.right = right;
  if (OneIn(8)) {
    upload.right = false;
    upload.ending = OneIn(2) ? Ending::kCancelLate : Ending::kDrop;
  }
  const Answer answer = Send("GetTensors", upload);
  const bool ok = Judge("GetTensors", upload, answer.status);
  EXPECT_TRUE(right || !ok) << Where() << ": a handle that opens nothing";
  if (!ok || answer.messages.empty()) return;
  std::vector<std::string> tensors(static_cast<size_t>(request.handles_size()));
  for (const std::string& bytes : answer.messages) {
    v1::GetTensorsResponse response;
    ASSERT_TRUE(response.ParseFromString(bytes)) << Where();
    if (response.has_header()) {
      ASSERT_EQ(response.header().tensors_size(), request.handles_size()) << Where();
      for (int i = 0; i < request.handles_size(); ++i) {
        EXPECT_EQ(response.header().tensors(i).SerializeAsString(),
                  kept_[request.handles(i)].tensor.SerializeAsString())
            << Where();
      }
    } else {
      ASSERT_LT(response.chunk().tensor_index(), tensors.size()) << Where();
      tensors[response.chunk().tensor_index()] += response.chunk().data();
    }
  }
  for (int i = 0; i < request.handles_size(); ++i) {
    EXPECT_TRUE(tensors[static_cast<size_t>(i)] == kept_[request.handles(i)].bytes)
        << Where() << ": not what was stored";
  }
}

void ClientProgram::Delete() {
  v1::DeleteTensorsRequest request;
  std::set<std::string> live;
  for (uint64_t i = kept_.size() > kMostKept ? kMostKept : random_() % 4; i > 0 && !kept_.empty(); --i) {
    request.add_handles(AnyKept());  // some twice
    live.insert(request.handles(request.handles_size() - 1));
  }
  if (OneIn(3)) request.add_handles(BadHandle());
  Upload upload;
  upload.messages = {request.SerializeAsString()};
  const Answer answer = Send("DeleteTensors", upload);
  if (!Judge("DeleteTensors", upload, answer.status)) return;
  v1::DeleteTensorsResponse response;
  ASSERT_EQ(answer.messages.size(), 1u) << Where();
  ASSERT_TRUE(response.ParseFromString(answer.messages[0])) << Where();
  EXPECT_EQ(response.deleted(), static_cast<int64_t>(live.size())) << Where();
  for (const std::string& handle : live) {
    kept_.erase(handle);
    deleted_.push_back(handle);
  }
  if (deleted_.size() > 20) deleted_.erase(deleted_.begin(), deleted_.begin() + 10);
}

void ClientProgram::Ask() {
  if (OneIn(2)) {  // as a stranger
    RawCall call(stub_, OneIn(2) ? "Compute" : "GetServerInfo", OneIn(2) ? "" : "delta", kHang);
    if (call.Write("") && OneIn(2)) call.HalfClose();
    while (call.Read().has_value()) {
    }
    const WireError error = Decode(call.Finish());
    EXPECT_EQ(error.reason, "CREDENTIALS") << Where() << ": " << error.text;
    statistics_.Add("a stranger CREDENTIALS");
    return;
  }
  if (OneIn(2)) {  // bytes that are no message
    constexpr const char* kMethods[] = {"GetTensors", "DeleteTensors", "GetServerInfo", "PutTensors", "Compute"};
    const std::string method = kMethods[random_() % std::size(kMethods)];
    Upload upload;
    upload.right = false;
    upload.messages = {std::string(1 + random_() % 30, '\xff')};
    EXPECT_FALSE(Judge(method, upload, Send(method, upload).status)) << Where();
    return;
  }
  const Answer answer = SendOne("GetServerInfo", "");
  ASSERT_TRUE(Judge("GetServerInfo", {}, answer.status)) << Where();
  v1::GetServerInfoResponse response;
  ASSERT_TRUE(response.ParseFromString(answer.messages.at(0))) << Where();
  EXPECT_EQ(response.tenant().name(), tenant_) << Where();
  int64_t bytes = 0;
  for (const auto& [handle, kept] : kept_) bytes += static_cast<int64_t>(kept.bytes.size());
  EXPECT_GE(response.tenant().used_bytes(), bytes) << Where();
}

void ClientProgram::Keep(const std::string& handle, const v1::TensorSpec& tensor, const std::string& bytes) {
  const bool added = kept_.emplace(handle, Kept{tensor, bytes}).second;
  EXPECT_TRUE(added) << Where() << ": a handle that was given before";
  shared_.Add(tenant_, handle);
}

std::string ClientProgram::BadHandle() {
  if (!deleted_.empty() && OneIn(3)) return deleted_[random_() % deleted_.size()];
  if (OneIn(2)) {
    if (const auto handle = shared_.OfAnother(tenant_, random_)) return *handle;
  }
  std::string handle = kept_.empty() ? "flashbob.0" : AnyKept();
  handle[random_() % handle.size()] ^= 1;
  return OneIn(2) ? handle : "";
}

std::string ClientProgram::AnyKept() {
  return std::next(kept_.begin(), static_cast<std::ptrdiff_t>(random_() % kept_.size()))->first;
}

}  // namespace flashbob::fuzz
