#include "common/printable.h"

namespace penstock {

std::string Printable(std::string_view text) {
  std::string clean(text);
  for (char& c : clean) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) c = '?';
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
