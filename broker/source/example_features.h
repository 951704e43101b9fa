// The features that a spec takes from a tf.train.Example.
#ifndef BROKER_SOURCE_EXAMPLE_FEATURES_H_
#define BROKER_SOURCE_EXAMPLE_FEATURES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "broker/source/example.h"
#include "broker/source/record_feature.h"
#include "broker/source/source.h"
#include "common/status.h"

namespace penstock {

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
    bool text = true;
  };
  std::string Of(const Seen& seen) const;

  uint64_t examples_ = 0;
  std::map<std::string, Seen, std::less<>> seen_;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_EXAMPLE_FEATURES_H_
