// A folder in memory (tmpfs) for what has to survive the broker's process but
// not the machine. Storage that hangs never holds up who writes there: a store
// to a mapped file of a disk waits while its file system is frozen.
//
// Who runs it: the starting thread, which holds the state directory's lock.
#ifndef BROKER_RECOVERY_MEMORY_FOLDER_H_
#define BROKER_RECOVERY_MEMORY_FOLDER_H_

#include <string>

#include "common/status.h"

namespace penstock {

// In the state directory: a symbolic link to its folder in memory.
inline constexpr char kMemoryFolderLink[] = "memory";

// The state directory's folder in memory: itself if it is on tmpfs; else a
// folder below /dev/shm that only this user may enter, which the link in the
// state directory names. The link is followed only to such a folder. A folder
// that is gone (the machine was started since, or an orderly end removed it) is
// made anew, under another name.
StatusOr<std::string> OpenMemoryFolder(const std::string& state_directory);

}  // namespace penstock
#endif  // BROKER_RECOVERY_MEMORY_FOLDER_H_
