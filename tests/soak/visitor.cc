#include "tests/soak/visitor.h"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/testing/compute_client.h"
#include "tests/server/testing/tcp_relay.h"
#include "tests/soak/bad_input.h"

namespace flashbob::soak {
namespace {

using client::CallOptions;
using client::Client;
using client::Progress;
using client::StoredTensor;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Far more than any call needs at the load of the soak: one that takes longer hangs.
constexpr auto kTimeout = seconds(120);
constexpr int kActionsPerConnection = 40;

}  // namespace

// The shares add up to 100.
const Visitor::Action Visitor::kActions[] = {
    {"compute", 40, &Visitor::ComputeAndCompare},
    {"cancel", 12, &Visitor::Cancel},
    {"deadline", 10, &Visitor::HurryTooMuch},
    {"slow", 3, &Visitor::Dawdle},
    {"stored", 10, &Visitor::KeepTensors},
    {"left tensors", 2, &Visitor::LeaveTensors},
    {"reset network", 3, &Visitor::LoseTheConnection},
    {"bad input", 12, &Visitor::SendNonsense},
    {"info", 6, &Visitor::Ask},
    {"dropped call", 2, &Visitor::LeaveInTheMiddle},
};

Visitor::Visitor(const Surroundings& around, std::string token, uint64_t seed)
    : around_(around), token_(std::move(token)), random_(seed) {}

std::chrono::duration<double> Visitor::at_it() const { return steady_clock::now() - since_.load(); }

void Visitor::Run() {
  for (int done = 0; !around_.stopping; ++done) {
    if (done % kActionsPerConnection == 0) Connect();
    auto share = static_cast<int>(random_() % 100);
    const Action* action = std::begin(kActions);
    while (share >= action->share) share -= (action++)->share;
    since_ = steady_clock::now();
    action_ = action->name;
    (this->*action->act)();
  }
  action_ = "done";
}

void Visitor::Connect() {
  since_ = steady_clock::now();
  action_ = "connecting";
  client_ = Client::Connect({.server = absl::StrCat("127.0.0.1:", around_.port), .token = token_}).value();
  stub_ = v1::AttentionService::NewStub(server::ConnectTo(around_.port));
}

bool Visitor::Judge(const absl::Status& status, std::initializer_list<absl::StatusCode> allowed) {
  const std::string reason = client::ReasonOf(status);
  const bool full = reason == "QUEUE_FULL" || reason == "QUOTA";
  if (status.ok() || full || std::find(allowed.begin(), allowed.end(), status.code()) != allowed.end()) {
    around_.tally.Count(action_.load(), OutcomeOf(status));
  } else {
    around_.tally.Fault(action_.load(), absl::StrCat(OutcomeOf(status), ": ", status.message()));
  }
  return status.ok();
}

bool Visitor::Judge(const Entry& entry, const absl::StatusOr<client::Result>& result,
                    std::initializer_list<absl::StatusCode> allowed) {
  if (!Judge(result.status(), allowed)) return false;
  const std::string wrong = entry.Check(*result);
  if (!wrong.empty()) around_.tally.Fault(action_.load(), wrong);
  around_.tally.CountChecked(entry.bytes);
  return true;
}

void Visitor::ComputeAndCompare() {
  const Entry& entry = around_.catalogue.Draw(random_);
  Judge(entry, client_->Compute(entry.request, {.timeout = kTimeout}));
}

void Visitor::Cancel() {
  const Entry& entry = around_.catalogue.Draw(random_);
  client::Cancellation cancellation;
  const auto phase = static_cast<Progress::Phase>(random_() % 4);
  uint64_t let_pass = random_() % 3;
  CallOptions call{.timeout = kTimeout, .cancellation = cancellation};
  call.progress = [&](const Progress& progress) {
    if (progress.phase == phase && let_pass-- == 0) cancellation.Cancel();
  };
  Judge(entry, client_->Compute(entry.request, call), {absl::StatusCode::kCancelled});
}

void Visitor::HurryTooMuch() {
  const Entry& entry = around_.catalogue.Draw(random_);
  const auto timeout = std::chrono::microseconds(1000 + random_() % 200000);
  Judge(entry, client_->Compute(entry.request, {.timeout = timeout}), {absl::StatusCode::kDeadlineExceeded});
}

// Writes and reads slowly: what flow control and the limit of an idle client are for.
void Visitor::Dawdle() {
  const Entry& entry = around_.catalogue.DrawLarge(random_);
  CallOptions call{.timeout = kTimeout};
  const auto until = steady_clock::now() + seconds(4);
  call.progress = [&](const Progress&) {
    if (steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(random_() % 150));
  };
  Judge(entry, client_->Compute(entry.request, call));
}

void Visitor::KeepTensors() {
  const Entry& entry = around_.catalogue.Draw(random_);
  const auto stored = client_->PutTensors(entry.request.inputs, seconds(300), {.timeout = kTimeout});
  if (!Judge(stored.status())) return;
  client::Request request = entry.request;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    request.inputs[i].tensor = {};
    request.inputs[i].stored = (*stored)[i];
  }
  const bool keep = random_() % 2 == 0;
  for (client::WantedOutput& output : request.outputs) {
    if (keep) output.keep = seconds(300);
  }
  std::vector<StoredTensor> all = *stored;
  const auto result = client_->Compute(request, {.timeout = kTimeout});
  if (Judge(entry, result) && keep) {
    std::vector<StoredTensor> outputs;
    for (const client::NamedOutput& output : result->outputs) outputs.push_back(*output.stored);
    all.insert(all.end(), outputs.begin(), outputs.end());
    const auto tensors = client_->GetTensors(outputs, {.timeout = kTimeout});
    if (Judge(tensors.status())) {
      for (size_t i = 0; i < tensors->size(); ++i) {
        const std::string wrong = entry.Check(result->outputs[i].name, (*tensors)[i]);
        if (!wrong.empty()) around_.tally.Fault(action_.load(), wrong);
      }
    }
  }
  const auto deleted = client_->DeleteTensors(all, {.timeout = kTimeout});
  if (Judge(deleted.status()) && *deleted != static_cast<int64_t>(all.size())) {
    around_.tally.Fault(action_.load(), absl::StrCat(*deleted, " of ", all.size(), " tensors were there to delete"));
  }
  const absl::Status gone = client_->Compute(request, {.timeout = kTimeout}).status();
  if (client::ReasonOf(gone) != "HANDLE") {
    around_.tally.Fault(action_.load(), absl::StrCat("a deleted handle: ", gone.ToString()));
  }
}

