// The features that a spec takes from a tf.train.Example.
#ifndef BROKER_SOURCE_EXAMPLE_FEATURES_H_
#define BROKER_SOURCE_EXAMPLE_FEATURES_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

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

// "image: {encoded: true}, label: {dtype: int64, shape: []}": what this example
// has, as a spec would tell it.
StatusOr<std::string> ProposedFeatures(std::span<const std::byte> example);

}  // namespace penstock
#endif  // BROKER_SOURCE_EXAMPLE_FEATURES_H_
