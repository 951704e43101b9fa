#include "broker/source/source.h"

#include <sys/uio.h>

#include <cerrno>
#include <type_traits>
#include <variant>

#include "broker/source/open.h"

namespace penstock {

bool SupportsNowait(int fd) {
  char byte;
  const iovec into = {&byte, 1};
  return preadv2(fd, &into, 1, 0, RWF_NOWAIT) >= 0 || errno != EOPNOTSUPP;
}

StatusOr<std::unique_ptr<Source>> OpenSource(const SourceSpec& spec,
                                             OpenProgress* progress) {
  OpenProgress unwatched;
  if (progress == nullptr) progress = &unwatched;
  return std::visit(
      [progress](const auto& source) -> StatusOr<std::unique_ptr<Source>> {
        using Spec = std::decay_t<decltype(source)>;
        if constexpr (std::is_same_v<Spec, ImageFolderSource>) {
          return OpenImageFolder(source, progress);
        } else if constexpr (std::is_same_v<Spec, IdxSource>) {
          return OpenIdx(source, progress);
        } else if constexpr (std::is_same_v<Spec, FixedLengthRecordsSource>) {
          return OpenFixedLengthRecords(source, progress);
        } else if constexpr (std::is_same_v<Spec, RangeSource>) {
          return OpenRange(source);
        } else if constexpr (std::is_same_v<Spec, TensorsSource>) {
          return OpenTensors(source);
        } else if constexpr (std::is_same_v<Spec, SyntheticSource>) {
          return OpenSynthetic(source);
        } else {
          static_assert(std::is_same_v<Spec, StreamSource>);
          return OpenStream(source);
        }
      },
      spec);
}

}  // namespace penstock
