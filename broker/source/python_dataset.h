// source: python. A map-style dataset of Python (`__len__`, `__getitem__`):
// each worker has a process that makes its records.
#ifndef BROKER_SOURCE_PYTHON_DATASET_H_
#define BROKER_SOURCE_PYTHON_DATASET_H_

#include <optional>
#include <string>
#include <vector>

#include "broker/source/source.h"
#include "broker/user_code/trusted_code.h"

namespace penstock {

struct PythonDatasetSource {
  std::optional<std::string> dataset;  // "package.module:factory"
  std::string args = "{}";             // JSON, its keyword arguments
  std::optional<std::string> object;   // instead: file of a pickled dataset
  std::optional<std::vector<std::string>> names;
  uint64_t max_bytes = 0;  // of a text; 0: by the first sample
  uint32_t processes = 0;  // 0: one per worker
  bool operator==(const PythonDatasetSource&) const = default;

  static const Declaration<PythonDatasetSource>& Declared();
  // python_dataset.py.
  static std::string_view Program();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress* progress,
                                         const FunctionOptions& options) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_PYTHON_DATASET_H_
