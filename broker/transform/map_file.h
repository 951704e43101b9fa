// How steps of `map` read files, once, when the dataset opens: vocabularies,
// statistics.
#ifndef BROKER_TRANSFORM_MAP_FILE_H_
#define BROKER_TRANSFORM_MAP_FILE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "broker/index/open_progress.h"
#include "broker/index/side_file.h"

namespace penstock {

// What steps that read files are given, and what they leave.
struct MapOpening {
  // Whose access they are read with.
  OpenProgress* progress;
  // The records', as Source::fingerprint.
  std::function<std::string()> fingerprint = [] { return std::string(); };

  std::vector<std::shared_ptr<const SideFile>> files;
  std::string warning;  // as Source::warning; several are joined by "; "

  // Adds it, unless it is there: steps may be compiled more than once.
  void Warn(const std::string& text) {
    if (warning.find(text) != warning.npos) return;
    warning += (warning.empty() ? "" : "; ") + text;
  }

  // Number of the step that is being compiled.
  uint32_t step = 0;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_MAP_FILE_H_
