// What `penstock analyze` finds out about the features of a dataset.
#ifndef CLIENT_COMMAND_STATISTICS_H_
#define CLIENT_COMMAND_STATISTICS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/penstock.h"
#include "common/element_spec.h"
#include "common/words.h"

namespace penstock {

struct StatisticsOptions {
  size_t tokens_max = 1'000'000;  // different ones, of a feature
  uint32_t threads = 1;
  // Texts whose words are counted, by feature.
  std::map<std::string, WordRules> words;
};

// One feature. Rows are added batch by batch, by several threads: Add for
// different parts at once. The result does not depend on their number.
class FeatureStatistics {
 public:
  virtual ~FeatureStatistics() = default;
  virtual size_t parts() const = 0;
  // The rows of a batch that part `part` is of: [begin, end).
  virtual std::pair<uint64_t, uint64_t> RowsOf(size_t part,
                                               uint64_t rows) const = 0;
  // Adds rows to a part. lengths: of texts.
  virtual void Add(const void* data, const int64_t* lengths, uint64_t rows,
                   size_t part) = 0;
  virtual nlohmann::ordered_json ToJson() = 0;
};

class Statistics {
 public:
  Statistics(ElementSpec features, const StatisticsOptions& options);

  void Add(const penstock_batch* batch);
  uint64_t rows() const { return rows_; }
  // {NAME: {...}, ...}: the features of stats.json.
  nlohmann::ordered_json ToJson() const;

 private:
  // A list has statistics of its items, and of its lengths.
  struct Of {
    Feature feature;
    uint32_t index;
    std::optional<uint32_t> lengths;
    bool is_list;
    std::unique_ptr<FeatureStatistics> statistics;
    std::unique_ptr<FeatureStatistics> of_lengths;
  };
  static void Add(const penstock_batch* batch, uint64_t rows, const Of& of,
                  size_t part);
  // Those of rows [begin, end) of a text or list.
  static std::vector<int64_t> LengthsIn(const penstock_batch* batch,
                                        const Of& of, uint64_t begin,
                                        uint64_t end);

  const ElementSpec features_;
  const uint32_t threads_;
  uint64_t rows_ = 0;
  std::vector<Of> of_;
};

}  // namespace penstock
#endif  // CLIENT_COMMAND_STATISTICS_H_
