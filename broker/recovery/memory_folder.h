// A folder in memory (tmpfs) for data that must survive the broker process but
// not the machine. Hung storage never blocks its writers, while a store to a
// mapped file on disk waits while the file system is frozen.
//
// Threads: the starting thread, which holds the state directory's lock.
#ifndef BROKER_RECOVERY_MEMORY_FOLDER_H_
#define BROKER_RECOVERY_MEMORY_FOLDER_H_

#include <string>

#include "common/status.h"

namespace penstock {

// Returns the state directory's folder in memory. This is the state directory
// itself if it is on tmpfs, otherwise a folder below /dev/shm that only this
// user may enter and that the link in the state directory names
// (common/memory_folder.h). The link is followed only to such a folder. A
// missing folder (after a reboot or an orderly shutdown) is created under
// another name. A copy of a state directory has a folder of its own; that of
// the original is left to it.
StatusOr<std::string> OpenMemoryFolder(const std::string& state_directory);

}  // namespace penstock
#endif  // BROKER_RECOVERY_MEMORY_FOLDER_H_
