// The arrays that Megatron leaves in its path_to_cache: of a dataset
// HASH-GPTDataset-SPLIT-{document,sample,shuffle}_index.npy, of a blend
// HASH-BlendedDataset-SPLIT-dataset{,_sample}_index.npy, and beside them
// HASH-...-description.txt, JSON that says what they are of. Untrusted input.
#ifndef BROKER_SOURCE_MEGATRON_CACHE_H_
#define BROKER_SOURCE_MEGATRON_CACHE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "broker/index/data_file.h"
#include "broker/source/megatron_samples.h"

namespace penstock {

// What a description says, field by field, in words that can be compared.
using MegatronDescription = std::vector<std::pair<std::string, std::string>>;

// What that of a dataset says.
struct MegatronDatasetFields {
  std::string dataset_path;
  std::optional<uint64_t> num_samples;
  std::string index_split;  // train, valid, test
  uint64_t random_seed = 0;
  uint64_t sequence_length = 0;
  std::optional<MegatronShares> split_matrix;  // `split` may be spaced

  MegatronDescription Description() const;
};
// And that of a blend of them. size: nullopt: of all samples.
MegatronDescription MegatronBlendDescription(
    std::span<const MegatronDatasetFields> datasets, const std::string& split,
    std::span<const double> weights, std::optional<uint64_t> size);

class MegatronCache {
 public:
  // Reads all descriptions in a folder.
  static StatusOr<MegatronCache> Open(const std::string& folder,
                                      OpenProgress* progress);

  // NotFound: none has this description; says what the nearest has instead.
  // Else errors name the file, and the field or the entry: DataLoss.
  StatusOr<MegatronArrays> Load(const MegatronDescription& wanted,
                                const MegatronIndex& index, MegatronRange range,
                                const MegatronRules& rules,
                                OpenProgress* progress);
  // sizes: how many samples each part has.
  StatusOr<MegatronBlend> LoadBlend(const MegatronDescription& wanted,
                                    uint64_t size,
                                    std::span<const uint64_t> sizes,
                                    OpenProgress* progress);
  // The arrays that were read, still open. Called last.
  std::vector<DataFile> TakeFiles() { return std::move(files_); }

 private:
  struct Found {
    std::string base;  // the path up to "description.txt"
    MegatronDescription description;
  };
  struct Array;

  explicit MegatronCache(std::string folder) : folder_(std::move(folder)) {}
  StatusOr<std::string> Find(const MegatronDescription& wanted) const;
  StatusOr<Array> OpenArray(const std::string& path, OpenProgress* progress);

  std::string folder_;
  std::vector<Found> found_;
  std::vector<DataFile> files_;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_MEGATRON_CACHE_H_
