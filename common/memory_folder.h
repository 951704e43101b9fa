// The name of a state directory's folder in memory
// (broker/recovery/memory_folder.h), which has the directory's inode in it: a
// link to another's folder is not followed, whoever made it.
#ifndef COMMON_MEMORY_FOLDER_H_
#define COMMON_MEMORY_FOLDER_H_

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "common/format.h"

namespace penstock {

// A symbolic link in the state directory.
inline constexpr char kMemoryFolderLink[] = "memory";

// Six more characters make it unique. "": there is no such directory.
inline std::string MemoryFolderPrefix(const std::string& state_directory) {
  struct stat info;
  if (stat(state_directory.c_str(), &info) != 0) return "";
  return Format("/dev/shm/penstock-{:x}-{:x}-", info.st_dev, info.st_ino);
}

// Where the link leads; "": there is none, or to a folder that is not its own.
inline std::string LinkedMemoryFolder(const std::string& state_directory) {
  std::error_code ignored;
  const std::string target =
      std::filesystem::read_symlink(state_directory + "/" + kMemoryFolderLink,
                                    ignored)
          .string();
  const std::string prefix = MemoryFolderPrefix(state_directory);
  return !prefix.empty() && target.starts_with(prefix) &&
                 target.find('/', prefix.size()) == std::string::npos
             ? target
             : "";
}

}  // namespace penstock
#endif  // COMMON_MEMORY_FOLDER_H_
