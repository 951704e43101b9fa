#include "client/command/recipe_check.h"

#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "client/private_broker/interrupt.h"
#include "client/private_broker/table.h"
#include "common/fd.h"
#include "common/quantity.h"
#include "common/text_file.h"

namespace penstock {
namespace {

constexpr uint64_t kNumberedMax = uint64_t{1} << 18;
constexpr uint64_t kFoldersMax = uint64_t{1} << 18;
constexpr uint64_t kFilesAtOnce = 1024;  // between looks at signals
constexpr std::string_view kPicture = ".JPEG";

using FileFormat = RecipeFiles::Format;

uint32_t BigEndian(const unsigned char* at) {
  return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 |
         at[3];
}

uint64_t LittleEndian(const unsigned char* at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= uint64_t{at[i]} << (8 * i);
  return value;
}

// The names that "{0000..1023}" in it stands for.
std::vector<std::string> Range(const std::string& name) {
  const size_t open = name.find('{');
  const size_t dots = name.find("..", open);
  const size_t close = name.find('}', dots);
  if (close == name.npos) return {name};
  const std::string from = name.substr(open + 1, dots - open - 1);
  const std::string to = name.substr(dots + 2, close - dots - 2);
  std::vector<std::string> names;
  for (uint64_t i = std::stoull(from); i <= std::stoull(to); ++i) {
    names.push_back(name.substr(0, open) + Format("{:0{}}", i, from.size()) +
                    name.substr(close + 1));
  }
  return names;
}

// A text of digits at the beginning of *text, which it leaves.
std::optional<uint64_t> TakeNumber(std::string_view* text, size_t* digits) {
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc()) return std::nullopt;
  *digits = static_cast<size_t>(end - text->data());
  text->remove_prefix(*digits);
  return value;
}

bool TakeText(std::string_view* text, std::string_view expected) {
  if (text->substr(0, expected.size()) != expected) return false;
  text->remove_prefix(expected.size());
  return true;
}

std::string Replaced(std::string text, const std::string& by) {
  return text.replace(text.find('*'), 1, by);
}

class Folder {
 public:
  explicit Folder(const std::string& path) : dir_(opendir(path.c_str())) {
    if (dir_ == nullptr) error_ = errno;
  }
  int error() const { return error_; }
  int fd() const { return dirfd(dir_.get()); }
  // nullptr: no more, or error() says why.
  const dirent* Next() {
    while (error_ == 0) {
      errno = 0;
      const dirent* const entry = readdir(dir_.get());
      if (entry == nullptr) {
        error_ = errno;
        return nullptr;
      }
      if (entry->d_name[0] != '.') return entry;
    }
    return nullptr;
  }

 private:
  struct Close {
    void operator()(DIR* dir) const { closedir(dir); }
  };
  std::unique_ptr<DIR, Close> dir_;
  int error_ = 0;
};

bool IsPicture(std::string_view name) {
  return name.size() > kPicture.size() &&
         strncasecmp(name.data() + name.size() - kPicture.size(),
                     kPicture.data(), kPicture.size()) == 0;
}

class Checker {
 public:
  Checker(std::string folder,
          const std::function<void(uint64_t done, uint64_t total)>& progress)
      : folder_(std::move(folder)), progress_(progress) {}

  Status Check(const RecipeFiles& files) {
    split_ = files.split;
    if (!files.numbered.empty()) return CheckNumbered(files);
    if (!files.classes.empty()) return CheckClasses(files);
    if (!files.list.empty()) return CheckList(files);
    const std::vector<std::string> names = Range(files.file[0]);
    total_ += names.size();
    for (const std::string& name : names) {
      PENSTOCK_RETURN_IF_ERROR(Looked());
      std::vector<std::string> choices = files.file;
      choices[0] = name;
      CheckFile(choices, files);
    }
    return OkStatus();
  }

  RecipeCheck& result() { return result_; }

 private:
  // Called once for each file.
  Status Looked() {
    progress_(done_, std::max(done_, total_));
    return done_++ % kFilesAtOnce == 0 ? CheckInterrupt() : OkStatus();
  }

