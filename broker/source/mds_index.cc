#include "broker/source/mds_index.h"

#include <fcntl.h>
#include <simdjson.h>
#include <xxhash.h>

#include <algorithm>
#include <set>

#include "broker/index/in_parallel.h"
#include "broker/source/kinds.h"
#include "broker/source/listed_files.h"
#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {
namespace {

using Element = simdjson::dom::element;

constexpr uint64_t kIndexBytesMax = uint64_t{256} << 20;
// What simdjson takes for a byte of text, at most: 8 of its tape, 4 of its
// places, and those of a string; and the text.
constexpr uint64_t kParsedBytes = 16;
constexpr size_t kColumnsMax = 4096;

std::string Short(Element value) {
  return Printable(simdjson::minify(value).substr(0, 60));
}

// The value of a key, of one of simdjson's types.
template <typename Object, typename T>
Status Get(const Object& object, const char* key, std::string_view wanted,
           T* out) {
  Element value;
  if (object.at_key(key).get(value)) {
    return DataLossError("no `{}`; wanted {}", key, wanted);
  }
  if (value.get(*out)) {
    return DataLossError("`{}` is {}; wanted {}", key, Short(value), wanted);
  }
  return OkStatus();
}

Status CheckVersion(Element object) {
  uint64_t version = 0;
  PENSTOCK_RETURN_IF_ERROR(Get(object, "version", "2", &version));
  if (version == 2) return OkStatus();
  return InvalidArgumentError(
      "version {} of the format; version 2 is read, which MosaicML Streaming "
      "writes",
      version);
}

std::vector<Element> ItemsOf(simdjson::dom::array array) {
  std::vector<Element> items;
  for (const Element each : array) items.push_back(each);
  return items;
}

StatusOr<MdsColumns> ColumnsOf(Element shard) {
  simdjson::dom::array names;
  simdjson::dom::array encodings;
  simdjson::dom::array sizes;
  PENSTOCK_RETURN_IF_ERROR(Get(shard, "column_names", "a list", &names));
  PENSTOCK_RETURN_IF_ERROR(
      Get(shard, "column_encodings", "a list", &encodings));
  PENSTOCK_RETURN_IF_ERROR(Get(shard, "column_sizes", "a list", &sizes));
  const std::vector<Element> name = ItemsOf(names);
  const std::vector<Element> encoding = ItemsOf(encodings);
  const std::vector<Element> size = ItemsOf(sizes);
  if (name.empty() || name.size() > kColumnsMax ||
      name.size() != encoding.size() || name.size() != size.size()) {
    return DataLossError(
        "{} column_names, {} column_encodings and {} column_sizes; wanted as "
        "many of each, 1 to {}",
        name.size(), encoding.size(), size.size(), kColumnsMax);
  }
  std::vector<MdsColumn> columns;
  std::set<std::string_view> known;
  for (size_t i = 0; i < name.size(); ++i) {
    std::string_view name_text;
    std::string_view encoding_text;
    uint64_t bytes = 0;
    if (name[i].get(name_text) || encoding[i].get(encoding_text) ||
        (!size[i].is_null() && size[i].get(bytes))) {
      return DataLossError(
          "column {} is {}, {}, {}; wanted a name, an encoding and a number of "
          "bytes or null",
          i, Short(name[i]), Short(encoding[i]), Short(size[i]));
    }
    if (!known.insert(name_text).second) {
      return DataLossError("two columns '{}'", Printable(name_text));
    }
    PENSTOCK_ASSIGN_OR_RETURN(
        MdsColumn column,
        MdsColumn::Make(
            std::string(name_text), std::string(encoding_text),
            size[i].is_null() ? std::nullopt : std::optional(bytes)));
    columns.push_back(std::move(column));
  }
  return MdsColumns(std::move(columns));
}

Status CheckAlike(const MdsColumns& first, const MdsColumns& other) {
  for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
    const auto text = [i](const MdsColumns& columns) {
      return i < columns.size() ? columns[i].ToString() : "no column";
    };
    if (text(first) == text(other) && first[i].bytes == other[i].bytes) {
      continue;
    }
    return InvalidArgumentError(
        "{} is its column {}, where shard 0 has {}; shards of one dataset have "
        "the same columns: `concat` joins two datasets",
        text(other), i, text(first));
  }
  return OkStatus();
}

// A path within the folder.
Status ReadPath(simdjson::dom::object file, const std::string& folder,
                std::string* path) {
  std::string_view name;
  PENSTOCK_RETURN_IF_ERROR(Get(file, "basename", "a file's name", &name));
  if (!CheckListedPath(name, "path", false).ok()) {
    return InvalidArgumentError(
        "the name of its file is '{}', which is no path within the folder",
        Printable(name.substr(0, 400)));
  }
  *path = folder + "/" + std::string(name);
  return OkStatus();
}

