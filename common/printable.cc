#include "common/printable.h"

#include <cstdint>

namespace penstock {

namespace {

// Whether a character of `bytes` bytes steers a terminal, ends a line (Unicode
// 5.8) or changes the direction of text (UAX #9).
bool IsControl(std::string_view text, size_t bytes) {
  const auto byte = [&](size_t i) -> uint32_t {
    return static_cast<unsigned char>(text[i]);
  };
  if (bytes == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (bytes == 2) {
    const uint32_t code = (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    return code < 0xa0 || code == 0x61c;
  }
  if (bytes != 3) return false;
  const uint32_t code =
      (byte(0) & 0xf) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
  return code == 0x200e || code == 0x200f || code == 0xfeff ||
         (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string clean;
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = Utf8Bytes(text, i);
    if (bytes == 0 || IsControl(text.substr(i), bytes)) {
      clean += '?';
    } else {
      clean += text.substr(i, bytes);
    }
    i += bytes == 0 ? 1 : bytes;
  }
  return clean;
}

std::string PrintableLines(std::string_view text) {
  std::string clean;
  for (;;) {
    const size_t end = text.find('\n');
    clean += Printable(text.substr(0, end));
    if (end == std::string_view::npos) return clean;
    text.remove_prefix(end + 1);
    if (!text.empty()) clean += "\n  | ";
  }
}

size_t Utf8Bytes(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) -> unsigned {
    return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0;
  };
  const auto tail = [&](size_t k) { return byte(k) >> 6 == 2; };
  const unsigned lead = byte(0);
  const unsigned next = byte(1);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf && tail(1)) return 2;
  if (lead >= 0xe0 && lead <= 0xef && tail(1) && tail(2) &&
      (lead != 0xe0 || next >= 0xa0) && (lead != 0xed || next < 0xa0)) {
    return 3;
  }
  if (lead >= 0xf0 && lead <= 0xf4 && tail(1) && tail(2) && tail(3) &&
      (lead != 0xf0 || next >= 0x90) && (lead != 0xf4 || next < 0x90)) {
    return 4;
  }
  return 0;
}

}  // namespace penstock
