// What `penstock analyze` finds out about the features of a dataset.
#ifndef CLIENT_COMMAND_STATISTICS_H_
#define CLIENT_COMMAND_STATISTICS_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/penstock.h"
#include "common/element_spec.h"

namespace penstock {

struct StatisticsOptions {
  size_t tokens_max = 1'000'000;  // different ones, of a feature
  uint32_t threads = 1;
};

// One feature. Rows are added batch by batch, by several threads: Add for
// different parts at once. The result does not depend on their number.
class FeatureStatistics {
 public:
  virtual ~FeatureStatistics() = default;
  virtual size_t parts() const = 0;
  // Adds part `part` of the rows of a batch.
  virtual void Add(const penstock_batch* batch, uint64_t rows, size_t part) = 0;
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
  const ElementSpec features_;
  const uint32_t threads_;
  uint64_t rows_ = 0;
  std::vector<std::pair<std::string, std::unique_ptr<FeatureStatistics>>> of_;
};

}  // namespace penstock
#endif  // CLIENT_COMMAND_STATISTICS_H_
