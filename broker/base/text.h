// Formats values for people.
#ifndef BROKER_BASE_TEXT_H_
#define BROKER_BASE_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

// "3.2 GiB"
std::string BytesText(uint64_t bytes);
// "rank 3", "ranks 0, 3 and 4"; after the first eight: "... and 12 more".
std::string RanksText(const std::vector<uint32_t>& ranks);
// Describes a job that no rank is attached to.
std::string AllGoneText(const std::vector<uint32_t>& waits_for, double kept_s);

}  // namespace penstock
#endif  // BROKER_BASE_TEXT_H_
