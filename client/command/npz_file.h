// A file of arrays as numpy.savez writes it: a zip archive of .npy files, not
// compressed (numpy.org/doc/stable/reference/generated/numpy.lib.format.html,
// APPNOTE.TXT of PKWARE).
#ifndef CLIENT_COMMAND_NPZ_FILE_H_
#define CLIENT_COMMAND_NPZ_FILE_H_

#include <span>
#include <string>
#include <string_view>

#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

struct NpzArray {
  Feature feature;         // name, dtype and shape
  std::string_view bytes;  // its values in C order, little-endian
};

// What comes before the values of a .npy file, version 1.0 of the format.
std::string NpyHeader(const Feature& feature);

// bfloat16, which NumPy lacks, is of void of 2 bytes, as ml_dtypes has it.
// ResourceExhausted: 4 GiB or more, which a zip archive of this kind cannot
// hold.
StatusOr<std::string> NpzText(std::span<const NpzArray> arrays);

}  // namespace penstock
#endif  // CLIENT_COMMAND_NPZ_FILE_H_
