#include "server/base/trace_parent.h"

#include <algorithm>

namespace flashbob::server {
namespace {

// "00-" + 32 + "-" + 16 + "-" + 2.
constexpr size_t kSize = 55;

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

}  // namespace

std::optional<TraceParent> ParseTraceParent(std::string_view header) {
  if (header.size() < kSize) return std::nullopt;
  const std::string_view version = header.substr(0, 2);
  const std::string_view trace_id = header.substr(3, 32);
  const std::string_view parent_id = header.substr(36, 16);
  const std::string_view flags = header.substr(53, 2);
  if (header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  if (!IsHex(version) || !IsHex(trace_id) || !IsHex(parent_id) || !IsHex(flags)) return std::nullopt;
  if (version == "ff" || IsZero(trace_id) || IsZero(parent_id)) return std::nullopt;
  // Later versions may say more, after another '-'.
  if (header.size() > kSize && (version == "00" || header[kSize] != '-')) return std::nullopt;
  const char last = flags[1];
  const int low = last <= '9' ? last - '0' : last - 'a' + 10;
  return TraceParent{std::string(trace_id), std::string(parent_id), (low & 1) != 0};
}

}  // namespace flashbob::server
