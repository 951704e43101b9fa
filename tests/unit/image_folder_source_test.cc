// Promise: source image_folder lists classes and files in byte order, its
// cached index is used only while it is true, and errors name the folder and
// the way out. Method: folders made and changed here. No picture is decoded, so
// the files hold any text.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "broker/source/kinds.h"

namespace penstock::image_folder_source_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class ImageFolderSourceTest : public testing::Test {
 protected:
  ImageFolderSourceTest() {
    std::string pattern = testing::TempDir() + "penstock-folder-XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    chmod(pattern.c_str(), 0755);
    base_ = pattern;
    root_ = base_ + "/data";
    fs::create_directory(root_);
    setenv("PENSTOCK_CACHE_DIR", (base_ + "/a/cache").c_str(), 1);
  }
  ~ImageFolderSourceTest() override {
    unsetenv("PENSTOCK_CACHE_DIR");
    fs::remove_all(base_);
  }

  void Add(const std::string& name) {
    fs::create_directories(fs::path(root_ + "/" + name).parent_path());
    std::ofstream(root_ + "/" + name) << "picture";
  }

  // Sets every folder's modification time to long ago, so that the index is
  // cached; later calls set later times.
  void FinishRecovery() {
    ++settled_s_;
    KeepTimes();
  }
  void KeepTimes() {
    SetModified(root_);
    for (const auto& entry : fs::recursive_directory_iterator(root_)) {
      if (entry.is_directory() && !entry.is_symlink()) {
        SetModified(entry.path());
      }
    }
  }
  void SetModified(const std::string& path) {
    const timespec times[2] = {{settled_s_, 5}, {settled_s_, 5}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }

  // Adds a file without changing modification times.
  void AddUnseen(const std::string& name) {
    Add(name);
    SetModified(fs::path(root_ + "/" + name).parent_path());
  }

  // The only file in the cache folder, "" if there is none.
  std::string CacheFile() {
    const std::string folder = base_ + "/a/cache";
    if (!fs::exists(folder)) return "";
    std::string found;
    for (const auto& entry : fs::directory_iterator(folder)) {
      EXPECT_EQ(found, "");
      found = entry.path();
    }
    return found;
  }

  ImageFolderSource Spec() const {
    return {.path = root_, .labels = labels_, .masks = masks_};
  }
  std::unique_ptr<Source> Open() {
    auto source = OpenSource(Spec(), &progress_);
    EXPECT_TRUE(source.ok()) << source.status().message();
    return source.ok() ? *std::move(source) : nullptr;
  }

  std::string OpenFails(StatusCode code) {
    const auto source = OpenSource(Spec(), &progress_);
    EXPECT_EQ(source.status().code(), code) << source.status().message();
    return source.status().message();
  }

  // "cat/1.jpg=0" for every record, in order.
  std::vector<std::string> Records(const Source* source) {
    std::vector<std::string> records;
    if (source == nullptr) return records;
    ReadRequest request;
    const std::string picture = "picture";
    for (uint64_t i = 0; i < source->record_count(); ++i) {
      source->Locate(i, &request);
      EXPECT_EQ(request.kind, ReadRequest::Kind::kFile);
      EXPECT_EQ(request.path, source->Describe(i));
      EXPECT_EQ(request.path.rfind(root_ + "/", 0), 0u);
      RawRecord raw;
      EXPECT_TRUE(
          source->Unpack(i, {std::as_bytes(std::span(picture))}, nullptr, &raw)
              .ok());
      EXPECT_EQ(raw.at(0).size(), picture.size());
      int64_t label;
      std::memcpy(&label, raw.at(1).data(), sizeof(label));
      records.push_back(request.path.substr(root_.size() + 1) + "=" +
                        std::to_string(label));
    }
    return records;
  }
  std::vector<std::string> Records() { return Records(Open().get()); }

  // The paths that are read for each record, from the folder of all.
  std::vector<std::string> Paths(const Source* source) {
    std::vector<std::string> paths;
    for (uint64_t i = 0; source != nullptr && i < source->record_count(); ++i) {
      ReadRequest request;
      source->Locate(i, &request);
      std::string& text =
          paths.emplace_back(request.path.substr(base_.size() + 1));
      for (const ReadPart& part : request.more) {
        EXPECT_EQ(part.kind, ReadPart::Kind::kFile);
        text += " " + part.path.substr(base_.size() + 1);
      }
    }
    return paths;
  }
  std::vector<std::string> Paths() { return Paths(Open().get()); }

  std::string base_;
  std::string root_;
  std::optional<ImageFolderSource::Labels> labels_;
  std::optional<MaskFolder> masks_;
  time_t settled_s_ = 1'700'000'000;
  OpenProgress progress_;
};

TEST_F(ImageFolderSourceTest, ClassesAndFilesAreInByteOrder) {
  for (const char* name :
       {"dog/b.jpg", "dog/B.jpg", "dog/a.JPEG", "cat/10.jpg", "cat/9.jpg",
        "cat/nested/deep/1.jpe", "cat/nested.jpg", "Zebra/x.JPG", "dog/.a.jpg",
        ".hidden/a.jpg", "dog/notes.txt", "dog/c.PNG", "dog/d.webp",
        "dog/e.Tif", "dog/f.tiff", "dog/g.gif", "dog/h.bmp", "empty/readme"}) {
    Add(name);
  }
  auto source = Open();
  EXPECT_THAT(
      Records(source.get()),
      ElementsAre("Zebra/x.JPG=0", "cat/10.jpg=1", "cat/9.jpg=1",
                  "cat/nested.jpg=1", "cat/nested/deep/1.jpe=1", "dog/B.jpg=2",
                  "dog/a.JPEG=2", "dog/b.jpg=2", "dog/c.PNG=2", "dog/d.webp=2",
                  "dog/e.Tif=2", "dog/f.tiff=2", "dog/h.bmp=2"));
  EXPECT_EQ(source->left_out(), "3 other files, like dog/notes.txt");
  EXPECT_THAT(source->class_names(),
              ElementsAre("Zebra", "cat", "dog", "empty"));
  EXPECT_EQ(progress_.done.load(), 13u);
  EXPECT_TRUE(source->raw_spec()[0].encoded);
  EXPECT_EQ(source->raw_spec()[1].feature,
            (Feature{"label", DType::kInt64, {}}));
}

TEST_F(ImageFolderSourceTest, ManyClassesAreWalkedTogether) {
  for (int i = 0; i < 300; ++i) {
    Add(Format("c{:03}/{}.jpg", i, i));
  }
  auto source = Open();
  ASSERT_EQ(source->record_count(), 300u);
  for (uint64_t i = 0; i < 300; ++i) {
    EXPECT_EQ(source->Describe(i), Format("{}/c{:03}/{}.jpg", root_, i, i));
  }
  // Paths below the class folders, 8 bytes a file; a class 28, its name, and as
  // a folder 24 and its path.
  EXPECT_LE(source->memory_bytes(), 300u * (7 + 8 + 28 + 4 + 24 + 4));
}

TEST_F(ImageFolderSourceTest, LinksAreFollowedAndLoopsEnd) {
  Add("cat/1.jpg");
  fs::create_directory(base_ + "/elsewhere");
  std::ofstream(base_ + "/elsewhere/2.jpg") << "picture";
  fs::create_symlink(base_ + "/elsewhere/2.jpg", root_ + "/cat/2.jpg");
  fs::create_symlink(base_ + "/elsewhere", root_ + "/linked");
  fs::create_symlink("..", root_ + "/cat/up");
  fs::create_symlink(".", root_ + "/cat/self");
  fs::create_symlink("nothing", root_ + "/cat/dangling");
  EXPECT_THAT(Records(),
              ElementsAre("cat/1.jpg=0", "cat/2.jpg=0", "linked/2.jpg=1"));
}

TEST_F(ImageFolderSourceTest, DepthIsBounded) {
  std::string path = "cat";
  for (int i = 1; i < 32; ++i) path += "/d";
  Add(path + "/1.jpg");
  EXPECT_THAT(Records(), SizeIs(1));
  Add(path + "/d/2.jpg");
  EXPECT_THAT(OpenFails(StatusCode::kInvalidArgument),
              HasSubstr("more than 32 folders deep"));
}

TEST_F(ImageFolderSourceTest, EmptyFileIsTheRecordsError) {
  Add("cat/1.jpg");
  auto source = Open();
  RawRecord raw;
  const Status status = source->Unpack(0, {}, nullptr, &raw);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("cat/1.jpg: is empty"));
}

