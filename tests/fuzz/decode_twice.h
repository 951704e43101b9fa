// Decodes a file with new objects and with objects that have decoded other
// files before, sound and damaged ones. Both must give the same result, byte
// for byte.
#ifndef TESTS_FUZZ_DECODE_TWICE_H_
#define TESTS_FUZZ_DECODE_TWICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "broker/transform/feature_paths.h"

namespace penstock {

class DecodeTwice {
 public:
  DecodeTwice();

  // Decodes file in each way, after a predecessor that turn selects. Returns
  // "", or how the two results differ.
  //
  // Memory from malloc holds other bytes the second time (with glibc, without a
  // sanitizer), and so does the row before it is written. So bytes that are
  // never written, or read before they are written, make a difference too.
  std::string Check(std::span<const std::byte> file, uint64_t turn);

  // Counts of all files so far, over all ways.
  uint64_t decoded() const { return decoded_; }
  uint64_t refused() const { return refused_; }

 private:
  struct Way {
    std::string name;
    std::unique_ptr<FeaturePaths> paths;
    uint64_t row_bytes = 0;
  };
  struct Outcome {
    std::string failure;  // "": none
    std::vector<std::byte> row;
    bool operator==(const Outcome&) const = default;
  };

  void AddWay(const std::string& name, std::vector<TransformSpec> map);
  static Outcome Decode(const Way& way, std::span<const std::byte> file,
                        uint64_t turn, std::byte unwritten,
                        FeaturePaths::Scratch& scratch);

  std::vector<Way> ways_;
  std::vector<std::vector<std::byte>> predecessors_;
  std::unique_ptr<FeaturePaths::Scratch> used_ = FeaturePaths::MakeScratch();
  uint64_t decoded_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace penstock
#endif  // TESTS_FUZZ_DECODE_TWICE_H_
