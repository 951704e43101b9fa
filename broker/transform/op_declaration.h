// The keys that declarations of operations have in common, and types of values.
#ifndef BROKER_TRANSFORM_OP_DECLARATION_H_
#define BROKER_TRANSFORM_OP_DECLARATION_H_

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/transform/picture.h"

namespace penstock {

// A list of N items.
template <size_t N, typename V>
ValueType<std::array<V, N>> Several(ValueType<V> item, std::string wanted) {
  return {std::move(wanted),
          [item](const YamlValue& value, std::string_view wanted,
                 std::array<V, N>* out) {
            Status status = value.CheckSequence(N, N, wanted);
            for (size_t i = 0; status.ok() && i < N; ++i) {
              status = item.Read(value.Item(i), &(*out)[i]);
            }
            return status;
          },
          [item](const std::array<V, N>& values, nlohmann::ordered_json* out) {
            WriteList(
                N, [&](size_t i, auto* each) { item.write(values[i], each); },
                out);
          },
          item.parts};
}

// The declaration of an op of single features. Its first key says which, and
// the next ones which masks and boxes, if it takes some.
template <typename Op>
Declaration<Op> FeatureOp(std::string name, std::string text) {
  Declaration<Op> declared(std::move(name), std::move(text));
  declared.Optional("feature", &Op::feature, FeatureNamesType(),
                    "the feature it changes, or a list");
  if constexpr (TakesMasks<Op>) {
    declared.Optional("mask", &Op::mask, MaskNamesType(),
                      "masks of it: moved alike, values kept");
  }
  if constexpr (TakesBoxes<Op>) {
    declared.Optional("boxes", &Op::boxes, MaskNamesType(),
                      "boxes in it (xyxy): moved alike");
  }
  return declared;
}

// The same of an op on pictures of bytes, which keep their size.
template <typename Op>
Declaration<Op> PictureOp(std::string name, std::string text) {
  return FeatureOp<Op>(std::move(name), std::move(text))
      .Gives("uint8 picture → the same");
}

// A declaration with the last keys of what has pixels beside a picture.
template <typename T>
Declaration<T> WithFill(Declaration<T> declared) {
  declared.Optional("fill", &T::fill, FillType(), kFillText)
      .Optional("mask_fill", &T::mask_fill, MaskFillType(),
                "the same of masks: 255 is often ignored");
  return declared;
}

// A declaration with the last key of an op that changes a part of the pictures.
template <typename Op>
Declaration<Op> WithProbability(Declaration<Op> declared) {
  declared.Optional("probability", &Op::probability, Number(0, 1),
                    "that of changing a picture");
  return declared;
}

}  // namespace penstock
#endif  // BROKER_TRANSFORM_OP_DECLARATION_H_
