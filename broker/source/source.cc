#include "broker/source/kinds.h"

namespace penstock {

StatusOr<std::unique_ptr<Source>> OpenSource(const SourceSpec& spec,
                                             OpenProgress* progress) {
  OpenProgress unwatched;
  if (progress == nullptr) progress = &unwatched;
  return std::visit(
      [progress](const auto& kind) { return kind.Open(progress); }, spec);
}

}  // namespace penstock