  void Problem(const std::string& file, std::string found) {
    ++result_.problem_count;
    if (result_.problems.size() < RecipeCheck::kProblemsMax) {
      result_.problems.push_back({split_, file, std::move(found)});
    }
    std::vector<std::string>& damaged = result_.damaged;
    if (std::find(damaged.begin(), damaged.end(), split_) == damaged.end()) {
      damaged.push_back(split_);
    }
  }
  void Problem(const std::string& file, int error) {
    Problem(file, Format("cannot be read: {}", strerror(error)));
  }

  // wrong: "": nothing is.
  void FoundOr(const std::string& file, const struct stat& st,
               const std::string& wrong) {
    if (!wrong.empty()) return Problem(file, wrong);
    ++result_.files;
    result_.bytes += static_cast<uint64_t>(st.st_size);
  }

  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  bool IsThere(const std::string& name) const {
    std::error_code error;
    return std::filesystem::exists(Path(name), error);
  }

  void Missing(const std::string& name) {
    for (const char* packed : {".gz", ".zst", ".xz", ".bz2"}) {
      if (IsThere(name + packed)) {
        Problem(name, Format("is packed, as {}{}; unpack it", name, packed));
        return;
      }
    }
    Problem(name, "is missing");
  }

  // What is wrong with a file by no more than its size; "": nothing.
  static std::string WrongAtSight(const struct stat& st) {
    return !S_ISREG(st.st_mode) ? "is no file"
           : st.st_size == 0    ? "is empty"
                                : "";
  }

  // Checks a file that has to be there.
  void CheckThere(const std::string& name) {
    struct stat st {};
    if (stat(Path(name).c_str(), &st) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) {
        Missing(name);
      } else {
        Problem(name, errno);
      }
    } else {
      FoundOr(name, st, WrongAtSight(st));
    }
  }

