// The bytes of a feature's values, as the tests of operations compare them.
#ifndef TESTS_UNIT_FEATURE_BYTES_H_
#define TESTS_UNIT_FEATURE_BYTES_H_

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace penstock {

using Bytes = std::vector<std::byte>;

template <typename T>
Bytes BytesOf(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

template <typename T>
std::vector<T> ValuesOf(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace penstock
#endif  // TESTS_UNIT_FEATURE_BYTES_H_
