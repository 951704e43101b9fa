// Text from elsewhere (names of files and jobs, tracebacks), shown so that it
// commands no terminal and forges no line of a log.
#ifndef COMMON_PRINTABLE_H_
#define COMMON_PRINTABLE_H_

#include <string>
#include <string_view>

namespace penstock {

// Control characters as '?'.
std::string Printable(std::string_view text);

// The same but for the ends of lines: what follows one is set in, behind '|'.
std::string PrintableLines(std::string_view text);

}  // namespace penstock
#endif  // COMMON_PRINTABLE_H_
