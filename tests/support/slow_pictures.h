// A dataset of pictures on storage that answers pending reads every half second
// (gated_file_system.h).
#ifndef TESTS_SUPPORT_SLOW_PICTURES_H_
#define TESTS_SUPPORT_SLOW_PICTURES_H_

#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/support/gated_file_system.h"

namespace penstock {

class SlowPictures {
 public:
  explicit SlowPictures(const std::filesystem::path& folder)
      : pictures_(Made(folder / "pictures" / "cat")),
        storage_(Made(folder / "mount"), SIZE_MAX) {
    // More than are read: a whole epoch must contain a picture.
    for (int i = 0; i < 5000; ++i) {
      const std::string file = std::to_string(i) + ".jpg";
      std::filesystem::create_symlink(folder / "mount" / file,
                                      pictures_ / file);
    }
  }
  bool mounted() const { return storage_.mounted(); }
  std::string Spec() const {
    return "dataset: pictures\nsource: {image_folder: {path: " +
           pictures_.parent_path().string() +
           "}}\nmap:\n  - decode_image: {size: [8, 8]}\n"
           "batch: {size: 8}\nepochs: forever\non_error: skip\n";
  }

 private:
  static std::filesystem::path Made(const std::filesystem::path& folder) {
    std::filesystem::create_directories(folder);
    return folder;
  }

  const std::filesystem::path pictures_;
  GatedFileSystem storage_;
};

}  // namespace penstock
#endif  // TESTS_SUPPORT_SLOW_PICTURES_H_
