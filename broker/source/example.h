// tf.train.Example, read from its bytes in place (protobuf's wire format,
// protobuf.dev/programming-guides/encoding; tensorflow/core/example/*.proto).
// Untrusted input; nothing is copied.
#ifndef BROKER_SOURCE_EXAMPLE_H_
#define BROKER_SOURCE_EXAMPLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace penstock {

// A Feature: a list of one kind of values.
class ExampleValues {
 public:
  enum class Kind { kNone, kBytes, kFloats, kInts };

  ExampleValues() = default;
  // feature: the bytes of the message Feature. DataLoss: malformed.
  static StatusOr<ExampleValues> Parse(std::span<const std::byte> feature);

  Kind kind() const { return kind_; }
  uint64_t size() const { return size_; }
  // "3 floats", "1 bytes value"
  std::string Text() const;

  // The only value of kBytes.
  std::span<const std::byte> bytes() const { return first_; }
  // The values of kFloats, little-endian, if they lie together.
  std::optional<std::span<const std::byte>> floats() const;
  // Calls take(value) for every value of this kind until it returns false.
  void ForEachFloat(const std::function<bool(float)>& take) const;
  void ForEachInt(const std::function<bool(int64_t)>& take) const;

 private:
  Kind kind_ = Kind::kNone;
  uint64_t size_ = 0;
  std::span<const std::byte> list_;   // the list's message
  std::span<const std::byte> first_;  // its first field with a length
};

// Calls visit(name, Feature's bytes) for every feature, in the order of the
// bytes: of two with one name the later one counts. Errors: DataLoss (no
// Example, with the offset), Unimplemented (a SequenceExample), visit's.
Status ForEachFeature(
    std::span<const std::byte> example,
    const std::function<Status(std::string_view name,
                               std::span<const std::byte> feature)>& visit);

}  // namespace penstock
#endif  // BROKER_SOURCE_EXAMPLE_H_
