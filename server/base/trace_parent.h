// TraceParent: which trace a call belongs to, as its client says in the header `traceparent` of W3C Trace Context.
#ifndef FLASHBOB_SERVER_BASE_TRACE_PARENT_H_
#define FLASHBOB_SERVER_BASE_TRACE_PARENT_H_

#include <optional>
#include <string>
#include <string_view>

namespace flashbob::server {

struct TraceParent {
  std::string trace_id;   // 32 lower-case hexadecimal digits, not all 0
  std::string parent_id;  // 16, not all 0: the client's span
  bool sampled = false;
};

// Nothing where the header does not hold to the standard, which then says to pass it over. Of versions that are not yet
// known, what version 00 has is read.
std::optional<TraceParent> ParseTraceParent(std::string_view header);

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_BASE_TRACE_PARENT_H_