TEST_F(ImageFolderSourceTest, WhatIsNoClassFolderIsExplained) {
  EXPECT_THAT(
      OpenFails(StatusCode::kInvalidArgument),
      HasSubstr(root_ + ": the folder is empty; wanted one sub-folder"));
  Add("1.jpg");
  Add("2.JPG");
  Add("labels.csv");
  EXPECT_THAT(OpenFails(StatusCode::kInvalidArgument),
              HasSubstr("has 2 pictures but no class sub-folder; put them in "
                        "one folder per class"));
  Add("cat/1.gif");
  Add("dog/2.gif");
  EXPECT_THAT(
      OpenFails(StatusCode::kInvalidArgument),
      HasSubstr(
          "2 class sub-folders, but no picture in them (.jpg, .jpeg, "
          ".jpe, .png, .webp, .tif, .tiff, .bmp, .pgm, .ppm); 2 other files, "
          "like cat/1.gif"));
}

TEST_F(ImageFolderSourceTest, MissingAndWrongPathsAreNamed) {
  root_ = base_ + "/no/such/folder";
  EXPECT_THAT(OpenFails(StatusCode::kNotFound),
              HasSubstr(root_ + ": there is no such file or folder; " + base_ +
                        "/no is missing"));
  root_ = base_ + "/file";
  std::ofstream(root_) << "x";
  EXPECT_THAT(OpenFails(StatusCode::kInvalidArgument), HasSubstr("is a file"));
}

