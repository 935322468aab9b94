#include "tests/soak/bad_input.h"

#include "absl/strings/str_cat.h"
#include "tests/server/testing/compute_client.h"

namespace flashbob::soak {
namespace {

using server::ComputeStream;
using server::ForwardSpec;

v1::ComputeSpec Spec() { return ForwardSpec(2, 40, 16); }

struct Kind {
  const char* name;
  grpc::StatusCode code;
  const char* reason;
  void (*send)(ComputeStream& stream, std::mt19937_64& random);
};

const Kind kKinds[] = {
    {"other heads", grpc::StatusCode::INVALID_ARGUMENT, "BAD_SPEC",
     [](ComputeStream& stream, std::mt19937_64&) {
       v1::ComputeSpec spec = Spec();
       spec.mutable_inputs(0)->mutable_tensor()->set_shape(1, 3);
       stream.Send(spec);
     }},
    {"shape that overflows", grpc::StatusCode::INVALID_ARGUMENT, "BAD_SPEC",
     [](ComputeStream& stream, std::mt19937_64&) {
       v1::ComputeSpec spec = Spec();
       for (auto& input : *spec.mutable_inputs()) input.mutable_tensor()->set_shape(2, int64_t{1} << 61);
       stream.Send(spec);
     }},
    {"input that is missing", grpc::StatusCode::INVALID_ARGUMENT, "BAD_SPEC",
     [](ComputeStream& stream, std::mt19937_64& random) {
       v1::ComputeSpec spec = Spec();
       spec.mutable_inputs()->DeleteSubrange(static_cast<int>(random() % 3), 1);
       stream.Send(spec);
     }},
    {"head dim of 300", grpc::StatusCode::UNIMPLEMENTED, "UNSUPPORTED_PROBLEM",
     [](ComputeStream& stream, std::mt19937_64&) { stream.Send(ForwardSpec(2, 40, 300)); }},
    {"more than the server has", grpc::StatusCode::FAILED_PRECONDITION, "TOO_LARGE",
     [](ComputeStream& stream, std::mt19937_64&) { stream.Send(ForwardSpec(64, 1 << 20, 128)); }},
    {"chunk before the spec", grpc::StatusCode::INVALID_ARGUMENT, "BAD_SPEC",
     [](ComputeStream& stream, std::mt19937_64& random) { stream.Send(0, 0, std::string(1 + random() % 5000, 'x')); }},
    {"second spec", grpc::StatusCode::INVALID_ARGUMENT, "BAD_SPEC",
     [](ComputeStream& stream, std::mt19937_64&) {
       stream.Send(Spec());
       stream.Send(Spec());
     }},
    {"chunk that leaves a gap", grpc::StatusCode::INVALID_ARGUMENT, "BAD_CHUNK",
     [](ComputeStream& stream, std::mt19937_64& random) {
       stream.Send(Spec());
       stream.Send(1, static_cast<int64_t>(1 + random() % 1000), "abcd");
     }},
    {"chunk past the end", grpc::StatusCode::INVALID_ARGUMENT, "BAD_CHUNK",
     [](ComputeStream& stream, std::mt19937_64& random) {
       stream.Send(Spec());
       stream.Send(2, 0, std::string(2 * 40 * 16 * 4 + 1 + random() % 1000, 'x'));
     }},
    {"chunk of no tensor", grpc::StatusCode::INVALID_ARGUMENT, "BAD_CHUNK",
     [](ComputeStream& stream, std::mt19937_64& random) {
       stream.Send(Spec());
       stream.Send(static_cast<uint32_t>(3 + random() % 1000), 0, "abcd");
     }},
    {"upload that ends early", grpc::StatusCode::INVALID_ARGUMENT, "BAD_CHUNK",
     [](ComputeStream& stream, std::mt19937_64& random) {
       stream.Send(Spec());
       stream.Send(0, 0, std::string(random() % 5120, 'x'));
       stream.CloseSending();
     }},
    {"no spec", grpc::StatusCode::INVALID_ARGUMENT, "BAD_SPEC",
     [](ComputeStream& stream, std::mt19937_64&) { stream.CloseSending(); }},
    {"unknown handle", grpc::StatusCode::NOT_FOUND, "HANDLE",
     [](ComputeStream& stream, std::mt19937_64& random) {
       v1::ComputeSpec spec = Spec();
       spec.mutable_inputs(0)->set_handle(absl::StrCat("flashbob/", random(), random()));
       stream.Send(spec);
     }},
    {"message over the limit", grpc::StatusCode::RESOURCE_EXHAUSTED, "",
     [](ComputeStream& stream, std::mt19937_64&) {
       stream.Send(Spec());
       stream.Send(0, 0, std::string(6 << 20, 'x'));
     }},
    {"cancelled upload", grpc::StatusCode::CANCELLED, "",
     [](ComputeStream& stream, std::mt19937_64& random) {
       stream.Send(Spec());
       stream.Send(0, 0, std::string(random() % 5120, 'x'));
       stream.Cancel();
     }},
    {"wrong token", grpc::StatusCode::UNAUTHENTICATED, "CREDENTIALS",
     [](ComputeStream& stream, std::mt19937_64&) { stream.Send(Spec()); }},
};

}  // namespace

BadCall CallBadly(v1::AttentionService::Stub& stub, const std::string& token, std::mt19937_64& random) {
  const Kind& kind = kKinds[random() % std::size(kKinds)];
  const bool stranger = kind.code == grpc::StatusCode::UNAUTHENTICATED;
  ComputeStream stream(stub, stranger ? "nobody-token" : token);
  kind.send(stream, random);
  const server::WireError error = server::Decode(stream.Finish());
  BadCall call;
  call.name = kind.name;
  call.outcome = absl::StrCat("code ", static_cast<int>(error.code), " ", error.reason);
  const bool as_promised = error.code == kind.code && error.reason == kind.reason;
  const bool turned_away = error.reason == "QUEUE_FULL" || error.reason == "QUOTA";
  if (!as_promised && !turned_away) call.fault = absl::StrCat("ended with ", call.outcome, ": ", error.text);
  return call;
}

}  // namespace flashbob::soak
