// Files in NumPy's format, also ones that NumPy would not write.
#ifndef TESTS_UNIT_NUMPY_FILE_H_
#define TESTS_UNIT_NUMPY_FILE_H_

#include <cstdint>
#include <string>

namespace penstock {

// A file of this version: magic, length, header, values.
inline std::string NpyOf(const std::string& header, const std::string& values,
                         char version = 1) {
  std::string npy = "\x93NUMPY";
  npy += {version, 0};
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) {
    npy += static_cast<char>(header.size() >> 8 * i & 0xff);
  }
  return npy + header + values;
}

// The header as NumPy writes it, without its padding.
inline std::string NpyHeaderText(const std::string& descr,
                                 const std::string& shape,
                                 const std::string& fortran_order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran_order +
         ", 'shape': " + shape + ", }\n";
}

}  // namespace penstock
#endif  // TESTS_UNIT_NUMPY_FILE_H_
