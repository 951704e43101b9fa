// Decodes a file with objects that are new, and with objects that have decoded
// others before, sound and damaged ones: both must say the same, byte for byte.
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

  // Decodes file in each way, next after another predecessor each time, which
  // turn says. "" or how the two differ.
  //
  // Memory from malloc holds other bytes the second time (with glibc, without
  // a sanitizer), and so does the row before it is written: what is left
  // unwritten, or read before it is written, is a difference too.
  std::string Check(std::span<const std::byte> file, uint64_t turn);

  // Of the files so far, in all ways together.
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
