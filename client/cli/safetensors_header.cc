#include "client/cli/safetensors_header.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace flashbob::safetensors {
namespace {

constexpr char kMetadataKey[] = "__metadata__";

struct DTypeRow {
  DType dtype;
  const char* name;
  size_t bytes;
};
constexpr DTypeRow kDTypes[] = {
    {DType::kBool, "BOOL", 1},      {DType::kU8, "U8", 1},   {DType::kI8, "I8", 1},   {DType::kF8E4M3, "F8_E4M3", 1},
    {DType::kF8E5M2, "F8_E5M2", 1}, {DType::kU16, "U16", 2}, {DType::kI16, "I16", 2}, {DType::kBF16, "BF16", 2},
    {DType::kF16, "F16", 2},        {DType::kU32, "U32", 4}, {DType::kI32, "I32", 4}, {DType::kF32, "F32", 4},
    {DType::kU64, "U64", 8},        {DType::kI64, "I64", 8}, {DType::kF64, "F64", 8},
};

const DTypeRow& RowOf(DType dtype) {
  return *std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const DTypeRow& row) { return row.dtype == dtype; });
}

std::string NamesOfDTypes() {
  return absl::StrJoin(kDTypes, ", ", [](std::string* out, const DTypeRow& row) { absl::StrAppend(out, row.name); });
}

std::string ToText(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

// Takes the parser's events and keeps nothing but entries and metadata, so that a hostile header costs no more memory
// than its own size. Every method that returns false has set `error_` and ends the parse.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  Header& header() { return header_; }
  const std::string& error() const { return error_; }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kOutside:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        if (key_ == kMetadataKey) {
          place_ = Place::kMetadata;
        } else {
          place_ = Place::kEntry;
          header_.entries.push_back(Entry{.name = key_, .dtype = DType::kF32, .shape = {}, .begin = 0, .end = 0});
          seen_ = {};
          offsets_.clear();
        }
        return true;
      default:
        return Refuse("an object");
    }
  }

  bool end_object() override {
    if (place_ == Place::kEntry) {
      if (!seen_.dtype || !seen_.shape || !seen_.data_offsets) {
        return Fail(absl::StrCat("tensor ", entry().name, " lacks ",
                                 !seen_.dtype   ? "dtype"
                                 : !seen_.shape ? "shape"
                                                : "data_offsets"));
      }
      if (offsets_.size() != 2) {
        return Fail(absl::StrCat("tensor ", entry().name, " has ", offsets_.size(), " data_offsets; it must have 2"));
      }
      entry().begin = offsets_[0];
      entry().end = offsets_[1];
    }
    place_ = place_ == Place::kTop ? Place::kOutside : Place::kTop;
    return true;
  }

  bool key(std::string& text) override {
    switch (place_) {
      case Place::kTop:
        if (!names_.insert(text).second) return Fail(absl::StrCat("key ", text, " appears twice"));
        key_ = text;
        return true;
      case Place::kMetadata:
        if (header_.metadata.count(text) > 0) return Fail(absl::StrCat("metadata key ", text, " appears twice"));
        metadata_key_ = text;
        return true;
      default: {
        bool* seen = text == "dtype"          ? &seen_.dtype
                     : text == "shape"        ? &seen_.shape
                     : text == "data_offsets" ? &seen_.data_offsets
                                              : nullptr;
        if (seen == nullptr) return Fail(absl::StrCat("tensor ", entry().name, " has an unknown key ", text));
        if (*seen) return Fail(absl::StrCat("tensor ", entry().name, " has ", text, " twice"));
        *seen = true;
        field_ = text;
        return true;
      }
    }
  }

  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[metadata_key_] = text;
      return true;
    }
    if (place_ != Place::kEntry || field_ != "dtype") return Refuse("a string");
    const std::optional<DType> dtype = ParseDType(text);
    if (!dtype.has_value()) {
      return Fail(absl::StrCat("tensor ", entry().name, " has dtype ", text, "; known are ", NamesOfDTypes()));
    }
    entry().dtype = *dtype;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kEntry || field_ == "dtype") return Refuse("an array");
    place_ = Place::kList;
    return true;
  }

  bool end_array() override {
    place_ = Place::kEntry;
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::kList) return Refuse("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(absl::StrCat("tensor ", entry().name, " has ", value, " in ", field_, ", more than 63 bits"));
    }
    if (field_ == "shape") {
      entry().shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    offsets_.push_back(value);
    return offsets_.size() <= 2 || Fail(absl::StrCat("tensor ", entry().name, " has more than 2 data_offsets"));
  }

  // The parser calls this for negative numbers only.
  bool number_integer(int64_t value) override {
    if (place_ != Place::kList) return Refuse("a number");
    return Fail(absl::StrCat("tensor ", entry().name, " has ", value, " in ", field_, "; it must not be negative"));
  }

  bool number_float(double, const std::string& text) override {
    if (place_ != Place::kList) return Refuse("a number");
    return Fail(absl::StrCat("tensor ", entry().name, " has ", text, " in ", field_, "; it must be a whole number"));
  }

  bool null() override { return Refuse("null"); }
  bool boolean(bool) override { return Refuse("a boolean"); }
  bool binary(nlohmann::json::binary_t&) override { return Refuse("bytes"); }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return Fail(absl::StrCat("the header is no JSON at byte ", position));
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kEntry, kList };
  struct Seen {
    bool dtype = false;
    bool shape = false;
    bool data_offsets = false;
  };

  Entry& entry() { return header_.entries.back(); }

  bool Fail(std::string error) {
    if (error_.empty()) error_ = std::move(error);
    return false;
  }

  // A value of the wrong kind for where it stands.
  bool Refuse(const char* value) {
    switch (place_) {
      case Place::kOutside:
        return Fail(absl::StrCat("the header is ", value, "; it must be an object"));
      case Place::kTop:
        return Fail(absl::StrCat("key ", key_, " holds ", value, "; it must hold an object"));
      case Place::kMetadata:
        return Fail(absl::StrCat("metadata ", metadata_key_, " is ", value, "; it must be a string"));
      case Place::kEntry:
        return Fail(absl::StrCat("tensor ", entry().name, " has ", value, " as ", field_));
      case Place::kList:
        return Fail(absl::StrCat("tensor ", entry().name, " has ", value, " in ", field_));
    }
    return Fail("the header is malformed");
  }

  Header header_;
  std::string error_;
  Place place_ = Place::kOutside;
  std::set<std::string> names_;
  std::string key_;           // of the top object
  std::string metadata_key_;  // of __metadata__
  std::string field_;         // of an entry
  Seen seen_;
  std::vector<uint64_t> offsets_;
};

