// Text for people: aligned tables, and numbers with units.
#ifndef CLIENT_PRIVATE_BROKER_TABLE_H_
#define CLIENT_PRIVATE_BROKER_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/printable.h"

namespace penstock {

// Columns of a UTF-8 text on a terminal; counts wide characters as one.
size_t Columns(const std::string& text);

// Those of the terminal at fd; otherwise: it is none.
int TerminalColumns(int fd, int otherwise);

// The text with line ends between words, so that lines fit; 0 columns: as it
// is.
std::string WrapText(const std::string& text, int columns);

class Table {
 public:
  // A heading that begins with '>' marks a column of numbers, aligned to the
  // right; the '>' is not shown.
  explicit Table(std::vector<std::string> headings);
  // As many cells as headings. Cells come from other processes: characters that
  // would move the cursor are shown as '?'.
  void AddRow(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  // Columns two spaces apart, no space at the end of a line.
  std::string ToString() const;

 private:
  std::vector<std::string> headings_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

// "a, b and 3 more".
std::string JoinFirst(const std::vector<std::string>& names, size_t most);
std::string FormatCount(uint64_t count);    // 1,234,567
std::string FormatBytes(uint64_t bytes);    // 1.2 GiB
std::string FormatSeconds(double seconds);  // 0.012 s, 3.4 s, 12 min 3 s

}  // namespace penstock
#endif  // CLIENT_PRIVATE_BROKER_TABLE_H_
