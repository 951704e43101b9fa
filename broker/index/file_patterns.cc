#include "broker/index/file_patterns.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "broker/index/data_file.h"
#include "broker/index/index_cache.h"
#include "broker/index/values.h"
#include "broker/io/stores.h"
#include "common/text_file.h"

namespace penstock {
namespace {

constexpr size_t kListBytesMax = size_t{64} << 20;
// A spec's size is the true bound.
constexpr size_t kPatternsMax = 16384;
constexpr char kGlobCharacters[] = "*?[";

Status TooManyError(const std::string& what) {
  return InvalidArgumentError("{}: more than {} files", what, kFilesMax);
}

// ---- braces

// The alternatives of what is between braces: "a,b,c" or "000..146". nullopt:
// neither, so the braces are part of a name, as in a shell. Empty: too many.
std::optional<std::vector<std::string>> Alternatives(std::string_view inside) {
  std::vector<std::string> all;
  if (inside.find(',') != std::string_view::npos) {
    for (;;) {
      const size_t comma = inside.find(',');
      all.emplace_back(inside.substr(0, comma));
      if (comma == std::string_view::npos) return all;
      inside.remove_prefix(comma + 1);
    }
  }
  const size_t dots = inside.find("..");
  if (dots == std::string_view::npos) return std::nullopt;
  const std::string_view from = inside.substr(0, dots);
  const std::string_view to = inside.substr(dots + 2);
  uint64_t first = 0;
  uint64_t last = 0;
  if (!ParseNumber(from, &first) || !ParseNumber(to, &last)) {
    return std::nullopt;
  }
  const uint64_t steps = first < last ? last - first : first - last;
  if (steps >= kFilesMax) return all;
  const bool padded =
      (from.size() > 1 && from[0] == '0') || (to.size() > 1 && to[0] == '0');
  const size_t width = padded ? std::max(from.size(), to.size()) : 0;
  for (uint64_t i = 0; i <= steps; ++i) {
    all.push_back(
        Format("{:0{}}", first < last ? first + i : first - i, width));
  }
  return all;
}

// Every choice of each pair of braces, the last one varying fastest. False:
// more than kFilesMax.
bool ExpandBraces(const std::string& pattern, std::vector<std::string>* out) {
  *out = {""};
  size_t at = 0;
  while (at < pattern.size()) {
    const size_t open = pattern.find('{', at);
    const size_t close =
        open == pattern.npos ? pattern.npos : pattern.find('}', open);
    if (close == pattern.npos) break;
    const auto inside = Alternatives(
        std::string_view(pattern).substr(open + 1, close - open - 1));
    const size_t literal_end = inside ? open : close + 1;
    for (std::string& each : *out) {
      each.append(pattern, at, literal_end - at);
    }
    at = close + 1;
    if (!inside) continue;
    if (inside->empty() || out->size() > kFilesMax / inside->size()) {
      return false;
    }
    std::vector<std::string> longer;
    longer.reserve(out->size() * inside->size());
    for (const std::string& each : *out) {
      for (const std::string& one : *inside) longer.push_back(each + one);
    }
    *out = std::move(longer);
  }
  for (std::string& each : *out) each.append(pattern, at);
  return true;
}

// ---- globs

struct Globbed {
  glob_t found{};
  ~Globbed() { globfree(&found); }
};

// The search on this thread: glob's functions get nothing else.
struct Search {
  const FileAccess& access;
  Status error;  // the last
};
thread_local Search* search = nullptr;

// A folder that cannot be read ends the search; a component that is no folder
// is no match.
int EndsSearch(const char*, int error) {
  return error != ENOENT && error != ENOTDIR;
}

int ErrnoOf(const Status& status) {
  search->error = status;
  return status.code() == StatusCode::kNotFound ? ENOENT : EACCES;
}

void* OpenFolder(const char* path) {
  StatusOr<Fd> fd = search->access.Open(path, O_DIRECTORY);
  if (!fd.ok()) {
    errno = ErrnoOf(fd.status());
    return nullptr;
  }
  DIR* const dir = fdopendir(fd->get());
  if (dir != nullptr) fd->Release();
  return dir;
}

int StatEntry(const char* path, struct stat* st, int flags) {
  const StatusOr<Fd> fd = search->access.Open(path, O_PATH | flags);
  if (fd.ok()) return fstat(fd->get(), st);
  errno = ErrnoOf(fd.status());
  return -1;
}

Status ExpandGlob(const std::string& pattern, const FileAccess& access,
                  std::vector<std::string>* out) {
  // The folder above the first component with such a character.
  const std::string folder = pattern.substr(
      0, pattern.rfind('/', pattern.find_first_of(kGlobCharacters)) + 1);
  PENSTOCK_RETURN_IF_ERROR(access.Open(folder, O_PATH).status());
  Search here{access, OkStatus()};
  search = &here;
  Globbed globbed;
  globbed.found.gl_opendir = OpenFolder;
  globbed.found.gl_readdir = [](void* dir) {
    return readdir(static_cast<DIR*>(dir));
  };
  globbed.found.gl_closedir = [](void* dir) {
    closedir(static_cast<DIR*>(dir));
  };
  globbed.found.gl_stat = [](const char* path, struct stat* st) {
    return StatEntry(path, st, 0);
  };
  globbed.found.gl_lstat = [](const char* path, struct stat* st) {
    return StatEntry(path, st, O_NOFOLLOW);
  };
  // GLOB_NOSORT: its order would be the locale's.
  const int result = glob(pattern.c_str(), GLOB_NOSORT | GLOB_ALTDIRFUNC,
                          EndsSearch, &globbed.found);
  search = nullptr;
  if (result == GLOB_NOMATCH) {
    return NotFoundError("{}: no file matches it", pattern);
  }
  if (result != 0) {
    return result == GLOB_NOSPACE
               ? ResourceExhaustedError("{}: no memory for its files", pattern)
               : here.error.Prepend(pattern);
  }
  const size_t begin = out->size();
  out->insert(out->end(), globbed.found.gl_pathv,
              globbed.found.gl_pathv + globbed.found.gl_pathc);
  std::sort(out->begin() + static_cast<ptrdiff_t>(begin), out->end());
  return OkStatus();
}

// As a pattern: '?' begins the query of an address of the web.
bool IsGlob(const std::string& path) {
  return path.find_first_of(
             path.starts_with("http") ? "*[" : kGlobCharacters) != path.npos;
}

// Indexes that lie beside other matches are none of the data.
void RemoveIndexes(size_t begin, std::vector<std::string>* files) {
  const auto first = files->begin() + static_cast<ptrdiff_t>(begin);
  const std::vector<std::string> sorted(first, files->end());
  files->erase(std::remove_if(first, files->end(),
                              [&](const std::string& file) {
                                const std::string_view of = FileOfIndex(file);
                                return !of.empty() &&
                                       std::binary_search(sorted.begin(),
                                                          sorted.end(), of);
                              }),
               files->end());
}

Status ExpandPattern(const std::string& pattern, const FileAccess& access,
                     std::vector<std::string>* out) {
  if (pattern.find_first_of("{*?[") == pattern.npos ||
      (!IsAddress(pattern) && access.Open(pattern, O_PATH).ok())) {
    out->push_back(pattern);
    return OkStatus();
  }
  std::vector<std::string> choices;
  if (!ExpandBraces(pattern, &choices)) return TooManyError(pattern);
  for (std::string& choice : choices) {
    const size_t begin = out->size();
    if (!IsGlob(choice)) {
      out->push_back(std::move(choice));
    } else if (IsAddress(choice)) {
      PENSTOCK_ASSIGN_OR_RETURN(Stores* const stores, access.StoresOf(choice));
      static const std::atomic<bool> cancel{false};
      PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> urls,
                                stores->List(choice, cancel));
      out->insert(out->end(), urls.begin(), urls.end());
      RemoveIndexes(begin, out);
    } else {
      PENSTOCK_RETURN_IF_ERROR(ExpandGlob(choice, access, out));
      RemoveIndexes(begin, out);
    }
    if (out->size() > kFilesMax) return TooManyError(pattern);
  }
  return OkStatus();
}

// ---- lists

StatusOr<std::string> TextOf(const std::string& list,
                             const FileAccess& access) {
  if (!IsAddress(list)) {
    PENSTOCK_ASSIGN_OR_RETURN(const Fd fd, access.Open(list, O_NONBLOCK));
    return ReadTextFile("list of files", list, fd, kListBytesMax);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const DataFile file, DataFile::Open(list, access));
  if (file.bytes() > kListBytesMax) {
    return InvalidArgumentError("{}: {} bytes; a list of files has at most {}",
                                list, file.bytes(), kListBytesMax);
  }
  std::string text(file.bytes(), '\0');
  const OpenProgress progress;
  PENSTOCK_RETURN_IF_ERROR(
      file.Read(0, std::as_writable_bytes(std::span(text)), &progress)
          .status());
  return text;
}

// A line of it, as a path or an address.
std::string FileOf(const std::string& list, std::string line) {
  if (IsAddress(line) || line.starts_with('/')) return line;
  const std::string folder = list.substr(0, list.rfind('/') + 1);
  if (IsAddress(list)) return folder + line;
  return std::filesystem::path(folder + line).lexically_normal().string();
}

StatusOr<std::vector<std::string>> ReadList(const std::string& list,
                                            const FileAccess& access) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, TextOf(list, access));
  std::vector<std::string> files;
  uint64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    if (line.find('\0') != line.npos) {
      return InvalidArgumentError(
          "{}, line {}: a NUL byte; wanted a list with one path a line", list,
          number);
    }
    if (files.size() == kFilesMax) return TooManyError(list);
    files.push_back(FileOf(list, std::move(line)));
  }
  if (files.empty()) {
    return InvalidArgumentError("{}: wanted one path a line, found none", list);
  }
  return files;
}

}  // namespace

