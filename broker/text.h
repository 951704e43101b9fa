// Figures as people read them.
#ifndef BROKER_TEXT_H_
#define BROKER_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

// "3.2 GiB"
std::string BytesText(uint64_t bytes);
// "0, 3, 4", the first eight of them: "... and 12 more".
std::string NumbersText(const std::vector<uint32_t>& numbers);

}  // namespace penstock
#endif  // BROKER_TEXT_H_
