#include "broker/source/kinds.h"

namespace penstock {

StatusOr<std::unique_ptr<Source>> OpenSource(const SourceSpec& spec,
                                             OpenProgress* progress,
                                             const FunctionOptions& functions) {
  OpenProgress unwatched;
  if (progress == nullptr) progress = &unwatched;
  return std::visit(
      [&](const auto& kind) {
        if constexpr (requires { kind.Open(progress, functions); }) {
          return kind.Open(progress, functions);
        } else {
          return kind.Open(progress);
        }
      },
      spec);
}

}  // namespace penstock