TEST_F(ImageFolderSourceTest, ScanCanBeCancelled) {
  Add("cat/1.jpg");
  progress_.cancel = true;
  OpenFails(StatusCode::kCancelled);
}

TEST_F(ImageFolderSourceTest, FolderThatMayNotBeEnteredIsNamedWithTheWaysOut) {
  Add("cat/1.jpg");
  const bool root_user = geteuid() == 0;
  ASSERT_EQ(chmod(root_.c_str(), root_user ? 0700 : 0000), 0);
  root_ += "/cat";
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t child = fork();
  if (child == 0) {
    // root can read everything
    if (root_user && (setgroups(0, nullptr) != 0 || setgid(65534) != 0 ||
                      setuid(65534) != 0)) {
      _exit(2);
    }
    const std::string text = OpenFails(StatusCode::kPermissionDenied);
    (void)!write(pipe_fds[1], text.data(), text.size());
    _exit(0);
  }
  close(pipe_fds[1]);
  char text[4096] = {};
  (void)!read(pipe_fds[0], text, sizeof(text) - 1);
  close(pipe_fds[0]);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  ASSERT_EQ(chmod((base_ + "/data").c_str(), 0700), 0);
  EXPECT_THAT(text,
              AllOf(HasSubstr(root_ + ": Permission denied"),
                    HasSubstr("may not enter " + base_ + "/data."),
                    HasSubstr(Format("uid {}", root_user ? 65534 : geteuid())),
                    HasSubstr("penstock run"), HasSubstr("setfacl")));
}