  void CheckFile(const std::vector<std::string>& choices,
                 const RecipeFiles& files) {
    const auto name =
        std::find_if(choices.begin(), choices.end(),
                     [this](const std::string& each) { return IsThere(each); });
    if (name == choices.end()) return CheckThere(choices[0]);
    // A pipe would wait for a writer.
    const Fd fd(open(Path(*name).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat st {};
    if (!fd || fstat(fd.get(), &st) != 0) return Problem(*name, errno);
    std::string wrong = WrongAtSight(st);
    if (wrong.empty()) {
      wrong = Wrong(fd, static_cast<uint64_t>(st.st_size), files);
    }
    FoundOr(*name, st, wrong);
  }

  // What is wrong with a file; "": nothing.
  static std::string Wrong(const Fd& fd, uint64_t size,
                           const RecipeFiles& files) {
    constexpr std::string_view kPointer = "version https://git-lfs";
    unsigned char head[kPointer.size()];
    const auto read = [&fd](void* to, size_t bytes, uint64_t at) {
      return pread(fd.get(), to, bytes, static_cast<off_t>(at)) ==
             static_cast<ssize_t>(bytes);
    };
    errno = 0;
    if (size >= sizeof(head) && !read(head, sizeof(head), 0)) {
      return errno == 0 ? "changes while it is looked at"
                        : Format("cannot be read: {}", strerror(errno));
    }
    if (size >= sizeof(head) &&
        std::memcmp(head, kPointer.data(), sizeof(head)) == 0) {
      return "is a pointer of Git LFS, not the file: `git lfs pull`";
    }
    if (files.bytes && size != *files.bytes) {
      return WrongSize(size, *files.bytes);
    }
    if (!files.idx.empty()) return WrongIdx(fd, size, files.idx);
    switch (files.format) {
      case FileFormat::kAny:
        return "";
      case FileFormat::kTfrecord: {
        // A record is its length, a checksum of that, its bytes and theirs.
        constexpr uint64_t kFrame = 16;
        unsigned char length[8];
        const bool whole = size >= kFrame && read(length, sizeof(length), 0) &&
                           LittleEndian(length, 8) <= size - kFrame;
        return whole ? ""
                     : "has no whole first record: cut off, packed or no "
                       "TFRecord file";
      }
      case FileFormat::kTar: {
        constexpr uint64_t kBlock = 512;
        unsigned char end[2 * kBlock];
        if (size % kBlock != 0 || size < 3 * kBlock ||
            !read(end, sizeof(end), size - sizeof(end)) ||
            std::any_of(std::begin(end), std::end(end),
                        [](unsigned char c) { return c != 0; })) {
          return "does not end as a tar file: cut off";
        }
        return "";
      }
      case FileFormat::kJsonLines: {
        unsigned char last = 0;
        if (head[0] == 0x1f && size >= sizeof(head)) {
          return "is packed (gzip), though its name does not say so; unpack it";
        }
        if (!read(&last, 1, size - 1) || (last != '\n' && last != '}')) {
          return "ends within a line: cut off";
        }
        return "";
      }
      case FileFormat::kTokenShard: {
        constexpr uint64_t kHeader = 1024;
        constexpr uint64_t kMagic = 20240520;
        unsigned char fields[12];
        if (size < kHeader || !read(fields, sizeof(fields), 0) ||
            LittleEndian(fields, 4) != kMagic ||
            LittleEndian(fields + 4, 4) != 1) {
          return "does not begin with the header of such files (20240520, 1)";
        }
        return WrongSize(size, kHeader + 2 * LittleEndian(fields + 8, 4));
      }
    }
    return "";
  }

  static std::string WrongSize(uint64_t size, uint64_t wanted) {
    if (size == wanted) return "";
    return Format("has {} bytes instead of {}{}", FormatCount(size),
                  FormatCount(wanted), size < wanted ? ": cut off" : "");
  }

  // Plain or gzip: what its header says, and its unpacked size.
  static std::string WrongIdx(const Fd& fd, uint64_t size,
                              const std::vector<uint32_t>& dimensions) {
    constexpr uint32_t kMagicOfBytes = 0x800;
    std::vector<unsigned char> header(4 + 4 * dimensions.size());
    const int copy = fcntl(fd.get(), F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return Format("cannot be read: {}", strerror(errno));
    const gzFile file = gzdopen(copy, "rb");
    if (file == nullptr) {
      close(copy);
      return "cannot be read: no memory";
    }
    const int got =
        gzread(file, header.data(), static_cast<unsigned>(header.size()));
    const bool plain = gzdirect(file) != 0;
    gzclose_r(file);
    if (got != static_cast<int>(header.size()) ||
        BigEndian(header.data()) != kMagicOfBytes + dimensions.size()) {
      return "is no IDX file of bytes, or is cut off";
    }
    uint64_t wanted = header.size();
    uint64_t values = 1;
    for (size_t i = 0; i < dimensions.size(); ++i) {
      const uint32_t found = BigEndian(header.data() + 4 + 4 * i);
      if (found != dimensions[i]) {
        return Format("says {} where the official file has {}",
                      FormatCount(found), FormatCount(dimensions[i]));
      }
      values *= found;
    }
    wanted += values;
    if (plain) return WrongSize(size, wanted);
    // The last four bytes of gzip are the size of what is packed.
    unsigned char end[4];
    if (pread(fd.get(), end, sizeof(end), static_cast<off_t>(size - 4)) !=
            static_cast<ssize_t>(sizeof(end)) ||
        LittleEndian(end, 4) != static_cast<uint32_t>(wanted)) {
      return "does not end as its gzip file should: cut off";
    }
    return "";
  }

  Status CheckNumbered(const RecipeFiles& files) {
    const std::string& pattern = files.numbered;
    const size_t star = pattern.find('*');
    const size_t second = pattern.find('*', star + 1);
    const bool counted = second != pattern.npos;
    const std::string_view before = std::string_view(pattern).substr(0, star);
    const std::string_view middle = std::string_view(pattern).substr(
        star + 1, counted ? second - star - 1 : pattern.npos);
    const std::string_view after =
        counted ? std::string_view(pattern).substr(second + 1) : "";
    // For each "number of all" as it is written: numbers and their names.
    std::map<std::string, std::map<uint64_t, std::string>> sets;
    uint64_t found = 0;
    std::string packed;
    size_t digits = 0;
    Folder folder(folder_);
    while (const dirent* entry = folder.Next()) {
      std::string_view rest = entry->d_name;
      if (!TakeText(&rest, before)) continue;
      size_t width = 0;
      const std::optional<uint64_t> number = TakeNumber(&rest, &width);
      if (!number || !TakeText(&rest, middle)) continue;
      const std::string_view of = rest;
      size_t of_digits = 0;
      if (counted &&
          (!TakeNumber(&rest, &of_digits) || !TakeText(&rest, after))) {
        continue;
      }
      if (rest == ".gz") packed = entry->d_name;
      if (!rest.empty()) continue;
      if (++found > kNumberedMax) {
        Problem(pattern, Format("are more than {} files", kNumberedMax));
        return OkStatus();
      }
      digits = width;
      sets[std::string(of.substr(0, of_digits))][*number] = entry->d_name;
    }
    if (folder.error() != 0) {
      return ErrnoError(folder.error(), "cannot read the folder");
    }
    if (sets.empty()) {
      Problem(pattern, packed.empty()
                           ? std::string("is missing: no such file")
                           : Format("are packed, as {}; unpack them", packed));
      return OkStatus();
    }
    if (sets.size() > 1) {
      std::string counts;
      for (const auto& [of, names] : sets) {
        counts += (counts.empty() ? "" : " and of ") + of;
      }
      Problem(pattern, Format("files of {} lie side by side: keep one set, "
                              "the spec takes all of them",
                              counts));
    }
    total_ += found;
    for (const auto& [of, names] : sets) {
      uint64_t end = names.rbegin()->first + 1;
      if (counted) {
        std::string_view text = of;
        size_t width = 0;
        end = TakeNumber(&text, &width).value_or(0);
        if (end == 0 || end > kNumberedMax || names.rbegin()->first >= end) {
          Problem(names.rbegin()->second,
                  "has a number that does not fit the number of files in it");
          continue;
        }
      }
      for (uint64_t i = files.first; i < end && i < files.first + kNumberedMax;
           ++i) {
        const auto name = names.find(i);
        if (name == names.end()) {
          std::string missing = Replaced(pattern, Format("{:0{}}", i, digits));
          Missing(counted ? Replaced(missing, of) : missing);
          continue;
        }
        PENSTOCK_RETURN_IF_ERROR(Looked());
        CheckFile({name->second}, files);
      }
    }
    return OkStatus();
  }

  Status CheckClasses(const RecipeFiles& files) {
    const std::string& in = files.classes;
    total_ += files.pictures;
    Folder folder(Path(in));
    if (folder.error() != 0) {
      folder.error() == ENOENT ? Missing(in + "/")
                               : Problem(in + "/", folder.error());
      return OkStatus();
    }
    std::set<std::string> classes;
    uint64_t unsorted = 0;
    std::string archive;
    while (const dirent* entry = folder.Next()) {
      const std::string_view name = entry->d_name;
      if (fnmatch(files.names.c_str(), entry->d_name, 0) == 0) {
        classes.insert(entry->d_name);
        if (classes.size() > kFoldersMax) break;
      } else if (IsPicture(name)) {
        PENSTOCK_RETURN_IF_ERROR(Looked());
        ++unsorted;
      } else if (name.size() > 4 && name.substr(name.size() - 4) == ".tar") {
        archive = name;
      } else if (struct stat st{};
                 fstatat(folder.fd(), entry->d_name, &st, 0) == 0 &&
                 S_ISDIR(st.st_mode)) {
        Problem(in + "/" + entry->d_name,
                "is the folder of no official class, and would be one more");
      }
    }
    if (folder.error() != 0) Problem(in + "/", folder.error());
    if (unsorted > 0) {
      Problem(in + "/", Format("has {} in no folder of a class",
                               Counted(FormatCount(unsorted), "picture")));
    }
    if (!archive.empty() && classes.size() < files.folders) {
      Problem(in + "/" + archive,
              "is packed: unpack each such file into a folder of its name");
    }
    if (classes.size() != files.folders) {
      Problem(in + "/",
              Format("has {} instead of {}",
                     Counted(FormatCount(classes.size()), "class folder"),
                     FormatCount(files.folders)));
    }
    uint64_t pictures = 0;
    for (const std::string& name : classes) {
      const std::string path = in + "/" + name;
      PENSTOCK_ASSIGN_OR_RETURN(const std::optional<uint64_t> count,
                                CheckClass(path));
      if (!count) continue;
      pictures += *count;
      if (*count < files.each[0] || *count > files.each[1]) {
        const std::string wanted =
            files.each[0] == files.each[1]
                ? std::to_string(files.each[0])
                : Format("{} to {}", files.each[0], files.each[1]);
        Problem(path, Format("has {} instead of {}",
                             Counted(FormatCount(*count), "picture"), wanted));
      }
    }
    if (pictures != files.pictures) {
      Problem(in + "/", Format("has {} in class folders instead of {}",
                               Counted(FormatCount(pictures), "picture"),
                               FormatCount(files.pictures)));
    }
    return CheckSameClasses(in, std::move(classes));
  }

  // The number of its pictures; nullopt: a problem was told.
  StatusOr<std::optional<uint64_t>> CheckClass(const std::string& path) {
    Folder folder(Path(path));
    uint64_t count = 0;
    while (const dirent* entry = folder.Next()) {
      if (!IsPicture(entry->d_name)) continue;
      PENSTOCK_RETURN_IF_ERROR(Looked());
      struct stat st {};
      if (fstatat(folder.fd(), entry->d_name, &st, 0) != 0) {
        Problem(path + "/" + entry->d_name, errno);
      } else {
        FoundOr(path + "/" + entry->d_name, st, WrongAtSight(st));
      }
      ++count;
    }
    if (folder.error() == 0) return std::optional<uint64_t>(count);
    Problem(path, folder.error());
    return std::optional<uint64_t>();
  }

  // Labels are the places of class folders, so splits need the same ones.
  Status CheckSameClasses(const std::string& in,
                          std::set<std::string> classes) {
    if (!first_classes_.empty()) {
      for (const std::string& name : first_classes_) {
        if (classes.count(name) == 0) {
          Problem(in + "/" + name, Format("is missing, but {}/{} is there: "
                                          "labels would differ",
                                          first_in_, name));
        }
      }
    } else {
      first_classes_ = std::move(classes);
      first_in_ = in;
    }
    return OkStatus();
  }

  Status CheckList(const RecipeFiles& files) {
    total_ += files.lines * files.of.size();
    if (!IsThere(files.list)) {
      Missing(files.list);
      return OkStatus();
    }
    const auto text = ReadTextFile("list", Path(files.list), kListBytesMax);
    const auto names = text.ok()
                           ? ParseNames(*text)
                           : StatusOr<std::vector<std::string>>(text.status());
    if (!names.ok()) {
      Problem(files.list, names.status().message());
      return OkStatus();
    }
    if (names->size() != files.lines) {
      Problem(files.list, Format("has {} instead of {}",
                                 Counted(FormatCount(names->size()), "line"),
                                 FormatCount(files.lines)));
    }
    for (const std::string& name : *names) {
      for (const std::string& of : files.of) {
        PENSTOCK_RETURN_IF_ERROR(Looked());
        CheckThere(Replaced(of, name));
      }
    }
    return OkStatus();
  }

  const std::string folder_;
  const std::function<void(uint64_t done, uint64_t total)>& progress_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
  std::string split_;
  std::string first_in_;
  std::set<std::string> first_classes_;
  RecipeCheck result_;
};

}  // namespace

StatusOr<RecipeCheck> CheckFiles(
    const Recipe& recipe, const std::string& folder, const std::string& split,
    const std::function<void(uint64_t done, uint64_t total)>& progress) {
  if (const Folder there(folder); there.error() != 0) {
    return ErrnoError(there.error(),
                      Format("cannot read the folder '{}'", folder));
  }
  Checker checker(folder, progress);
  for (const RecipeFiles& files : recipe.files) {
    if (!split.empty() && files.split != split) continue;
    const Status status = checker.Check(files);
    if (!status.ok()) return status.Prepend(folder);
  }
  RecipeCheck& result = checker.result();
  if (result.files == 0) {
    for (const std::string& inside : recipe.inside) {
      std::error_code error;
      if (!std::filesystem::is_directory(folder + "/" + inside, error))
        continue;
      result.inside = inside;
      break;
    }
  }
  return std::move(result);
}

}  // namespace penstock
