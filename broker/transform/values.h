// Single values of a row. They lie there without alignment.
#ifndef BROKER_TRANSFORM_VALUES_H_
#define BROKER_TRANSFORM_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>

#include "broker/index/values.h"
#include "broker/transform/half.h"
#include "common/element_spec.h"

namespace penstock {

template <typename T>
void Store(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(T));
}

// Calls f with a value of dtype's type in C++.
template <typename F>
auto WithType(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kUint8:
      return f(uint8_t{});
    case DType::kInt8:
      return f(int8_t{});
    case DType::kInt16:
      return f(int16_t{});
    case DType::kInt32:
      return f(int32_t{});
    case DType::kInt64:
      return f(int64_t{});
    case DType::kFloat16:
      return f(Float16{});
    case DType::kBFloat16:
      return f(BFloat16{});
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat64:
      return f(double{});
    case DType::kBool:
      return f(bool{});
  }
  __builtin_unreachable();
}

// Computes in place. The channel of values[i] is (first + i) % channels.
struct ValueFunction {
  std::function<void(std::span<double> values, size_t first)> compute;
  size_t channels = 1;
};

// f(double value, size_t channel).
template <typename F>
ValueFunction EachValue(size_t channels, F f) {
  if (channels == 1) {
    return {[f](std::span<double> values, size_t) {
      for (double& value : values) value = f(value, 0);
    }};
  }
  return {[f, channels](std::span<double> values, size_t first) {
            size_t channel = first % channels;
            for (double& value : values) {
              value = f(value, channel);
              if (++channel == channels) channel = 0;
            }
          },
          channels};
}

}  // namespace penstock
#endif  // BROKER_TRANSFORM_VALUES_H_
