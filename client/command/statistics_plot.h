// Histograms of statistics, for people.
#ifndef CLIENT_COMMAND_STATISTICS_PLOT_H_
#define CLIENT_COMMAND_STATISTICS_PLOT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/command/contact_sheet.h"

namespace penstock {

// The counts of a feature's histogram, or of its most frequent tokens; none: it
// has neither.
std::vector<uint64_t> CountsToPlot(const nlohmann::ordered_json& feature);

// A line of bars of 1 to 8 eighths, of `columns` characters.
std::string SmallHistogram(const std::vector<uint64_t>& counts, size_t columns);

// A panel for each, from the top: bars on white.
ContactSheet DrawHistograms(const std::vector<std::vector<uint64_t>>& panels);

}  // namespace penstock
#endif  // CLIENT_COMMAND_STATISTICS_PLOT_H_
