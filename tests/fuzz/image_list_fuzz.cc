// The input is a delimiter and a list of pictures. It is opened as source
// image_list, with a header and without one, for rows whose pictures are there
// and for all: refused as documented, or every path is in the folder, every
// class has its name and every feature its size. A path is accepted only if it
// stays in its folder.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "broker/source/kinds.h"
#include "broker/source/listed_files.h"
#include "tests/fuzz/file_of.h"
#include "tests/fuzz/picture_folder.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

constexpr uint64_t kMaxBytes = 5;

void CheckPath(std::string_view path) {
  if (!CheckListedPath(path, "folder", false).ok()) return;
  const auto normal =
      std::filesystem::path(path).lexically_normal().generic_string();
  Require(!path.starts_with('/') && normal != ".." &&
              !normal.starts_with("../") && path.find('\0') == path.npos,
          "an accepted path stays in its folder");
}

void CheckSource(std::string_view text, char delimiter, bool header,
                 OnMissing on_missing) {
  ImageListSource spec;
  spec.file = FileOf(text);
  spec.folder = Pictures();
  const auto from = [header](const char* name, const char* number) {
    return header ? name : number;
  };
  TextField picture{.from = from("a", "0")};
  picture.encoded = true;
  TextField label{.from = from("b", "1")};
  label.classes.emplace();
  spec.columns = {{"image", picture},
                  {"label", label},
                  {"again", picture},
                  {"text", {.from = from("b", "1"), .max_bytes = kMaxBytes}}};
  spec.delimiter = delimiter;
  spec.header = header;
  spec.longer = Longer::kCut;
  spec.on_missing = on_missing;
  OpenProgress progress;
  const auto source = spec.Open(&progress);
  if (!source.ok()) {
    const StatusCode code = source.status().code();
    Require(code == StatusCode::kInvalidArgument ||
                code == StatusCode::kDataLoss || code == StatusCode::kNotFound,
            "a list is refused as documented");
    return;
  }
  const std::vector<std::string> names = (*source)->class_names();
  Require(std::is_sorted(names.begin(), names.end()), "classes are sorted");
  const std::string read = "xyz";
  const uint64_t ends[] = {1, 3};
  std::vector<std::byte> scratch;
  RawRecord raw;
  for (uint64_t i = 0; i < (*source)->record_count(); ++i) {
    ReadRequest request;
    (*source)->Locate(i, &request);
    Require(request.more.size() == 1, "a row has two pictures");
    Require(request.path.starts_with(Pictures() + "/") &&
                request.path == request.more[0].path,
            "a picture is in the folder");
    Require(
        (*source)
            ->Unpack(i, {std::as_bytes(std::span(read)), ends}, &scratch, &raw)
            .ok(),
        "a row is whole");
    for (size_t f = 0; f < raw.size(); ++f) {
      const RawFeature& feature = (*source)->raw_spec()[f];
      Require(feature.encoded || raw[f].size() == feature.feature.RowBytes(),
              "a feature has its size");
    }
    int64_t number = 0;
    std::memcpy(&number, raw[1].data(), sizeof(number));
    Require(number >= 0 && static_cast<size_t>(number) < names.size(),
            "a class has a name");
  }
}

void Check(const uint8_t* data, size_t size) {
  Input input(data, size);
  const char delimiter = ",;\t "[input.Byte() % 4];
  const std::string_view text = input.Rest();
  CheckPath(text);
  for (const bool header : {false, true}) {
    CheckSource(text, delimiter, header, OnMissing::kSkip);
    CheckSource(text, delimiter, header, OnMissing::kError);
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check(data, size);
  return 0;
}
