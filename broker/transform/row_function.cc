#include "broker/transform/row_function.h"

namespace penstock {

StatusOr<ElementSpec> OutputsOf(const std::optional<ElementSpec>& features,
                                const RawSpec& inputs) {
  if (features) return *features;
  ElementSpec outputs;
  for (const RawFeature& input : inputs) {
    if (input.encoded) {
      return InvalidArgumentError(
          "is given feature '{}' as the bytes of a file: say with `features` "
          "what it returns",
          input.feature.name);
    }
    outputs.push_back(input.feature);
  }
  return outputs;
}

StatusOr<RowLayout> PlanRow(std::span<const uint64_t> input_bytes,
                            const ElementSpec& outputs) {
  RowLayout layout;
  const auto add = [&](uint64_t bytes, std::vector<uint64_t>* offsets) {
    offsets->push_back(layout.bytes);
    if (bytes > kFunctionBytesMax - layout.bytes) return false;
    layout.bytes +=
        (bytes + kFunctionAlign - 1) / kFunctionAlign * kFunctionAlign;
    return layout.bytes <= kFunctionBytesMax;
  };
  bool fits = true;
  for (const uint64_t bytes : input_bytes) {
    fits = fits && add(bytes, &layout.input_offsets);
  }
  for (const Feature& output : outputs) {
    fits = fits && add(output.RowBytes(), &layout.output_offsets);
  }
  if (!fits) {
    return ResourceExhaustedError(
        "a row of a function, in and out, has more than {} bytes",
        kFunctionBytesMax);
  }
  return layout;
}

}  // namespace penstock
