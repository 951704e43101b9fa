// Features of a batch, and the arrays over them.
#ifndef PENSTOCK_CLIENT_PYTHON_MODULE_ARRAY_H_
#define PENSTOCK_CLIENT_PYTHON_MODULE_ARRAY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/python/module/object.h"

namespace penstock::python {

// An element's kind and bytes by NumPy's protocol, and its code by DLPack's.
struct DType {
  const char* name;
  char kind;
  uint8_t bytes;
  uint8_t dlpack;
};

// By PENSTOCK_UINT8 and so on. bfloat16, which NumPy lacks: as integers.
inline constexpr DType kDTypes[] = {
    {"", 0, 0, 0},          {"uint8", 'u', 1, 1},    {"int8", 'i', 1, 0},
    {"int16", 'i', 2, 0},   {"int32", 'i', 4, 0},    {"int64", 'i', 8, 0},
    {"float16", 'f', 2, 2}, {"bfloat16", 'u', 2, 4}, {"float32", 'f', 4, 2},
    {"float64", 'f', 8, 2}, {"bool", 'b', 1, 6}};

struct Feature {
  std::string name;
  const DType* dtype;
  std::vector<int64_t> shape;  // of one row
  bool of_batch = false;       // there is one value for all rows
};

// A tuple; None where batches differ.
Object ShapeOf(const Feature& feature);

// The dtype of a code, and the code of a name. Raise where there is none.
const DType* DTypeOf(uint32_t dtype);
uint32_t DTypeNamed(const std::string& name);

// [rows, shape...] in memory that `owner` keeps: an Array for DLPack, or
// NumPy's over it.
PyObject* NewArray(bool numpy, std::shared_ptr<const void> owner, void* data,
                   const Feature& of, uint64_t rows, bool writable);
// An Array on the GPU.
PyObject* NewDeviceArray(std::shared_ptr<penstock_device_batch> owner,
                         int device, uint32_t feature, const Feature& of,
                         uint64_t rows);

}  // namespace penstock::python

#endif  // PENSTOCK_CLIENT_PYTHON_MODULE_ARRAY_H_