// Nobody deletes them: their leases do.
void Visitor::LeaveTensors() {
  const Entry& entry = around_.catalogue.Draw(random_);
  Judge(client_->PutTensors(entry.request.inputs, seconds(1 + random_() % 3), {.timeout = kTimeout}).status());
}

void Visitor::LoseTheConnection() {
  const Entry& entry = around_.catalogue.Draw(random_);
  server::TcpRelay relay(around_.port);
  // Refusals for what is full take tries too: enough of them for the last one not to be the one that is reset.
  Client client = Client::Connect({.server = absl::StrCat("127.0.0.1:", relay.port()),
                                   .token = token_,
                                   .retry = {.max_attempts = 60, .max_backoff = milliseconds(500)}})
                      .value();
  const auto way = random_() % 2 == 0 ? server::TcpRelay::Way::kToServer : server::TcpRelay::Way::kToClient;
  relay.ResetAfter(way, static_cast<int64_t>(random_() % static_cast<uint64_t>(entry.bytes + 100)));
  Judge(entry, client.Compute(entry.request, {.timeout = kTimeout}));
}

void Visitor::SendNonsense() {
  const BadCall call = CallBadly(*stub_, token_, random_);
  if (call.fault.empty()) {
    around_.tally.Count(action_.load(), call.outcome);
  } else {
    around_.tally.Fault(absl::StrCat(action_.load(), ", ", call.name), call.fault);
  }
}

void Visitor::Ask() {
  Judge(client_->GetServerInfo({.timeout = kTimeout}).status());
  Judge(client_->CheckHealth({.timeout = kTimeout}));
}

// The call is dropped, and with it, often, the only connection.
void Visitor::LeaveInTheMiddle() {
  const Entry& entry = around_.catalogue.DrawLarge(random_);
  {
    const client::Call call = client_->ComputeAsync(entry.request, {.timeout = kTimeout});
    call.WaitFor(milliseconds(random_() % 100));
  }
  around_.tally.Count(action_.load(), "left");
  if (random_() % 2 == 0) Connect();
}

}  // namespace flashbob::soak
