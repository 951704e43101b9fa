// Opens each kind of source; source.cc chooses. One file per kind.
#ifndef BROKER_SOURCE_OPEN_H_
#define BROKER_SOURCE_OPEN_H_

#include <memory>

#include "broker/source/source.h"

namespace penstock {

// Whether reads of the open file can be told not to wait (ReadRequest).
bool SupportsNowait(int fd);

StatusOr<std::unique_ptr<Source>> OpenImageFolder(const ImageFolderSource& spec,
                                                  OpenProgress* progress);
StatusOr<std::unique_ptr<Source>> OpenIdx(const IdxSource& spec,
                                          OpenProgress* progress);
StatusOr<std::unique_ptr<Source>> OpenFixedLengthRecords(
    const FixedLengthRecordsSource& spec, OpenProgress* progress);
StatusOr<std::unique_ptr<Source>> OpenRange(const RangeSource& spec);
StatusOr<std::unique_ptr<Source>> OpenTensors(const TensorsSource& spec);
StatusOr<std::unique_ptr<Source>> OpenStream(const StreamSource& spec);
StatusOr<std::unique_ptr<Source>> OpenSynthetic(const SyntheticSource& spec);

}  // namespace penstock
#endif  // BROKER_SOURCE_OPEN_H_