TEST_F(ImageFolderSourceTest, CacheGivesTheSameIndex) {
  Add("cat/1.jpg");
  Add("cat/x/2.jpg");
  Add("dog/1.jpg");
  Add("empty/none");
  Add("cat/x/2.gif");
  FinishRecovery();
  auto scanned = Open();
  ASSERT_NE(CacheFile(), "");
  EXPECT_EQ(scanned->left_out(), "2 other files, like cat/x/2.gif");
  // The cache cannot know this file: it shows which of the two answers.
  AddUnseen("cat/unseen.jpg");
  auto cached = Open();
  EXPECT_THAT(Records(scanned.get()), SizeIs(3));
  EXPECT_EQ(Records(scanned.get()), Records(cached.get()));
  EXPECT_EQ(scanned->class_names(), cached->class_names());
  EXPECT_EQ(scanned->left_out(), cached->left_out());
}

TEST_F(ImageFolderSourceTest, ChangeOfAnyFolderIsNoticed) {
  Add("cat/x/1.jpg");
  FinishRecovery();
  EXPECT_THAT(Records(), SizeIs(1));
  Add("cat/x/2.jpg");
  EXPECT_THAT(Records(), SizeIs(2));
  FinishRecovery();
  EXPECT_THAT(Records(), SizeIs(2));
  Add("cow/1.jpg");
  EXPECT_THAT(Records(), SizeIs(3));
  FinishRecovery();
  EXPECT_THAT(Records(), SizeIs(3));
  // Another folder of the same name and time.
  fs::rename(root_ + "/cow", base_ + "/cow");
  Add("cow/2.jpg");
  KeepTimes();
  EXPECT_THAT(Records(),
              ElementsAre("cat/x/1.jpg=0", "cat/x/2.jpg=0", "cow/2.jpg=1"));
}

TEST_F(ImageFolderSourceTest, KnowsWhenItHasChanged) {
  Add("cat/x/1.jpg");
  Add("dog/1.jpg");
  // A folder that just changed could change again within the same timestamp.
  EXPECT_TRUE(Open()->Changed());
  for (const bool cached : {false, true}) {
    FinishRecovery();
    if (cached) (void)Open();
    const std::unique_ptr<Source> source = Open();
    EXPECT_FALSE(source->Changed());
    Add("cat/x/" + std::to_string(cached) + ".png");
    EXPECT_TRUE(source->Changed());
    fs::remove_all(root_ + "/dog");
    EXPECT_TRUE(source->Changed());
    Add("dog/1.jpg");
  }
}

TEST_F(ImageFolderSourceTest, FolderThatChangedJustNowIsNotCached) {
  Add("cat/1.jpg");
  EXPECT_THAT(Records(), SizeIs(1));
  EXPECT_EQ(CacheFile(), "");
}

TEST_F(ImageFolderSourceTest, DamagedCacheIsIgnoredWhereverItIsDamaged) {
  Add("cat/1.jpg");
  Add("dog/2.jpg");
  FinishRecovery();
  const auto records = Records();
  const std::string path = CacheFile();
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  ASSERT_GT(whole.size(), 80u);
  AddUnseen("cat/new.jpg");
  // The new file is in the index: it was scanned, not taken from the cache.
  const auto expect_scan = [&](const std::string& content,
                               const std::string& what) {
    fs::remove(path);
    std::ofstream(path, std::ios::binary) << content;
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
    EXPECT_THAT(Records(), SizeIs(3)) << what;
  };
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x81);
    expect_scan(damaged, Format("byte {}", i));
    expect_scan(whole.substr(0, i), Format("cut at {}", i));
  }
  expect_scan(whole + "x", "longer");
  std::ofstream(path, std::ios::binary | std::ios::trunc) << whole;
  EXPECT_EQ(Records(), records) << "the whole one is believed";
}

TEST_F(ImageFolderSourceTest, CacheThatOthersCanWriteIsIgnored) {
  Add("cat/1.jpg");
  FinishRecovery();
  EXPECT_THAT(Records(), SizeIs(1));
  AddUnseen("cat/2.jpg");
  ASSERT_EQ(chmod(CacheFile().c_str(), 0666), 0);
  EXPECT_THAT(Records(), SizeIs(2));
}

// ---- without labels

constexpr auto kNone = ImageFolderSource::Labels::kNone;

