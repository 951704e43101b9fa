// A folder of a test's own, removed at its end.
#ifndef TESTS_UNIT_FOLDER_FIXTURE_H_
#define TESTS_UNIT_FOLDER_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace penstock {

class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name =
        std::filesystem::temp_directory_path() / "penstock-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path;
  }
  std::filesystem::path folder_;
};

}  // namespace penstock
#endif  // TESTS_UNIT_FOLDER_FIXTURE_H_
