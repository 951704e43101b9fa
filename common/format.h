// Formatting of text by {fmt}, whose implementation only format.cc compiles:
// header-only in every file it was half of the build time, and its shared
// library would be one more that libpenstock.so brings into a trainer.
#ifndef COMMON_FORMAT_H_
#define COMMON_FORMAT_H_

#include <fmt/core.h>

#include <cstdio>
#include <string>

namespace penstock {

// As fmt::vformat.
std::string FormatArguments(fmt::string_view format,
                            fmt::format_args arguments);

// As fmt::format: the format string is checked at compile time. What is not a
// number, a string or a pointer is given as text.
template <typename... Args>
std::string Format(fmt::format_string<Args...> format, Args&&... args) {
  return FormatArguments(format, fmt::make_format_args(args...));
}

// Writes to `file`. An error shows in ferror(file).
template <typename... Args>
void Print(std::FILE* file, fmt::format_string<Args...> format,
           Args&&... args) {
  const std::string text = Format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), file);
}

// The elements of a range, each as "{}" shows it.
template <typename Iterator>
std::string JoinText(Iterator first, Iterator last, const char* separator) {
  std::string text;
  for (Iterator it = first; it != last; ++it) {
    if (it != first) text += separator;
    text += Format("{}", *it);
  }
  return text;
}
template <typename Range>
std::string JoinText(const Range& range, const char* separator) {
  return JoinText(std::begin(range), std::end(range), separator);
}

}  // namespace penstock
#endif  // COMMON_FORMAT_H_