// The entries, sorted, cover [0, data_bytes) without gap or overlap, each with the bytes that its shape needs.
absl::Status CheckPlaces(const std::vector<Entry>& entries, uint64_t data_bytes) {
  uint64_t covered = 0;
  for (const Entry& entry : entries) {
    const std::optional<uint64_t> bytes = NumBytes(entry.dtype, entry.shape);
    if (!bytes.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", entry.name, " has shape ", ToText(entry.shape), ", more bytes than fit in 63 bits"));
    }
    const std::string place = absl::StrCat("tensor ", entry.name, " lies at [", entry.begin, ", ", entry.end, ")");
    if (entry.end < entry.begin || entry.end - entry.begin != *bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, "; ", Name(entry.dtype), " ", ToText(entry.shape), " needs ", *bytes, " bytes"));
    }
    if (entry.end > data_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(place, "; the file has ", data_bytes, " bytes of tensors"));
    }
    if (entry.begin != covered) {
      return absl::InvalidArgumentError(absl::StrCat(place, ", the tensor before it ends at ", covered,
                                                     entry.begin < covered ? ": they overlap" : ": a gap"));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors end at ", covered, "; the file has ", data_bytes, " bytes of tensors"));
  }
  return absl::OkStatus();
}

}  // namespace

const char* Name(DType dtype) { return RowOf(dtype).name; }

std::optional<DType> ParseDType(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (name == row.name) return row.dtype;
  }
  return std::nullopt;
}

size_t SizeOf(DType dtype) { return RowOf(dtype).bytes; }

std::optional<uint64_t> NumBytes(DType dtype, const std::vector<int64_t>& shape) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  uint64_t bytes = SizeOf(dtype);
  bool empty = false;
  for (int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    empty = empty || extent == 0;
  }
  if (empty) return 0;
  for (int64_t extent : shape) {
    if (static_cast<uint64_t>(extent) > kMax / bytes) return std::nullopt;
    bytes *= static_cast<uint64_t>(extent);
  }
  return bytes;
}

absl::StatusOr<Header> ParseHeader(std::string_view json, uint64_t data_bytes) {
  HeaderHandler handler;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &handler)) {
    return absl::InvalidArgumentError(handler.error());
  }
  Header header = std::move(handler.header());
  std::sort(header.entries.begin(), header.entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  const absl::Status places = CheckPlaces(header.entries, data_bytes);
  if (!places.ok()) return places;
  return header;
}

}  // namespace flashbob::safetensors
