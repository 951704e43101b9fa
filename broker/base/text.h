// Formats values for people.
#ifndef BROKER_BASE_TEXT_H_
#define BROKER_BASE_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// "3.2 GiB"
std::string BytesText(uint64_t bytes);
// "rank 3", "ranks 0, 3 and 4"; after the first eight: "... and 12 more".
// replicas: processes that are one rank, as in RankName.
std::string RanksText(const std::vector<uint32_t>& ranks,
                      uint32_t replicas = 1);
// The ranks of these, each once.
std::vector<uint32_t> RanksOf(std::vector<uint32_t> numbers, uint32_t replicas);
// Lines of an error with foreign text that are safe to print: of a long one
// its first line and its end, where a traceback has the exception. At most 300
// bytes of it.
std::string ShortError(std::string_view message);
// Describes a job that no rank is attached to.
std::string AllGoneText(const std::vector<uint32_t>& waits_for, double kept_s,
                        uint32_t replicas = 1);

}  // namespace penstock
#endif  // BROKER_BASE_TEXT_H_
