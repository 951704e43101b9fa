// The header of NumPy's .npy format, versions 1 to 3
// (numpy.org/doc/stable/reference/generated/numpy.lib.format.html). Untrusted
// input.
#ifndef BROKER_SOURCE_NPY_HEADER_H_
#define BROKER_SOURCE_NPY_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "broker/index/data_file.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

struct NpyHeader {
  char kind = 'u';  // NumPy's: u, i, f, b (unsigned, integer, float, bool)
  uint64_t value_bytes = 1;
  std::vector<uint64_t> shape;
  uint64_t bytes = 0;       // of the header: where the values begin
  uint64_t data_bytes = 0;  // of all values

  // "uint16"
  std::string DTypeText() const;
  // "uint16 [60000, 28]"
  std::string ToString() const;
  // nullopt: Penstock has no such dtype.
  std::optional<DType> dtype() const;
};

// Enough for each header that ParseNpyHeader accepts.
inline constexpr size_t kNpyHeaderBytesMax = size_t{64} << 10;

// The bytes begin as a .npy file does; so many tell.
inline constexpr size_t kNpyMagicBytes = 6;
bool IsNpy(std::span<const std::byte> head);

// head: the first bytes of the array, kNpyHeaderBytesMax or all of it. bytes:
// of the whole array, header included. name: for messages. The values are
// little-endian, in C order, and end where the array does. DataLoss: not a
// header, or another number of bytes than it says. InvalidArgument, with the
// way out: values that are no numbers, or in another order.
StatusOr<NpyHeader> ParseNpyHeader(const std::string& name,
                                   std::span<const std::byte> head,
                                   uint64_t bytes);

// Reads and parses the header of the array in these bytes of a file.
StatusOr<NpyHeader> ReadNpyHeader(const std::string& name, const DataFile& file,
                                  uint64_t offset, uint64_t bytes,
                                  OpenProgress* progress);

}  // namespace penstock
#endif  // BROKER_SOURCE_NPY_HEADER_H_