StatusOr<MdsShard> ReadShard(Element object, const std::string& folder) {
  MdsShard shard;
  std::string_view format;
  PENSTOCK_RETURN_IF_ERROR(Get(object, "format", "\"mds\"", &format));
  if (format != "mds") {
    return InvalidArgumentError(
        "its format is {}; wanted mds (of csv and json files, the sources csv "
        "and json_lines)",
        Printable(format.substr(0, 40)));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckVersion(object));
  PENSTOCK_RETURN_IF_ERROR(
      Get(object, "samples", "a number of samples", &shard.samples));
  simdjson::dom::object raw;
  PENSTOCK_RETURN_IF_ERROR(Get(object, "raw_data", "{basename, bytes}", &raw));
  PENSTOCK_RETURN_IF_ERROR(ReadPath(raw, folder, &shard.path));
  PENSTOCK_RETURN_IF_ERROR(
      Get(raw, "bytes", "a number of bytes", &shard.bytes));
  if (simdjson::dom::object hashes; !raw.at_key("hashes").get(hashes)) {
    for (const auto& [algorithm, value] : hashes) {
      std::string_view hash;
      if (value.get(hash)) continue;
      shard.hashes.emplace_back(algorithm, hash);
    }
  }
  if (simdjson::dom::object zip; !object.at_key("zip_data").get(zip)) {
    PENSTOCK_RETURN_IF_ERROR(ReadPath(zip, folder, &shard.zip_path));
    std::string_view compression;
    if (!object.at_key("compression").get(compression)) {
      shard.compression = compression.substr(0, compression.find(':'));
    }
  }
  return shard;
}

// ---- files

// "brotli -d A -o B"; "": there is no such program.
std::string UnpackCommand(const MdsShard& shard) {
  const std::string zip = Printable(shard.zip_path);
  const std::string raw = Printable(shard.path);
  if (shard.compression == "br") return Format("brotli -d {} -o {}", zip, raw);
  return "";
}

bool Exists(const std::string& path, const FileAccess& access) {
  return access.Check(path).ok();
}

// The shard's file; if only the compressed one is there, and can be inflated,
// that one.
const std::string& FileToRead(const MdsShard& shard, const FileAccess& access) {
  const bool inflates = shard.compression == "zstd" ||
                        shard.compression == "gz" || shard.compression == "bz2";
  return inflates && !Exists(shard.path, access) &&
                 Exists(shard.zip_path, access)
             ? shard.zip_path
             : shard.path;
}

// The shard's file is not there.
Status MissingError(const MdsShard& shard, size_t number,
                    const FileAccess& access) {
  if (shard.zip_path.empty() || !Exists(shard.zip_path, access)) {
    return NotFoundError(
        "{} is not there, which index.json names as shard {}; copy the dataset "
        "again",
        Printable(shard.path), number);
  }
  const std::string command = UnpackCommand(shard);
  return InvalidArgumentError(
      "{} is compressed as a whole ({}), so no sample of it can be read by "
      "itself; {}",
      Printable(shard.zip_path), Printable(shard.compression),
      command.empty() ? "write the dataset without compression"
                      : Format("unpack it and all other shards: {}", command));
}

// ---- hashes

constexpr std::string_view kAlgorithms = "xxh3_64, xxh64, xxh128, xxh32";

template <typename State, typename Reset, typename Update>
Status Feed(const DataFile& file, OpenProgress* progress, State* state,
            Reset reset, Update update) {
  reset(state);
  std::vector<std::byte> block(size_t{1} << 20);
  for (uint64_t at = 0; at < file.bytes();) {
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t found,
                              file.Read(at, block, progress));
    if (found == 0) return DataLossError("{} became shorter", file.path());
    update(state, block.data(), found);
    at += found;
  }
  return OkStatus();
}

// In hexadecimal; "": of another algorithm.
StatusOr<std::string> HashOf(const DataFile& file, std::string_view algorithm,
                             OpenProgress* progress) {
  if (algorithm == "xxh32") {
    const std::unique_ptr<XXH32_state_t, decltype(&XXH32_freeState)> state(
        XXH32_createState(), XXH32_freeState);
    PENSTOCK_RETURN_IF_ERROR(Feed(
        file, progress, state.get(), [](auto* s) { XXH32_reset(s, 0); },
        XXH32_update));
    return Format("{:08x}", XXH32_digest(state.get()));
  }
  if (algorithm == "xxh64") {
    const std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> state(
        XXH64_createState(), XXH64_freeState);
    PENSTOCK_RETURN_IF_ERROR(Feed(
        file, progress, state.get(), [](auto* s) { XXH64_reset(s, 0); },
        XXH64_update));
    return Format("{:016x}", XXH64_digest(state.get()));
  }
  const bool is_64 = algorithm == "xxh3_64";
  if (!is_64 && algorithm != "xxh128" && algorithm != "xxh3_128") {
    return std::string();
  }
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(
      XXH3_createState(), XXH3_freeState);
  if (is_64) {
    PENSTOCK_RETURN_IF_ERROR(Feed(file, progress, state.get(),
                                  XXH3_64bits_reset, XXH3_64bits_update));
    return Format("{:016x}", XXH3_64bits_digest(state.get()));
  }
  PENSTOCK_RETURN_IF_ERROR(Feed(file, progress, state.get(), XXH3_128bits_reset,
                                XXH3_128bits_update));
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return Format("{:016x}{:016x}", hash.high64, hash.low64);
}

