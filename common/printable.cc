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

}  // namespace penstock
