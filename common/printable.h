// Makes foreign text (names of files and jobs, tracebacks) safe to print: it
// cannot control a terminal or forge log lines.
#ifndef COMMON_PRINTABLE_H_
#define COMMON_PRINTABLE_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace penstock {

// Replaces by '?': control characters, those that end lines or change the
// direction of text, and bytes that are not UTF-8.
std::string Printable(std::string_view text);

// Bytes of the UTF-8 character at text[i], 0 if invalid (RFC 3629: neither
// overlong forms nor surrogates).
size_t Utf8Bytes(std::string_view text, size_t i);

// Likewise, but keeps line ends: each following line is indented behind '|'.
std::string PrintableLines(std::string_view text);

}  // namespace penstock
#endif  // COMMON_PRINTABLE_H_
