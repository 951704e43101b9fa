// Numbers written in a spec as nested lists -> the bytes of a tensor.
#ifndef COMMON_DATASET_SPEC_TENSORS_H_
#define COMMON_DATASET_SPEC_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/dataset_spec.h"
#include "common/dataset_spec_yaml.h"
#include "common/status.h"

namespace penstock {

// values: nested lists, the outermost one holds the rows. Fills dtype and shape
// of tensor->feature, and tensor->data in little-endian. Default dtype: int64
// if all numbers are whole, else float32. Errors: a row whose shape differs
// from the first, more than dimensions_max dimensions, a number that dtype
// cannot represent.
Status ReadTensor(const SpecValue& values, std::optional<DType> dtype,
                  size_t dimensions_max, TensorsSource::Tensor* tensor,
                  uint64_t* rows);

}  // namespace penstock
#endif  // COMMON_DATASET_SPEC_TENSORS_H_
