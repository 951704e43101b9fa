// How steps of `map` read files, once, when the dataset opens: vocabularies,
// statistics, tokenizers.
#ifndef BROKER_TRANSFORM_MAP_FILE_H_
#define BROKER_TRANSFORM_MAP_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "broker/index/open_progress.h"
#include "broker/index/side_file.h"
#include "common/status.h"

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

  // Whether nobody waits for it any more; it outlives who asks.
  std::function<bool()> cancelled() const {
    return [from = progress] { return from->cancel.load(); };
  }

  // Number of the step that is being compiled.
  uint32_t step = 0;
};

struct MapFileKind {
  const char* name;  // "statistics": for messages and the digest
  uint64_t bytes_max;
  bool stays;  // in memory
};

// Reads a file with the access of opening, and notes it there. Errors: the
// file's; InvalidArgument: it is too large.
StatusOr<std::string> ReadMapFile(const std::string& path,
                                  const MapFileKind& kind, MapOpening* opening);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_MAP_FILE_H_