TEST_F(ImageFolderSourceTest, WithoutLabelsAllPicturesComeInByteOrder) {
  for (const char* name :
       {"b.jpg", "a/1.png", "a/deep/2.tif", "a-b/3.jpg", "a.jpg", "a/.4.jpg",
        "notes.txt", "a/notes.txt", ".hidden/5.jpg", "c/6.JPG"}) {
    Add(name);
  }
  labels_ = kNone;
  auto source = Open();
  EXPECT_THAT(Paths(source.get()),
              ElementsAre("data/a-b/3.jpg", "data/a.jpg", "data/a/1.png",
                          "data/a/deep/2.tif", "data/b.jpg", "data/c/6.JPG"));
  EXPECT_EQ(source->left_out(), "2 other files, like notes.txt");
  EXPECT_THAT(source->class_names(), SizeIs(0));
  EXPECT_THAT(source->raw_spec(), SizeIs(1));
  EXPECT_EQ(progress_.done.load(), 6u);
  RawRecord raw;
  const std::string picture = "picture";
  EXPECT_TRUE(
      source->Unpack(0, {std::as_bytes(std::span(picture))}, nullptr, &raw)
          .ok());
  EXPECT_THAT(raw, SizeIs(1));
}

TEST_F(ImageFolderSourceTest, AFlatFolderNeedsNoClasses) {
  Add("2.jpg");
  Add("1.jpg");
  labels_ = kNone;
  EXPECT_THAT(Paths(), ElementsAre("data/1.jpg", "data/2.jpg"));
  fs::remove(root_ + "/1.jpg");
  fs::remove(root_ + "/2.jpg");
  EXPECT_THAT(OpenFails(StatusCode::kInvalidArgument),
              HasSubstr(root_ + ": no picture in it (.jpg"));
}

TEST_F(ImageFolderSourceTest, WithAndWithoutLabelsHaveTheirOwnCaches) {
  Add("a/1.jpg");
  Add("2.jpg");
  FinishRecovery();
  for (int i = 0; i < 2; ++i) {
    labels_ = kNone;
    EXPECT_THAT(Paths(), ElementsAre("data/2.jpg", "data/a/1.jpg"));
    labels_.reset();
    EXPECT_THAT(Records(), ElementsAre("a/1.jpg=0"));
    AddUnseen(Format("a/unseen{}.jpg", i));
  }
  // Each at the place of the other is no index.
  std::vector<fs::path> caches(fs::directory_iterator(base_ + "/a/cache"), {});
  ASSERT_THAT(caches, SizeIs(2));
  fs::rename(caches[0], base_ + "/x");
  fs::rename(caches[1], caches[0]);
  fs::rename(base_ + "/x", caches[1]);
  EXPECT_THAT(Records(), SizeIs(3));
  labels_ = kNone;
  EXPECT_THAT(Paths(), SizeIs(4));
}

// ---- masks

TEST_F(ImageFolderSourceTest, APictureAndItsMaskAreOneSample) {
  for (const char* name :
       {"b/2.jpg", "a-b.jpg", "a.jpeg", "a/1.tif", "../masks/a.png",
        "../masks/a-b.png", "../masks/a/1.png", "../masks/b/2.png"}) {
    Add(name);
  }
  labels_ = kNone;
  masks_ = MaskFolder{.path = base_ + "/masks"};
  auto source = Open();
  EXPECT_THAT(
      Paths(source.get()),
      ElementsAre("data/a-b.jpg masks/a-b.png", "data/a.jpeg masks/a.png",
                  "data/a/1.tif masks/a/1.png", "data/b/2.jpg masks/b/2.png"));
  EXPECT_EQ(source->left_out(), "");
  EXPECT_EQ(source->raw_spec()[1].feature.name, "mask");
  EXPECT_TRUE(source->raw_spec()[1].encoded);
  const std::string both = "picturemask";
  const uint64_t ends[] = {7, 11};
  RawRecord raw;
  ASSERT_TRUE(
      source->Unpack(0, {std::as_bytes(std::span(both)), ends}, nullptr, &raw)
          .ok());
  ASSERT_THAT(raw, SizeIs(2));
  EXPECT_EQ(raw[1].size(), 4u);
  const uint64_t empty[] = {7, 7};
  EXPECT_THAT(source
                  ->Unpack(1, {std::as_bytes(std::span(both)).first(7), empty},
                           nullptr, &raw)
                  .message(),
              HasSubstr("masks/a.png: is empty"));
}

