// Error messages for files and folders of a dataset that cannot be opened or
// read. Pure functions of errno and path, except EACCES and ENOENT: these check
// the folders above path to name the one that causes the error.
#ifndef BROKER_IO_FILE_ERROR_H_
#define BROKER_IO_FILE_ERROR_H_

#include <string>

#include "common/status.h"

namespace penstock {

// "penstock (uid 995)": the effective user of the broker's reads.
std::string BrokerUser();

// The status for errno of open(path). NotFound names the first missing
// component, PermissionDenied the first that is not searchable, with remedies.
Status OpenError(int error, const std::string& path);

// The status for errno of a read at offset of what (a path, or "record 7").
Status ReadError(int error, const std::string& what, uint64_t offset);

// DataLoss "/a/b is a FIFO, wanted a regular file" for a mode of stat(2).
Status NotRegularError(unsigned mode, const std::string& path);

}  // namespace penstock
#endif  // BROKER_IO_FILE_ERROR_H_
