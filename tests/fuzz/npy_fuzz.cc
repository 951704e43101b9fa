// The input is a file in NumPy's format. It is refused as documented, or its
// values are numbers that fill it.
#include <cstddef>
#include <cstdint>
#include <span>

#include "broker/source/npy_header.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

void Check(std::span<const std::byte> file) {
  // Only the beginning of a longer file is at hand.
  const auto head = file.first(std::min(file.size(), kNpyHeaderBytesMax));
  const StatusOr<NpyHeader> header = ParseNpyHeader("a", head, file.size());
  if (!header.ok()) {
    Require(header.status().code() == StatusCode::kInvalidArgument ||
                header.status().code() == StatusCode::kDataLoss,
            "a file is refused as documented");
    Require(header.status().message().rfind("a: ", 0) == 0,
            "a refusal begins with the name");
    return;
  }
  uint64_t bytes = header->value_bytes;
  for (const uint64_t dimension : header->shape) {
    Require(!__builtin_mul_overflow(bytes, dimension, &bytes),
            "the values fit into memory");
  }
  Require(bytes == header->data_bytes, "the shape is that of the values");
  Require(header->bytes + bytes == file.size(), "the values fill the file");
  const std::optional<DType> dtype = header->dtype();
  Require(!dtype || DTypeBytes(*dtype) == header->value_bytes,
          "a dtype is of the values");
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check(std::as_bytes(std::span(data, size)));
  return 0;
}
