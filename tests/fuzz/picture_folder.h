// A folder of pictures for lists that name them: a, b and c/d.
#ifndef TESTS_FUZZ_PICTURE_FOLDER_H_
#define TESTS_FUZZ_PICTURE_FOLDER_H_

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/fuzz/require.h"

namespace penstock {

inline const std::string& Pictures() {
  static const std::string folder = [] {
    std::string pattern = "/tmp/penstock-fuzz-XXXXXX";
    Require(mkdtemp(pattern.data()) != nullptr, "a temporary folder");
    std::filesystem::create_directory(pattern + "/c");
    for (const char* name : {"/a", "/b", "/c/d"}) {
      std::ofstream(pattern + name) << "x";
    }
    return pattern;
  }();
  static const struct Remover {
    ~Remover() { std::filesystem::remove_all(folder); }
  } remover;
  return folder;
}

}  // namespace penstock
#endif  // TESTS_FUZZ_PICTURE_FOLDER_H_
