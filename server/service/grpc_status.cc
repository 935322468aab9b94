#include "server/service/grpc_status.h"

#include <string>

#include "absl/strings/cord.h"
#include "flashbob/v1/error_details.pb.h"

namespace flashbob::server {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string text(status.message().data(), status.message().size());
  if (text.size() > kMaxErrorText) {
    text.resize(kMaxErrorText);
    text += " ... (cut)";
  }
  // absl's codes are gRPC's by definition.
  const auto code = static_cast<grpc::StatusCode>(status.code());
  v1::StatusDetails details;
  status.ForEachPayload([&](const auto& type_url, const absl::Cord& payload) {
    google::protobuf::Any* detail = details.add_details();
    detail->set_type_url(std::string(type_url.data(), type_url.size()));
    detail->set_value(std::string(payload));
  });
  if (details.details().empty()) return grpc::Status(code, text);
  details.set_code(code);
  details.set_message(text);
  return grpc::Status(code, text, details.SerializeAsString());
}

}  // namespace flashbob::server
