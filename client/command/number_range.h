// The numbers that an option takes: what else is given is refused in plain
// words, "wanted 2 to 600, found '1'".
#ifndef CLIENT_COMMAND_NUMBER_RANGE_H_
#define CLIENT_COMMAND_NUMBER_RANGE_H_

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <string>
#include <system_error>

#include "common/format.h"
#include "common/printable.h"

namespace penstock {

// A max of numeric_limits<T>: no end.
template <typename T>
CLI::Validator InRange(T min, T max = std::numeric_limits<T>::max()) {
  const auto check = [min, max](const std::string& text) -> std::string {
    T number{};
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc{} && rest == end && number >= min && number <= max) {
      return "";
    }
    return Format(
        "wanted {} {}, found '{}'", min,
        max == std::numeric_limits<T>::max() ? "or more" : Format("to {}", max),
        Printable(text));
  };
  return CLI::Validator(check, "");
}

}  // namespace penstock
#endif  // CLIENT_COMMAND_NUMBER_RANGE_H_
