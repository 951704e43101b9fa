// The input is the text of a dataset's spec, from any user of the host. What is
// refused is refused with its place; what is read has a canonical form, which
// reads as the same spec: the broker's journal keeps datasets and jobs in it.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>

#include "broker/spec/dataset_spec.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

void Check(std::string_view text) {
  const StatusOr<DatasetSpec> spec = ParseDatasetSpec(text, "a.yaml", "/base");
  if (!spec.ok()) {
    Require(spec.status().code() == StatusCode::kInvalidArgument,
            "a text that is refused is an invalid argument");
    Require(spec.status().message().rfind("a.yaml:", 0) == 0,
            "a refusal begins with file and place");
    const Status generated = ParseDatasetSpec(text, "", "/base").status();
    Require(generated.message().rfind("spec: ", 0) == 0,
            "a refusal of a text without lines begins so");
    return;
  }
  const nlohmann::ordered_json json = DatasetSpecToJson(*spec);
  // Throws where a text in it is not UTF-8.
  const std::string canonical = json.dump();
  Require(DifferingField(*spec, *spec).empty(), "a spec is equal to itself");
  // Of their values the canonical form has a digest only.
  if (std::holds_alternative<TensorsSource>(spec->source)) return;
  const StatusOr<DatasetSpec> again =
      ParseDatasetSpec(canonical, "journal", "/");
  if (!again.ok()) {
    std::fprintf(stderr, "%s\n%s\n", canonical.c_str(),
                 again.status().message().c_str());
  }
  Require(again.ok(), "the canonical form is a spec");
  Require(DifferingField(*spec, *again).empty(), "of the same dataset");
  Require(*spec == *again, "with the same values");
  Require(DatasetSpecToJson(*again) == json, "and the same canonical form");
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
