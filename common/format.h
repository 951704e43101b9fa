// Text formatting with {fmt}. Only format.cc compiles its implementation:
// header-only, it took half of the build time in total, and as a shared library
// it would be one more that libpenstock.so loads into a trainer.
#ifndef COMMON_FORMAT_H_
#define COMMON_FORMAT_H_

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

// Like fmt::vformat.
std::string FormatArguments(fmt::string_view format,
                            fmt::format_args arguments);

// Like fmt::format, with the format string checked at compile time. Arguments
// are numbers, strings and pointers; convert anything else to text first.
template <typename... Args>
std::string Format(fmt::format_string<Args...> format, Args&&... args) {
  return FormatArguments(format, fmt::make_format_args(args...));
}

// Writes to `file`. Check ferror(file) for errors.
template <typename... Args>
void Print(std::FILE* file, fmt::format_string<Args...> format,
           Args&&... args) {
  const std::string text = Format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), file);
}

// Joins what is shown of the elements of a range, formatted as "{}".
template <typename Iterator, typename Shown = std::identity>
std::string JoinText(Iterator first, Iterator last, const char* separator,
                     Shown shown = {}) {
  std::string text;
  for (Iterator it = first; it != last; ++it) {
    if (it != first) text += separator;
    text += Format("{}", std::invoke(shown, *it));
  }
  return text;
}
template <typename Range, typename Shown = std::identity>
std::string JoinText(const Range& range, const char* separator,
                     Shown shown = {}) {
  return JoinText(std::begin(range), std::end(range), separator, shown);
}

// The pieces of a text between separators; behind one at its end there is none.
inline std::vector<std::string> SplitText(std::string_view text,
                                          char separator) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, text.find(separator));
    pieces.emplace_back(piece);
    text.remove_prefix(std::min(piece.size() + 1, text.size()));
  }
  return pieces;
}

}  // namespace penstock
#endif  // COMMON_FORMAT_H_
