// Promise: of each kind of layout `penstock recipe check` finds what is
// missing, cut off, packed or in the wrong place, names the file, and finds
// nothing in a complete one; specs name the folder whatever characters it has.
// Method: small recipes of every kind, and files made for them; one thing is
// wrong in each case.
#include "client/command/recipe.h"

#include <sys/stat.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "client/command/recipe_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::recipe_test {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Number(uint64_t value, int bytes, bool big = false) {
  std::string text;
  for (int i = 0; i < bytes; ++i) {
    const char byte = static_cast<char>(value >> (8 * i));
    text.insert(big ? text.begin() : text.end(), byte);
  }
  return text;
}

class RecipeTest : public testing::Test {
 protected:
  RecipeTest() {
    std::string name = testing::TempDir() + "/penstock-recipe-XXXXXX";
    folder_ = fs::canonical(mkdtemp(name.data()));
  }
  ~RecipeTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  void Write(const std::string& name, const std::string& bytes) {
    fs::create_directories(fs::path(Path(name)).parent_path());
    std::ofstream(Path(name), std::ios::binary) << bytes;
  }
  void WriteGzip(const std::string& name, const std::string& bytes) {
    const gzFile file = gzopen(Path(name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
  }

  static Recipe Made(const std::string& files) {
    const StatusOr<Recipe> recipe = ParseRecipe(
        "small",
        "recipe: small\nwhat: w\nlayout: l\nhad: h\ninside: [in/side]\n"
        "splits: {train: 4, test: ~}\nfiles:\n" +
            files + "\n---\na: ${PATH}\n---\nb: 1\n");
    EXPECT_TRUE(recipe.ok()) << recipe.status().message();
    return *recipe;
  }

  // "FILE: what was found" of each problem.
  std::vector<std::string> Problems(const std::string& files,
                                    const std::string& split = "") {
    const StatusOr<RecipeCheck> check =
        CheckFiles(Made(files), folder_, split, [](uint64_t, uint64_t) {});
    EXPECT_TRUE(check.ok()) << check.status().message();
    std::vector<std::string> problems;
    for (const auto& each : check->problems) {
      problems.push_back(each.file + ": " + each.found);
    }
    last_ = *check;
    return problems;
  }

  std::string folder_;
  RecipeCheck last_;
};

TEST_F(RecipeTest, EachOfTheCommandIsWhole) {
  const auto recipes = AllRecipes();
  ASSERT_TRUE(recipes.ok()) << recipes.status().message();
  std::set<std::string> names;
  for (const Recipe& recipe : *recipes) {
    SCOPED_TRACE(recipe.name);
    names.insert(recipe.name);
    EXPECT_FALSE(recipe.what.empty());
    EXPECT_FALSE(recipe.had.empty());
    for (const Recipe::Split& split : recipe.splits) {
      EXPECT_THAT(split.spec, HasSubstr("\ndataset: " + recipe.name + "-" +
                                        split.name + "\n"));
      bool has_files = false;
      for (const RecipeFiles& files : recipe.files) {
        has_files |= files.split == split.name;
        // What a spec chooses from is what is looked for.
        if (files.file.size() < 2 || files.split != split.name) continue;
        EXPECT_THAT(split.spec, HasSubstr("${PATH/" + files.file[0] + "|" +
                                          files.file[1] + "}"));
      }
      EXPECT_TRUE(has_files) << split.name;
    }
  }
  for (const char* name :
       {"fashion-mnist", "mnist", "cifar10", "cifar100", "imagenet",
        "imagenet-tfrecord", "imagenet-webdataset", "voc-segmentation", "c4",
        "fineweb"}) {
    EXPECT_EQ(names.count(name), 1) << name;
  }
}

TEST_F(RecipeTest, MistakesInItAreTold) {
  const auto error = [](const std::string& text) {
    return ParseRecipe("x", text).status().message();
  };
  EXPECT_THAT(error("recipe: x\nwhat: [\n"), HasSubstr("recipe x: "));
  EXPECT_THAT(error("recipe: x\nwhat: w\nlike: y\n---\n"),
              HasSubstr("no such recipe"));
  const std::string head = "recipe: x\nwhat: w\nlayout: l\nhad: h\n";
  EXPECT_THAT(error(head + "splits: {a: 1}\nfiles: []\nfile: 1\n---\ns\n"),
              HasSubstr("unknown key"));
  EXPECT_THAT(error(head + "splits: {a: 1, b: 2}\nfiles: []\n---\ns\n"),
              HasSubstr("a spec for each split"));
  EXPECT_THAT(
      error(head + "splits: {a: 1}\nfiles: [{split: b, file: f}]\n---\ns\n"),
      HasSubstr("no split 'b'"));
  EXPECT_THAT(
      error(head + "splits: {a: 1}\nfiles: [{split: a, file: f, size: 1}]\n"
                   "---\ns\n"),
      HasSubstr("unknown key"));
  EXPECT_THAT(error(head + "splits: {a: 1}\nfiles: [{split: a}]\n---\ns\n"),
              HasSubstr("wanted one of"));
}

TEST_F(RecipeTest, FilesOfAnOfficialSize) {
  const std::string files =
      "  - {split: train, file: \"d_{08..10}\", bytes: 3}";
  for (const char* name : {"d_08", "d_09", "d_10"}) Write(name, "abc");
  EXPECT_THAT(Problems(files), IsEmpty());
  EXPECT_EQ(last_.files, 3);
  EXPECT_EQ(last_.bytes, 9);
  Write("d_08", "ab");
  Write("d_09", "abcd");
  fs::remove(Path("d_10"));
  Write("d_10.gz", "x");
  EXPECT_THAT(Problems(files),
              ElementsAre("d_08: has 2 bytes instead of 3: cut off",
                          "d_09: has 4 bytes instead of 3",
                          "d_10: is packed, as d_10.gz; unpack it"));
  EXPECT_THAT(last_.damaged, ElementsAre("train"));
  EXPECT_THAT(Problems(files, "test"), IsEmpty());
  Write("d_08", "");
  fs::remove(Path("d_09"));
  fs::create_directory(Path("d_09"));
  fs::remove(Path("d_10.gz"));
  mkfifo(Path("d_10").c_str(), 0600);
  EXPECT_THAT(Problems(files), ElementsAre("d_08: is empty", "d_09: is no file",
                                           "d_10: is no file"));
}

TEST_F(RecipeTest, APointerOfGitLfsIsTold) {
  Write("d", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n");
  EXPECT_THAT(Problems("  - {split: train, file: d, format: tar}"),
              ElementsAre(HasSubstr("git lfs pull")));
}

TEST_F(RecipeTest, IdxPlainOrPacked) {
  const std::string files = "  - {split: train, file: [i.gz, i], idx: [2, 3]}";
  const std::string whole = Number(0x802, 4, true) + Number(2, 4, true) +
                            Number(3, 4, true) + "abcdef";
  EXPECT_THAT(Problems(files), ElementsAre("i.gz: is missing"));
  Write("i", whole);
  EXPECT_THAT(Problems(files), IsEmpty());
  Write("i", whole.substr(0, 17));
  EXPECT_THAT(Problems(files),
              ElementsAre("i: has 17 bytes instead of 18: cut off"));
  Write("i", whole.substr(0, 9));
  EXPECT_THAT(Problems(files), ElementsAre(HasSubstr("i: is no IDX file")));
  WriteGzip("i.gz", whole);
  EXPECT_THAT(Problems(files), IsEmpty());
  fs::resize_file(Path("i.gz"), fs::file_size(Path("i.gz")) - 2);
  EXPECT_THAT(Problems(files), ElementsAre(HasSubstr("cut off")));
  Write("i.gz", "\x1f\x8b");
  EXPECT_THAT(Problems(files), ElementsAre(HasSubstr("no IDX file")));
  WriteGzip("i.gz",
            Number(0x802, 4, true) + Number(9, 4, true) + Number(3, 4, true));
  EXPECT_THAT(Problems(files),
              ElementsAre("i.gz: says 9 where the official file has 2"));
}

TEST_F(RecipeTest, TfrecordTarAndJsonLinesCutOff) {
  const std::string record = "  - {split: train, file: r, format: tfrecord}";
  Write("r", Number(5, 8) + "crc." + "bytes" + "crc.");
  EXPECT_THAT(Problems(record), IsEmpty());
  Write("r", Number(6, 8) + "crc." + "bytes" + "crc.");
  EXPECT_THAT(Problems(record), ElementsAre(HasSubstr("no whole first")));
  Write("r", Number(~uint64_t{0} - 15, 8) + "crc." + "bytes" + "crc.");
  EXPECT_THAT(Problems(record), ElementsAre(HasSubstr("no whole first")));
  const std::string tar = "  - {split: train, file: t, format: tar}";
  Write("t", std::string(512, 'x') + std::string(1024, '\0'));
  EXPECT_THAT(Problems(tar), IsEmpty());
  Write("t", std::string(1536, 'x'));
  EXPECT_THAT(Problems(tar), ElementsAre(HasSubstr("t: does not end")));
  Write("t", std::string(512, 'x') + std::string(1025, '\0'));
  EXPECT_THAT(Problems(tar), ElementsAre(HasSubstr("t: does not end")));
  const std::string json = "  - {split: train, file: j, format: json_lines}";
  Write("j", "{}\n");
  EXPECT_THAT(Problems(json), IsEmpty());
  Write("j", "{\"text\": \"cut");
  EXPECT_THAT(Problems(json), ElementsAre(HasSubstr("within a line")));
  Write("j", "\x1f\x8b" + std::string(30, '}'));
  EXPECT_THAT(Problems(json), ElementsAre(HasSubstr("is packed")));
}

TEST_F(RecipeTest, TokenShardsInARow) {
  const std::string files =
      "  - {split: train, numbered: s_*.bin, first: 1, format: token_shard}";
  EXPECT_THAT(Problems(files),
              ElementsAre("s_*.bin: is missing: no such file"));
  const std::string whole = Number(20240520, 4) + Number(1, 4) + Number(2, 4) +
                            std::string(1012, '\0') + "abcd";
  Write("s_000001.bin", whole);
  Write("s_000002.bin", whole);
  Write("s_000002.bin.part", "x");
  Write("s_x.bin", "x");
  EXPECT_THAT(Problems(files), IsEmpty());
  EXPECT_EQ(last_.files, 2);
  Write("s_000004.bin", whole.substr(0, 1027));
  EXPECT_THAT(
      Problems(files),
      ElementsAre("s_000003.bin: is missing",
                  "s_000004.bin: has 1,027 bytes instead of 1,028: cut off"));
  Write("s_000003.bin", "x");
  Write("s_000004.bin", whole);
  EXPECT_THAT(Problems(files), ElementsAre(HasSubstr("s_000003.bin: does not "
                                                     "begin")));
}

TEST_F(RecipeTest, ShardsThatSayHowManyThereAre) {
  const std::string files =
      "  - {split: train, numbered: t.*-of-*.json, first: 0, format: "
      "json_lines}";
  Write("t.00000-of-00003.json", "{}\n");
  Write("t.00001-of-00003.json.gz", "x");
  EXPECT_THAT(Problems(files),
              ElementsAre("t.00001-of-00003.json: is packed, as "
                          "t.00001-of-00003.json.gz; unpack it",
                          "t.00002-of-00003.json: is missing"));
  Write("t.00001-of-00003.json", "{}\n");
  Write("t.00002-of-00003.json", "{}\n");
  EXPECT_THAT(Problems(files), IsEmpty());
  Write("t.00000-of-00001.json", "{}\n");
  EXPECT_THAT(Problems(files), ElementsAre(HasSubstr("side by side")));
  fs::remove(Path("t.00000-of-00001.json"));
  Write("t.00005-of-00003.json", "{}\n");
  EXPECT_THAT(Problems(files),
              Contains(HasSubstr("t.00005-of-00003.json: has a number")));
}

TEST_F(RecipeTest, FoldersOfClasses) {
  const std::string files =
      "  - {split: train, classes: train, names: \"n??\", folders: 2, "
      "pictures: 4, each: [1, 3]}\n"
      "  - {split: test, classes: val, names: \"n??\", folders: 2, pictures: "
      "2, each: [1, 1]}";
  EXPECT_THAT(Problems(files),
              ElementsAre("train/: is missing", "val/: is missing"));
  fs::create_directories(Path("in/side"));
  Problems(files);
  EXPECT_EQ(last_.inside, "in/side");
  for (const char* name :
       {"train/n01/1.JPEG", "train/n01/2.jpeg", "train/n01/3.JPEG",
        "train/n02/1.JPEG", "val/n01/1.JPEG", "val/n02/1.JPEG"}) {
    Write(name, "x");
  }
  EXPECT_THAT(Problems(files), IsEmpty());
  EXPECT_EQ(last_.files, 6);
  Write("train/n02/2.JPEG", "");
  fs::rename(Path("val/n02"), Path("val/n03"));
  EXPECT_THAT(
      Problems(files),
      ElementsAre("train/n02/2.JPEG: is empty",
                  "train/: has 5 pictures in class folders instead of 4",
                  "val/n02: is missing, but train/n02 is there: labels would "
                  "differ"));
  fs::remove_all(Path("val"));
  Write("val/1.JPEG", "x");
  Write("val/other/1.JPEG", "x");
  Write("train/n03.tar", "x");
  fs::remove_all(Path("train/n02"));
  EXPECT_THAT(
      Problems(files),
      testing::UnorderedElementsAre(
          "train/n03.tar: is packed: unpack each such file into a folder of "
          "its name",
          "train/: has 1 class folder instead of 2",
          "train/: has 3 pictures in class folders instead of 4",
          "val/other: is the folder of no official class, and would be one "
          "more",
          "val/: has 1 picture in no folder of a class",
          "val/: has 0 class folders instead of 2",
          "val/: has 0 pictures in class folders instead of 2",
          "val/n01: is missing, but train/n01 is there: labels would differ"));
}

TEST_F(RecipeTest, FilesOfAList) {
  const std::string files =
      "  - {split: train, list: l/t.txt, lines: 2, of: [a/*.jpg, b/*.png]}";
  EXPECT_THAT(Problems(files), ElementsAre("l/t.txt: is missing"));
  Write("l/t.txt", "one\r\ntwo\n");
  for (const char* name : {"a/one.jpg", "b/one.png", "a/two.jpg"}) {
    Write(name, "x");
  }
  EXPECT_THAT(Problems(files), ElementsAre("b/two.png: is missing"));
  Write("b/two.png", "x");
  EXPECT_THAT(Problems(files), IsEmpty());
  Write("l/t.txt", "one\n");
  EXPECT_THAT(Problems(files), ElementsAre("l/t.txt: has 1 line instead of 2"));
  Write("l/t.txt", "one\n../two\n");
  EXPECT_THAT(Problems(files), ElementsAre(HasSubstr("l/t.txt: line 2")));
  Write("l/t.txt", "");
  EXPECT_THAT(Problems(files), ElementsAre(HasSubstr("l/t.txt: is empty")));
}

TEST_F(RecipeTest, AMissingFolderIsAnError) {
  const auto check = CheckFiles(Made("  - {split: train, file: f}"),
                                Path("none"), "", [](uint64_t, uint64_t) {});
  ASSERT_FALSE(check.ok());
  EXPECT_THAT(check.status().message(), HasSubstr(Path("none")));
}

TEST_F(RecipeTest, ASpecNamesTheFolder) {
  const auto made = [](const std::string& text, const std::string& folder) {
    Recipe::Split split;
    split.spec = text;
    return SpecOf(split, folder);
  };
  EXPECT_EQ(*made("a: \"${PATH}/x\"\n", ""), "a: \"./x\"\n");
  EXPECT_EQ(*made("a: \"${PATH}/x\"\n", "/d/e/../f//"), "a: \"/d/f/x\"\n");
  EXPECT_EQ(*made("a: \"${PATH}/x\"\n", "/d \"q\" \\"),
            "a: \"/d \\\"q\\\" \\\\/x\"\n");
  EXPECT_EQ(*made("a: \"${PATH}/x\"\n", "/d*"), "a: \"/d*/x\"\n");
  EXPECT_THAT(made("a: \"${PATH}/{0..1}\"\n", "/d*").status().message(),
              HasSubstr("another name"));
  EXPECT_THAT(made("a: \"${PATH}/x\"\n", "/d\xff").status().message(),
              HasSubstr("not UTF-8"));
  EXPECT_EQ(*made("\"${PATH/f.gz|f}\"", folder_), "\"" + folder_ + "/f.gz\"");
  Write("f", "x");
  EXPECT_EQ(*made("\"${PATH/f.gz|f}\"", folder_), "\"" + folder_ + "/f\"");
  EXPECT_THAT(made("[${NAMES t.txt .jpg}]", folder_).status().message(),
              HasSubstr(Path("t.txt")));
  Write("t.txt", "one\ntwo\n");
  EXPECT_EQ(*made("[${NAMES t.txt .jpg}]", folder_),
            "[\"one.jpg\", \"two.jpg\"]");
  std::string many;
  for (int i = 0; i < 9000; ++i) many += "name\n";
  Write("t.txt", many);
  EXPECT_THAT(made("[${NAMES t.txt .jpg}]", folder_).status().message(),
              HasSubstr("more names"));
}

}  // namespace penstock::recipe_test
