// Numbers written in a spec as nested lists <-> the bytes of a tensor.
#ifndef BROKER_SOURCE_TENSOR_VALUES_H_
#define BROKER_SOURCE_TENSOR_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "broker/declare/yaml.h"
#include "broker/source/kinds.h"
#include "common/status.h"

namespace penstock {

// values: nested lists, the outermost one holds the rows. Fills dtype and shape
// of tensor->feature, and tensor->data in little-endian. Default dtype: int64
// if all numbers are whole, else float32. Errors: a row whose shape differs
// from the first, more than dimensions_max dimensions, a number that dtype
// cannot represent.
Status ReadTensor(const YamlValue& values, std::optional<DType> dtype,
                  size_t dimensions_max, TensorsSource::Tensor* tensor,
                  uint64_t* rows);
// One of these numbers, of DTypeBytes(dtype).
Status ReadNumber(const YamlValue& value, DType dtype, std::byte* to);
void WriteNumber(DType dtype, const std::byte* from,
                 nlohmann::ordered_json* out);
// The nested lists, which ReadTensor turns into the same bytes. Floats have as
// few digits as that takes of a float32, or of a float64.
void WriteTensor(const TensorsSource::Tensor& tensor, uint64_t rows,
                 nlohmann::ordered_json* out);

}  // namespace penstock
#endif  // BROKER_SOURCE_TENSOR_VALUES_H_
