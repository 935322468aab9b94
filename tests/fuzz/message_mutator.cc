#include "tests/fuzz/message_mutator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace flashbob::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Enums of the service have up to 27 values; a few more are unknown ones.
constexpr int kEnumValues = 30;
constexpr size_t kLongestText = 160;

double InterestingDouble(Random& random) {
  constexpr double kValues[] = {0.0, -0.0, 1.0, -1.0, 0.125, 1e-320, 1e300, -1e300};
  switch (random() % 12) {
    case 0:
      return std::numeric_limits<double>::infinity();
    case 1:
      return -std::numeric_limits<double>::infinity();
    case 2:
      return std::nan("");
    default:
      return kValues[random() % std::size(kValues)];
  }
}

// Valid UTF-8, as text fields demand: only ASCII is put in.
std::string ChangedText(std::string text, Random& random, bool any_byte) {
  const auto letter = [&] { return static_cast<char>(any_byte ? random() % 256 : 1 + random() % 127); };
  switch (random() % 4) {
    case 0:
      text.resize(random() % kLongestText, letter());
      break;
    case 1:
      text.insert(text.size() - (text.empty() ? 0 : random() % text.size()), 1, letter());
      break;
    case 2:
      text.clear();
      break;
    default:
      if (!text.empty()) text[random() % text.size()] = letter();
  }
  return any_byte || std::all_of(text.begin(), text.end(), [](char c) { return c > 0; }) ? text : std::string("a");
}

void SetScalar(Message& message, const FieldDescriptor& field, Random& random) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(&message, &field, static_cast<int32_t>(InterestingInteger(random)));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.SetInt64(&message, &field, InterestingInteger(random));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetUInt32(&message, &field, static_cast<uint32_t>(InterestingInteger(random)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.SetUInt64(&message, &field, static_cast<uint64_t>(InterestingInteger(random)));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.SetDouble(&message, &field, InterestingDouble(random));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.SetFloat(&message, &field, static_cast<float>(InterestingDouble(random)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(&message, &field, !reflection.GetBool(message, &field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.SetEnumValue(&message, &field, static_cast<int>(random() % kEnumValues));
    case FieldDescriptor::CPPTYPE_STRING: {
      const bool bytes = field.type() == FieldDescriptor::TYPE_BYTES;
      return reflection.SetString(&message, &field, ChangedText(reflection.GetString(message, &field), random, bytes));
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return;
  }
}

void AddEntry(Message& message, const FieldDescriptor& field, Random& random) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.AddInt64(&message, &field, InterestingInteger(random));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.AddString(&message, &field, ChangedText("", random, false));
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      // Like one that is there already, or a new one.
      const int size = reflection.FieldSize(message, &field);
      Message* const added = reflection.AddMessage(&message, &field);
      if (size > 0 && random() % 4 != 0) {
        added->CopyFrom(reflection.GetRepeatedMessage(message, &field, static_cast<int>(random() % size)));
      }
      return MutateMessage(*added, random);
    }
    default:
      return;  // the service has no lists of other kinds
  }
}

void MutateList(Message& message, const FieldDescriptor& field, Random& random) {
  const Reflection& reflection = *message.GetReflection();
  const int size = reflection.FieldSize(message, &field);
  const auto any = [&] { return static_cast<int>(random() % static_cast<unsigned>(size)); };
  const unsigned choice = random() % 8;
  if (size == 0 || choice == 0) return AddEntry(message, field, random);
  if (choice == 1) {
    reflection.SwapElements(&message, &field, any(), size - 1);
    return reflection.RemoveLast(&message, &field);
  }
  if (choice == 2) return reflection.SwapElements(&message, &field, any(), any());
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.SetRepeatedInt64(&message, &field, any(), InterestingInteger(random));
    case FieldDescriptor::CPPTYPE_STRING: {
      const int i = any();
      return reflection.SetRepeatedString(&message, &field, i,
                                          ChangedText(reflection.GetRepeatedString(message, &field, i), random, false));
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MutateMessage(*reflection.MutableRepeatedMessage(&message, &field, any()), random);
    default:
      return;
  }
}

}  // namespace

int64_t InterestingInteger(Random& random) {
  const auto near = static_cast<int64_t>(random() % 3) - 1;
  switch (random() % 8) {
    case 0:
      return static_cast<int64_t>(uint64_t{1} << (random() % 63)) + near;
    case 1:
      return std::numeric_limits<int64_t>::max() - static_cast<int64_t>(random() % 2);
    case 2:
      return -static_cast<int64_t>(random() % 3);
    default:
      return static_cast<int64_t>(random() % 9);
  }
}

void MutateMessage(Message& message, Random& random) {
  const auto* const descriptor = message.GetDescriptor();
  if (descriptor->field_count() == 0) return;
  const auto& field = *descriptor->field(static_cast<int>(random() % static_cast<unsigned>(descriptor->field_count())));
  const Reflection& reflection = *message.GetReflection();
  if (field.is_repeated()) return MutateList(message, field, random);
  if (random() % 16 == 0) return reflection.ClearField(&message, &field);
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return SetScalar(message, field, random);
  // A field of a oneof that is not the one that is set would throw the other away: seldom.
  if (field.containing_oneof() != nullptr && !reflection.HasField(message, &field) && random() % 8 != 0) {
    const auto* const set = reflection.GetOneofFieldDescriptor(message, field.containing_oneof());
    if (set != nullptr && set->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      return MutateMessage(*reflection.MutableMessage(&message, set), random);
    }
  }
  MutateMessage(*reflection.MutableMessage(&message, &field), random);
}

}  // namespace flashbob::fuzz
