// tf.train.Example, read from its bytes in place (protobuf's wire format,
// protobuf.dev/programming-guides/encoding; tensorflow/core/example/*.proto),
// and the features that a spec takes from it. Untrusted input; nothing is
// copied that need not be.
#ifndef BROKER_SOURCE_EXAMPLE_H_
#define BROKER_SOURCE_EXAMPLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/source/record_feature.h"
#include "broker/source/source.h"
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

class ExampleFeatures {
 public:
  explicit ExampleFeatures(const RecordFeatures& features);

  // As Source::Unpack. Encoded and raw bytes, and floats, stay where they are.
  // Errors name the feature, what was wanted and what was found.
  Status Unpack(std::span<const std::byte> example,
                std::vector<std::byte>* scratch, RawRecord* raw) const;

 private:
  struct Wanted {
    RecordFeature feature;
    std::vector<std::byte> otherwise;  // empty: there is no default
    uint64_t values = 0;
    uint64_t room = 0;  // in the scratch
  };
  static Status Take(const Wanted& wanted, std::span<const std::byte> found,
                     std::span<std::byte> room, RawRecord* raw);
  static Status TakeList(const RecordFeature& feature,
                         const ExampleValues& values, std::span<std::byte> room,
                         RawRecord* raw);

  std::vector<Wanted> wanted_;
  uint64_t room_ = 0;
};

// What examples have, as a spec would tell it.
class FeatureProposal {
 public:
  Status Add(std::span<const std::byte> example);
  uint64_t examples() const { return examples_; }
  // "image: {encoded: true}, label: {dtype: int64, shape: []}"
  std::string Features() const;
  // "words (2 to 9 int64)": what no spec can tell; "": nothing.
  std::string LeftOut() const;

 private:
  // What all values of a feature have been like.
  struct Seen {
    ExampleValues::Kind kind = ExampleValues::Kind::kNone;
    bool mixed = false;  // of several kinds
    uint64_t examples = 0;
    uint64_t least = UINT64_MAX;  // values
    uint64_t most = 0;
    uint64_t bytes_least = UINT64_MAX;  // of kBytes
    uint64_t bytes_most = 0;
    bool pictures = true;
    bool sounds = true;
    bool text = true;
  };
  std::string Of(const Seen& seen) const;

  uint64_t examples_ = 0;
  std::map<std::string, Seen, std::less<>> seen_;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_EXAMPLE_H_
