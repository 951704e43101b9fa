// The files that a spec names: paths, globs ("shards/*.tar"), braces
// ("train-{000..146}.tar", "{a,b}.txt"), or a file that lists them. Or objects
// of a store, by addresses of the same forms ("s3://bucket/train-*.tar").
//
// A spec keeps what was written; the files are found when the source opens.
#ifndef BROKER_INDEX_FILE_PATTERNS_H_
#define BROKER_INDEX_FILE_PATTERNS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "broker/declare/value_type.h"
#include "broker/io/file_access.h"
#include "common/status.h"

namespace penstock {

inline constexpr size_t kFilesMax = size_t{1} << 18;

struct FilePatterns {
  std::vector<std::string> patterns;  // absolute, or addresses
  std::string list;                   // instead: a file with one path a line
  bool operator==(const FilePatterns&) const = default;

  // The files in the order of patterns or of the list; those of a glob in byte
  // order. A path that exists is taken as it is, whatever characters it has.
  // NotFound names a glob that no file matches, or a missing folder; else only
  // globs are looked up. InvalidArgument: more than kFilesMax files, or a list
  // that is none.
  StatusOr<std::vector<std::string>> Expand(const FileAccess& access) const;
};

ValueType<FilePatterns> Files();
inline constexpr char kFilesText[] =
    "where they are: paths, globs, braces or a list";

}  // namespace penstock
#endif  // BROKER_INDEX_FILE_PATTERNS_H_
