#include "client/cli/printable.h"

#include <cstdint>

namespace flashbob::cli {
namespace {

uint8_t ByteAt(std::string_view text, size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; }

// Bytes of the character that begins there; 0 where they are no UTF-8 or a control character.
size_t PrintableBytes(std::string_view text, size_t i) {
  const uint8_t first = ByteAt(text, i);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (size_t k = 1; k < bytes; ++k) {
    if ((ByteAt(text, i + k) & 0xc0) != 0x80) return 0;
  }
  const uint8_t second = ByteAt(text, i + 1);
  const bool control = first == 0xc2 && second < 0xa0;
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool surrogate_or_beyond = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  return control || overlong || surrogate_or_beyond ? 0 : bytes;
}

}  // namespace

std::string Printable(std::string_view text, bool lines) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string printable;
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = lines && text[i] == '\n' ? 1 : PrintableBytes(text, i);
    if (bytes > 0) {
      printable.append(text, i, bytes);
      i += bytes;
      continue;
    }
    const uint8_t byte = ByteAt(text, i++);
    printable += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return printable;
}

}  // namespace flashbob::cli
