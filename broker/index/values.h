// Values at bytes, and numbers in text.
#ifndef BROKER_INDEX_VALUES_H_
#define BROKER_INDEX_VALUES_H_

#include <charconv>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace penstock {

// The value at bytes of any alignment, in the host's order.
template <typename T>
T ValueAt(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// As std::from_chars, of all of the text. False: it is no such number.
template <typename T, typename... Base>
bool ParseNumber(std::string_view text, T* number, Base... base) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] =
      std::from_chars(text.data(), end, *number, base...);
  return error == std::errc{} && rest == end;
}

}  // namespace penstock
#endif  // BROKER_INDEX_VALUES_H_