Status VerifyShard(const MdsShard& shard, const DataFile& file,
                   OpenProgress* progress) {
  std::string others;
  for (const auto& [algorithm, wanted] : shard.hashes) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string found,
                              HashOf(file, algorithm, progress));
    if (found.empty()) {
      others += (others.empty() ? "" : ", ") + Printable(algorithm);
      continue;
    }
    if (found == wanted) return OkStatus();
    return DataLossError(
        "{}: its {} is {}, by index.json {}; the file is damaged, or another: "
        "copy it again",
        file.path(), algorithm, found, Printable(wanted.substr(0, 80)));
  }
  return InvalidArgumentError(
      "{}: `verify` knows {}; index.json has {}: leave `verify` out",
      file.path(), kAlgorithms, others.empty() ? "no hash" : others);
}

}  // namespace

StatusOr<MdsIndex> MdsIndex::Read(const DataFile& file,
                                  OpenProgress* progress) {
  if (file.bytes() > kIndexBytesMax) {
    return InvalidArgumentError("{}: {} bytes; an index has at most {}",
                                file.path(), file.bytes(), kIndexBytesMax);
  }
  PENSTOCK_RETURN_IF_ERROR(progress->reserve(kParsedBytes * file.bytes()));
  std::vector<std::byte> text(file.bytes() + simdjson::SIMDJSON_PADDING);
  PENSTOCK_ASSIGN_OR_RETURN(
      const uint64_t bytes,
      file.Read(0, std::span(text).first(file.bytes()), progress));
  simdjson::dom::parser parser(kIndexBytesMax);
  Element document;
  const auto error = parser
                         .parse(reinterpret_cast<const uint8_t*>(text.data()),
                                bytes, /*realloc_if_needed=*/false)
                         .get(document);
  if (error) {
    return DataLossError("{}: not JSON: {}", file.path(),
                         simdjson::error_message(error));
  }
  const std::string folder = file.path().substr(0, file.path().rfind('/'));
  simdjson::dom::array shards;
  Status status = CheckVersion(document);
  if (status.ok()) status = Get(document, "shards", "a list", &shards);
  if (!status.ok()) return status.Prepend(file.path());
  MdsIndex index;
  uint64_t samples = 0;
  for (const Element each : shards) {
    const std::string where =
        Format("{}, shard {}", file.path(), index.shards.size());
    PENSTOCK_RETURN_IF_ERROR(progress->CheckCancelled(where));
    if (index.shards.size() == kFilesMax) {
      return InvalidArgumentError("{}: more than {} shards", file.path(),
                                  kFilesMax);
    }
    StatusOr<MdsShard> shard = ReadShard(each, folder);
    if (!shard.ok()) return shard.status().Prepend(where);
    StatusOr<MdsColumns> columns = ColumnsOf(each);
    if (!columns.ok()) return columns.status().Prepend(where);
    if (index.shards.empty()) index.columns = *columns;
    if (status = CheckAlike(index.columns, *columns); !status.ok()) {
      return status.Prepend(where);
    }
    samples |= shard->samples;
    index.shards.push_back(*std::move(shard));
  }
  if (samples == 0) {
    return InvalidArgumentError("{}: no sample in its {}", file.path(),
                                Counted(index.shards.size(), "shard"));
  }
  return index;
}

StatusOr<DataFiles> MdsIndex::OpenShards(const OpenProgress& progress) const {
  FilePatterns patterns;
  for (const MdsShard& each : shards) {
    PENSTOCK_RETURN_IF_ERROR(progress.CheckCancelled(each.path));
    patterns.patterns.push_back(FileToRead(each, *progress.access));
  }
  StatusOr<DataFiles> files = DataFiles::Open(patterns, progress);
  // A name that is not there could be a pattern.
  bool all = files.ok() && files->size() == shards.size();
  for (size_t i = 0; all && i < shards.size(); ++i) {
    all = (*files)[i].path() == patterns.patterns[i];
  }
  if (!all) {
    for (size_t i = 0; i < shards.size(); ++i) {
      PENSTOCK_RETURN_IF_ERROR(progress.CheckCancelled(shards[i].path));
      if (progress.access->Check(patterns.patterns[i]).code() !=
          StatusCode::kNotFound) {
        continue;
      }
      return MissingError(shards[i], i, *progress.access);
    }
    return files.ok() ? NotFoundError("the shards changed meanwhile")
                      : files.status();
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    const DataFile& file = (*files)[i];
    if (file.bytes() == shards[i].bytes) continue;
    return DataLossError(
        "{} has {} bytes, by index.json {}; it was cut off or is another: copy "
        "it again",
        file.path(), file.bytes(), shards[i].bytes);
  }
  return files;
}

Status MdsIndex::Verify(const DataFiles& files, OpenProgress* progress) const {
  return InParallel(files.size(), [&](size_t i) {
    return VerifyShard(shards[i], files[i], progress);
  });
}

}  // namespace penstock