TEST_F(ImageFolderSourceTest, MasksOfClassesAndBesideThePictures) {
  for (const char* name : {"cat/1.jpg", "cat/1_mask.png", "dog/x/2.jpg",
                           "dog/x/2_mask.png", "empty/none"}) {
    Add(name);
  }
  masks_ = MaskFolder{.path = root_, .suffix = "_mask.png"};
  auto source = Open();
  EXPECT_THAT(Paths(source.get()),
              ElementsAre("data/cat/1.jpg data/cat/1_mask.png",
                          "data/dog/x/2.jpg data/dog/x/2_mask.png"));
  EXPECT_THAT(source->class_names(), ElementsAre("cat", "dog", "empty"));
  const std::string both = "picturemask";
  const uint64_t ends[] = {7, 11};
  RawRecord raw;
  ASSERT_TRUE(
      source->Unpack(1, {std::as_bytes(std::span(both)), ends}, nullptr, &raw)
          .ok());
  int64_t label = 0;
  std::memcpy(&label, raw.at(2).data(), sizeof(label));
  EXPECT_EQ(label, 1);
}

TEST_F(ImageFolderSourceTest, AMissingPartnerIsNamedOrLeftOut) {
  for (const char* name :
       {"1.jpg", "2.jpg", "3.jpg", "../masks/2.png", "../masks/4.png",
        "../masks/2.jpg", "../masks/notes"}) {
    Add(name);
  }
  labels_ = kNone;
  masks_ = MaskFolder{.path = base_ + "/masks"};
  const std::string text =
      "2 pictures without a mask, like " + root_ + "/1.jpg: no " + base_ +
      "/masks/1.png; 1 mask without a picture, like " + base_ + "/masks/4.png";
  EXPECT_EQ(OpenFails(StatusCode::kNotFound),
            text + "; `on_missing: skip` leaves them out");
  masks_->on_missing = OnMissing::kSkip;
  auto source = Open();
  EXPECT_THAT(Paths(source.get()), ElementsAre("data/2.jpg masks/2.png"));
  EXPECT_EQ(source->left_out(), text);
  masks_->suffix = "_seg.png";
  EXPECT_THAT(OpenFails(StatusCode::kInvalidArgument),
              HasSubstr("no picture has a mask in " + base_ +
                        "/masks: 3 "
                        "pictures without a mask"));
  masks_->suffix = ".png";
  Add("2.png");
  EXPECT_THAT(OpenFails(StatusCode::kInvalidArgument),
              HasSubstr("2.png: another picture has the mask"));
}

TEST_F(ImageFolderSourceTest, AChangedFolderOfMasksIsNoticed) {
  Add("1.jpg");
  Add("masks/1.png");
  FinishRecovery();
  labels_ = kNone;
  masks_ = MaskFolder{.path = root_ + "/masks"};
  (void)Open();
  auto source = Open();
  EXPECT_THAT(Paths(source.get()), ElementsAre("data/1.jpg data/masks/1.png"));
  EXPECT_FALSE(source->Changed());
  const std::string fingerprint = source->fingerprint();
  masks_.reset();
  EXPECT_NE(Open()->fingerprint(), fingerprint);
  Add("masks/2.png");
  EXPECT_TRUE(source->Changed());
}

TEST_F(ImageFolderSourceTest, WithoutACacheFolderItJustScans) {
  Add("cat/1.jpg");
  FinishRecovery();
  std::ofstream(base_ + "/file") << "x";
  setenv("PENSTOCK_CACHE_DIR", (base_ + "/file/below").c_str(), 1);
  EXPECT_THAT(Records(), SizeIs(1));
}

}  // namespace penstock::image_folder_source_test