StatusOr<std::vector<std::string>> FilePatterns::Expand(
    const FileAccess& access) const {
  if (!list.empty()) return ReadList(list, access);
  std::vector<std::string> files;
  for (const std::string& pattern : patterns) {
    PENSTOCK_RETURN_IF_ERROR(ExpandPattern(pattern, access, &files));
    if (files.size() > kFilesMax) return TooManyError(pattern);
  }
  return files;
}

ValueType<FilePatterns> Files() {
  const ValueType<std::vector<std::string>> names =
      OneOrList(PathOrAddress(), "a path or an address", kPatternsMax);
  return {Format("a path, pattern or address, a list of 1 to {}, or {{list: a "
                 "file with "
                 "one path a line}}",
                 kPatternsMax),
          [names](const YamlValue& value, std::string_view wanted,
                  FilePatterns* out) {
            if (!value.IsMapping()) {
              return names.read(value, wanted, &out->patterns);
            }
            PENSTOCK_RETURN_IF_ERROR(value.CheckMapping({"list"}, wanted));
            return value.Required("list").PathOrAddress(&out->list);
          },
          [names](const FilePatterns& value, nlohmann::ordered_json* out) {
            if (value.list.empty()) return names.write(value.patterns, out);
            WriteText(value.list, WriteMember("list", out));
          }};
}

}  // namespace penstock
