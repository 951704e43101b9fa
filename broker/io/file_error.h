// What a person reads when a file or folder of a dataset cannot be opened or
// read. Pure functions of errno and path, but for EACCES and ENOENT, where the
// folders above path are looked at to name the one that is in the way.
#ifndef BROKER_IO_FILE_ERROR_H_
#define BROKER_IO_FILE_ERROR_H_

#include <string>

#include "common/status.h"

namespace penstock {

// "penstock (uid 995)": whom the broker reads as, by effective uid.
std::string BrokerUser();

// errno of open(path) as a status. NotFound names the first component that is
// missing, PermissionDenied the first that is not searchable and the ways out.
Status OpenError(int error, const std::string& path);

// errno of a read at offset of what (a path, or "record 7").
Status ReadError(int error, const std::string& what, uint64_t offset);

// DataLoss "/a/b is a FIFO, wanted a regular file" for a mode of stat(2).
Status NotRegularError(unsigned mode, const std::string& path);

}  // namespace penstock
#endif  // BROKER_IO_FILE_ERROR_H_
