#include "client/command/statistics_plot.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr int64_t kPanelWidth = 640;
constexpr int64_t kPanelHeight = 120;
constexpr int64_t kGap = 10;
constexpr size_t kBarsMax = 64;
constexpr uint8_t kWhite = 255;
constexpr uint8_t kBar = 70;
constexpr uint8_t kFrame = 200;

}  // namespace

std::vector<uint64_t> CountsToPlot(const nlohmann::ordered_json& feature) {
  std::vector<uint64_t> counts;
  if (feature.contains("histogram")) {
    counts = feature["histogram"]["counts"].get<std::vector<uint64_t>>();
  } else if (feature.contains("vocabulary")) {
    for (const auto& each : feature["vocabulary"]) {
      if (counts.size() == kBarsMax) break;
      counts.push_back(each[1].get<uint64_t>());
    }
  }
  return counts;
}

std::string SmallHistogram(const std::vector<uint64_t>& counts,
                           size_t columns) {
  static constexpr const char* kEighths[] = {" ", "▁", "▂", "▃", "▄",
                                             "▅", "▆", "▇", "█"};
  std::vector<uint64_t> bars(std::min(columns, counts.size()));
  for (size_t i = 0; i < counts.size(); ++i) {
    bars[i * bars.size() / counts.size()] += counts[i];
  }
  const uint64_t most =
      bars.empty() ? 0 : *std::max_element(bars.begin(), bars.end());
  std::string text;
  for (const uint64_t bar : bars) {
    // Something is seen of what is there at all.
    const double part =
        most == 0 ? 0
                  : 8.0 * static_cast<double>(bar) / static_cast<double>(most);
    text +=
        kEighths[bar == 0 ? 0 : std::max<size_t>(1, static_cast<size_t>(part))];
  }
  return text;
}

ContactSheet DrawHistograms(const std::vector<std::vector<uint64_t>>& panels) {
  ContactSheet sheet;
  sheet.width = kPanelWidth + 2 * kGap;
  sheet.height =
      static_cast<int64_t>(panels.size()) * (kPanelHeight + kGap) + kGap;
  sheet.channels = 1;
  sheet.rows = panels.size();
  sheet.pixels.assign(static_cast<size_t>(sheet.width * sheet.height), kWhite);
  const auto fill = [&](int64_t x, int64_t end, int64_t y, int64_t bottom,
                        uint8_t shade) {
    for (int64_t row = y; row < bottom; ++row) {
      std::fill_n(sheet.pixels.begin() + row * sheet.width + x, end - x, shade);
    }
  };
  for (size_t i = 0; i < panels.size(); ++i) {
    const std::vector<uint64_t>& counts = panels[i];
    const int64_t top = static_cast<int64_t>(i) * (kPanelHeight + kGap) + kGap;
    const int64_t bottom = top + kPanelHeight;
    fill(kGap, kGap + kPanelWidth, bottom - 1, bottom, kFrame);
    if (counts.empty()) continue;
    const uint64_t most =
        std::max<uint64_t>(1, *std::max_element(counts.begin(), counts.end()));
    const auto bars = static_cast<int64_t>(counts.size());
    for (int64_t bar = 0; bar < bars; ++bar) {
      const uint64_t count = counts[static_cast<size_t>(bar)];
      if (count == 0) continue;
      const auto height =
          std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(count) /
                                                    static_cast<double>(most) *
                                                    (kPanelHeight - 1)));
      const int64_t x = kGap + bar * kPanelWidth / bars;
      const int64_t end = kGap + (bar + 1) * kPanelWidth / bars;
      fill(x, std::max(x + 1, end - 1), bottom - 1 - height, bottom - 1, kBar);
    }
  }
  return sheet;
}

}  // namespace penstock
