// Which tokens a sample of a Megatron dataset has: a window of the stream of
// documents, as they lie in the file, or in the order and shuffled as
// megatron.core.datasets.gpt_dataset does it (0.16), number by number; and how
// megatron.core.datasets.blended_dataset mixes datasets.
#ifndef BROKER_SOURCE_MEGATRON_SAMPLES_H_
#define BROKER_SOURCE_MEGATRON_SAMPLES_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "broker/io/read_request.h"
#include "broker/source/megatron_index.h"

namespace penstock {

// train, valid, test: the shares [begin, end) of a text such as "969,30,1";
// nullopt: none. InvalidArgument: it is no such text.
using MegatronShares = std::array<std::optional<std::pair<double, double>>, 3>;
StatusOr<MegatronShares> ParseMegatronSplit(std::string_view split);

// Documents [begin, end).
struct MegatronRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  static MegatronRange Of(std::pair<double, double> share, uint64_t documents);
};

struct MegatronRules {
  uint32_t sequence_length = 1;
  bool extra_token = true;  // a sample has one token more
  bool pads_last = false;   // a last sample of fewer tokens is one, too
  uint32_t seed = 0;
  // At least so many, by several passes; nullopt: those of one pass.
  std::optional<uint64_t> samples;

  uint64_t sample_tokens() const {
    return uint64_t{sequence_length} + (extra_token ? 1 : 0);
  }
};

// The samples of one dataset. Constant once made.
class MegatronSamples {
 public:
  virtual ~MegatronSamples() = default;
  uint64_t size() const { return size_; }
  // Where the tokens of a sample are, in the order of the sample. Fewer than
  // sample_tokens() of a last one. Leaves request with one part at least.
  virtual void Locate(uint64_t sample, ReadRequest* request) const = 0;
  virtual uint64_t memory_bytes() const { return 0; }

 protected:
  uint64_t size_ = 0;
};

// More pieces of a sample, of a document each, would be too many reads.
inline constexpr uint64_t kMegatronPiecesMax = uint64_t{1} << 16;

// The windows of the documents as they lie in the file, one after the other.
// The index outlives the result; its places are kept if they are needed.
StatusOr<std::unique_ptr<MegatronSamples>> MegatronWindows(
    MegatronIndex* index, MegatronRange range, const MegatronRules& rules,
    OpenProgress* progress);

// A sample is a document. The index outlives the result, with its places kept.
std::unique_ptr<MegatronSamples> MegatronDocuments(const MegatronIndex* index,
                                                   MegatronRange range);

// The arrays of a GPTDataset.
struct MegatronArrays {
  NumberArray<uint32_t> documents;  // of all passes, in order
  // Where every apart-th sample begins: the number of a document in `documents`
  // << 31 | the tokens before it there. A length has 31 bits.
  NumberArray<uint64_t> begins;
  uint64_t apart = 1;
  uint64_t tokens = 0;             // of all documents
  NumberArray<uint32_t> shuffled;  // the sample that comes at each place

  static constexpr uint64_t kDocumentsMax = uint64_t{1} << 33;
  static constexpr uint64_t kSamplesMax = uint64_t{UINT32_MAX} - 2;
};

// How many of each there are.
struct MegatronSizes {
  uint64_t tokens = 0;  // of one pass
  uint64_t passes = 1;
  uint64_t documents = 0;
  uint64_t samples = 0;
  // So many samples are shuffled among each other, and so are the others; so
  // are the documents of the last pass, if there are others.
  uint64_t shuffled_first = 0;
};
// The index's places are kept. InvalidArgument: no sample, or too many.
StatusOr<MegatronSizes> FindMegatronSizes(const MegatronIndex& index,
                                          MegatronRange range,
                                          const MegatronRules& rules);
// Arrays of these sizes, not filled.
StatusOr<MegatronArrays> MakeMegatronArrays(const std::string& what,
                                            const MegatronSizes& sizes,
                                            OpenProgress* progress);
StatusOr<MegatronArrays> BuildMegatronArrays(const MegatronIndex& index,
                                             MegatronRange range,
                                             const MegatronRules& rules,
                                             OpenProgress* progress);

// Goes from the beginning of each sample to that of the next, along documents
// in their final order, as build_sample_idx does, and keeps some in
// arrays->begins.
class MegatronWalk {
 public:
  // All outlive it.
  MegatronWalk(const MegatronIndex* index, const MegatronRules& rules,
               MegatronArrays* arrays);
  uint64_t document() const { return document_; }  // its number in `documents`
  uint64_t offset() const { return static_cast<uint64_t>(offset_); }
  // InvalidArgument: a sample lies in too many documents; the last is empty.
  Status Next();

 private:
  const MegatronIndex& index_;
  const int64_t extra_;
  const int64_t sample_tokens_;
  MegatronArrays* const arrays_;
  uint64_t sample_ = 0;
  uint64_t document_ = 0;
  int64_t offset_ = 0;
};

// rules: those that the arrays were made by.
std::unique_ptr<MegatronSamples> MegatronSamplesOf(const MegatronIndex* index,
                                                   const MegatronRules& rules,
                                                   MegatronArrays arrays);

// ---- blends

// As numpy.sum divides: their sum is that of its pairwise summation.
std::vector<double> NormalizedAsMegatron(std::span<const double> weights);
// How many samples a part of this weight gives of so many, and with a surplus.
uint64_t MegatronShare(double weight, uint64_t samples, double surplus);

// Which sample of which part comes at each place: that of a part whose turn is
// the n-th is its sample n. Up to 3 bytes a place.
class MegatronBlend {
 public:
  static constexpr size_t kPartsMax = 16384;
  // One that is filled by Add, of so many places.
  static StatusOr<MegatronBlend> Make(uint64_t size, size_t parts,
                                      OpenProgress* progress);
  // In proportion to weights, which are normalized here once more.
  static StatusOr<MegatronBlend> InProportion(std::span<const double> weights,
                                              uint64_t size,
                                              OpenProgress* progress);
  // All samples of parts of these sizes.
  static StatusOr<MegatronBlend> OfAll(std::span<const uint64_t> sizes,
                                       OpenProgress* progress);

  // The next place is this part's. Gives the number of its sample.
  uint64_t Add(size_t part);
  const std::vector<uint64_t>& taken() const { return taken_; }  // of each part

  uint64_t size() const { return parts_.size(); }
  size_t PartOf(uint64_t row) const { return parts_[row]; }
  uint64_t SampleOf(uint64_t row) const;
  uint64_t memory_bytes() const {
    return parts_.memory_bytes() + before_.memory_bytes();
  }

 private:
  uint64_t filled_ = 0;
  std::vector<uint64_t> taken_;
  NumberArray<uint16_t> parts_;
  // The samples of each part before each block of rows.
  uint64_t block_ = 0;
  NumberArray<uint32_t> before_;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_MEGATRON_SAMPLES_H_
