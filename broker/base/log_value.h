// Values of messages that are more than a text. Apart from log.h, because that
// has all messages in it, and what keys of jobs include is compiled often.
#ifndef BROKER_BASE_LOG_VALUE_H_
#define BROKER_BASE_LOG_VALUE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace penstock {

// A job as the value of a message: its name, and as fields what else it is.
struct LogJob {
  std::string_view name;
  std::string_view dataset;
  uint32_t uid = 0;
  std::optional<uint32_t> consumer;
};
struct LogUser {
  uint32_t uid = 0;
};

}  // namespace penstock
#endif  // BROKER_BASE_LOG_VALUE_H_
