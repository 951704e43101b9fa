#define FMT_HEADER_ONLY
#include "common/format.h"

#include <fmt/format.h>

namespace penstock {

std::string FormatArguments(fmt::string_view format,
                            fmt::format_args arguments) {
  return fmt::vformat(format, arguments);
}

}  // namespace penstock
