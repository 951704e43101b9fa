#include "client/private_broker/table.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>

#include "common/format.h"

namespace penstock {

size_t Columns(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

int TerminalColumns(int fd, int otherwise) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 ? otherwise
                                                               : size.ws_col;
}

std::string WrapText(const std::string& text, int columns) {
  if (columns == 0) return text;
  std::string wrapped;
  size_t used = 0;
  for (const std::string& word : SplitText(text, ' ')) {
    const size_t width = Columns(word);
    if (used > 0 && used + 1 + width > static_cast<size_t>(columns)) {
      wrapped += '\n';
      used = 0;
    } else if (used > 0) {
      wrapped += ' ';
      ++used;
    }
    wrapped += word;
    used += width;
  }
  return wrapped;
}

Table::Table(std::vector<std::string> headings) {
  for (std::string& heading : headings) {
    right_.push_back(heading.starts_with('>'));
    headings_.push_back(right_.back() ? heading.substr(1) : heading);
  }
}

void Table::AddRow(std::vector<std::string> cells) {
  cells.resize(headings_.size());
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<size_t> widths;
  for (size_t column = 0; column < headings_.size(); ++column) {
    widths.push_back(Columns(headings_[column]));
    for (const auto& row : rows_) {
      widths.back() = std::max(widths.back(), Columns(row[column]));
    }
  }
  std::string text;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t column = 0; column < cells.size(); ++column) {
      const std::string gap(widths[column] - Columns(cells[column]), ' ');
      if (column > 0) line += "  ";
      line += right_[column] ? gap + cells[column] : cells[column] + gap;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line(headings_);
  for (const auto& row : rows_) add_line(row);
  return text;
}

std::string JoinFirst(const std::vector<std::string>& names, size_t most) {
  const size_t shown = std::min(names.size(), most);
  return JoinText(names.begin(), names.begin() + shown, ", ") +
         (shown < names.size() ? Format(" and {} more", names.size() - shown)
                               : "");
}

std::string FormatCount(uint64_t count) {
  const std::string digits = std::to_string(count);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string FormatBytes(uint64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? Format("{} B", bytes)
                   : Format("{:.1f} {}", value, units[unit]);
}

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 1) return Format("{:.3f} s", seconds);
  if (seconds < 60) return Format("{:.1f} s", seconds);
  if (seconds > 1e12) return "?";
  const uint64_t whole = static_cast<uint64_t>(std::llround(seconds));
  if (whole < 3600) return Format("{} min {} s", whole / 60, whole % 60);
  return Format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace penstock
