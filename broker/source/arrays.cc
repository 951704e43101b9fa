// Sources npy and npz: rows of NumPy's arrays in files, one array for each
// feature.
#include <algorithm>
#include <bit>
#include <new>
#include <numeric>
#include <span>

#include "broker/declare/declaration.h"
#include "broker/index/concatenation.h"
#include "broker/index/data_files.h"
#include "broker/index/fingerprint.h"
#include "broker/io/read.h"
#include "broker/source/kinds.h"
#include "broker/source/npy_header.h"
#include "broker/source/zip_directory.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little);

// Small rows, usually labels, are not worth a read each. Of 64 bits: 8 million.
constexpr uint64_t kKeptBytesMax = uint64_t{64} << 20;

// One feature: arrays that are concatenated along their first axis.
struct ArrayFeature {
  struct Part {
    std::string name;      // for messages
    const DataFile* file;  // of `files`
    uint64_t data_at;      // offset of its first row there
    uint64_t bytes;        // of its rows
  };

  Feature feature;
  size_t files = 0;  // which of OpenArrays
  std::vector<Part> parts;
  Concatenation rows;  // of the parts

  // Adds the array at offset of one of the files. InvalidArgument: a dtype that
  // Penstock does not have, or rows unlike those before.
  Status Append(std::string name, const DataFile& file, uint64_t offset,
                const NpyHeader& header);
};

// Memory that is not zeroed first.
struct Kept {
  std::unique_ptr<std::byte[]> data;
  uint64_t bytes = 0;
};

class Arrays final : public Source {
 public:
  Arrays(std::vector<DataFiles> files, std::vector<ArrayFeature> features,
         std::vector<Kept> kept, std::vector<size_t> read)
      : files_(std::move(files)),
        features_(std::move(features)),
        kept_(std::move(kept)),
        read_(std::move(read)) {
    for (const ArrayFeature& each : features_) {
      raw_spec_.push_back({each.feature, false});
    }
  }

  uint64_t record_count() const override { return features_[0].rows.count(); }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  uint64_t memory_bytes() const override {
    uint64_t bytes = 0;
    for (const Kept& each : kept_) bytes += each.bytes;
    return bytes;
  }
  bool Changed() const override {
    return std::any_of(files_.begin(), files_.end(),
                       [](const DataFiles& each) { return each.Changed(); });
  }
  std::string io() const override {
    return IoText(features_[read_[0]].parts[0].file->align());
  }
  std::string fingerprint() const override {
    Fingerprint fingerprint("arrays");
    for (const ArrayFeature& each : features_) {
      fingerprint.Add(files_[each.files]);
      for (const ArrayFeature::Part& part : each.parts) {
        fingerprint.Add(part.data_at);
        fingerprint.Add(part.bytes);
      }
    }
    return fingerprint.Hex();
  }
  void AddTimes(Fingerprint* to) const override {
    for (const DataFiles& each : files_) each.AddTimes(to);
  }
  void ListFiles(const FileVisit& visit) const override {
    for (const DataFiles& each : files_) each.List(visit);
  }
  std::optional<size_t> plain_feature() const override {
    return read_.size() == 1 ? std::optional(read_[0]) : std::nullopt;
  }

  void Expect(uint64_t record) const override {
    for (size_t i = 0; i < features_.size(); ++i) {
      if (kept_[i].data != nullptr) __builtin_prefetch(KeptRow(i, record));
    }
  }
  void Locate(uint64_t record, ReadRequest* request) const override {
    LocateRow(read_[0], record, request);
    for (size_t i = 1; i < read_.size(); ++i) {
      LocateRow(read_[i], record, &request->more.emplace_back());
    }
  }

  Status Unpack(uint64_t record, const ReadBytes& read, std::vector<std::byte>*,
                RawRecord* raw) const override {
    raw->resize(features_.size());
    for (size_t i = 0; i < features_.size(); ++i) {
      if (kept_[i].data == nullptr) continue;
      (*raw)[i] = {KeptRow(i, record), features_[i].feature.RowBytes()};
    }
    for (size_t i = 0; i < read_.size(); ++i) {
      (*raw)[read_[i]] = read_.size() == 1 ? read.bytes : read.Part(i);
    }
    return OkStatus();
  }

  bool KnownNumber(uint64_t record, size_t feature,
                   std::byte* number) const override {
    if (kept_[feature].data == nullptr) return false;
    std::memcpy(number, KeptRow(feature, record),
                features_[feature].feature.RowBytes());
    return true;
  }

  std::string_view FileOf(uint64_t record) const override {
    return PlaceOf(read_[0], record).part->file->path();
  }
  std::string Describe(uint64_t record) const override {
    const Place place = PlaceOf(read_[0], record);
    return Format("{}, row {} (offset {})", place.part->name, place.row,
                  place.offset);
  }

 private:
  struct Place {
    const ArrayFeature::Part* part;
    uint64_t row;
    uint64_t offset;
  };

  // The place of a feature that is read.
  Place PlaceOf(size_t feature, uint64_t record) const {
    const ArrayFeature& in = features_[feature];
    const auto [part, row] = in.rows.Find(record);
    return {&in.parts[part], row,
            in.parts[part].data_at + row * in.feature.RowBytes()};
  }
  void LocateRow(size_t feature, uint64_t record, ReadPart* part) const {
    const Place place = PlaceOf(feature, record);
    place.part->file->Locate(place.offset,
                             features_[feature].feature.RowBytes(), part);
  }
  const std::byte* KeptRow(size_t feature, uint64_t record) const {
    return kept_[feature].data.get() +
           record * features_[feature].feature.RowBytes();
  }

  const std::vector<DataFiles> files_;
  const std::vector<ArrayFeature> features_;
  const std::vector<Kept> kept_;  // of the features; empty for those read
  const std::vector<size_t> read_;
  RawSpec raw_spec_;
};

StatusOr<Kept> Keep(const ArrayFeature& array, OpenProgress* progress) {
  const uint64_t bytes = array.rows.count() * array.feature.RowBytes();
  const std::string what =
      Format("feature '{}', whose rows are kept in memory ({} bytes)",
             array.feature.name, bytes);
  if (const Status status = progress->reserve(bytes); !status.ok()) {
    return status.Prepend(what);
  }
  Kept kept{std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[bytes]),
            bytes};
  if (kept.data == nullptr)
    return ResourceExhaustedError("{}: no memory", what);
  progress->total.fetch_add(bytes, std::memory_order_relaxed);
  std::byte* at = kept.data.get();
  for (const ArrayFeature::Part& part : array.parts) {
    PENSTOCK_ASSIGN_OR_RETURN(
        const uint64_t found,
        part.file->Read(part.data_at, {at, part.bytes}, progress));
    if (found < part.bytes) {
      return DataLossError("{} became shorter while it was opened", part.name);
    }
    at += part.bytes;
    progress->CountDone(part.bytes);
  }
  return kept;
}

Status ArrayFeature::Append(std::string name, const DataFile& file,
                            uint64_t offset, const NpyHeader& header) {
  const std::optional<DType> dtype = header.dtype();
  if (!dtype) {
    return InvalidArgumentError(
        "{}: dtype {} is none of Penstock's; save it as one that is, such as "
        "a.astype(np.int64) or np.float32",
        name, header.DTypeText());
  }
  if (header.shape.empty()) {
    return InvalidArgumentError("{}: a single value; wanted an array of rows",
                                name);
  }
  Feature found{feature.name, *dtype, {}};
  uint64_t row_bytes = header.value_bytes;
  bool is_row = header.shape.size() - 1 <= kShapeDimensionsMax;
  for (const uint64_t dimension : std::span(header.shape).subspan(1)) {
    // Divide: the product of hostile dimensions overflows.
    is_row =
        is_row && dimension > 0 && dimension <= kRecordBytesMax / row_bytes;
    if (!is_row) break;
    row_bytes *= dimension;
    found.shape.push_back(static_cast<int64_t>(dimension));
  }
  if (!is_row) {
    return InvalidArgumentError(
        "{}: {}; wanted rows of 1 to {} bytes and at most {} dimensions", name,
        header.ToString(), kRecordBytesMax, kShapeDimensionsMax);
  }
  if (parts.empty()) {
    feature = std::move(found);
  } else if (feature != found) {
    return InvalidArgumentError(
        "feature '{}' has rows of {} [{}] in {}, but of {} [{}] in {}",
        feature.name, DTypeName(feature.dtype), JoinText(feature.shape, ", "),
        parts.front().name, DTypeName(found.dtype), JoinText(found.shape, ", "),
        name);
  }
  if (const Status status = rows.Append(header.shape[0]); !status.ok()) {
    return status.Prepend(name);
  }
  parts.push_back(
      {std::move(name), &file, offset + header.bytes, header.data_bytes});
  return OkStatus();
}

// A record is a row of each feature. The largest rows are read; those of other
// features are kept in memory, as far as 64 MiB go. InvalidArgument: no rows,
// or not as many of each feature.
OpenedSource OpenArrays(std::vector<DataFiles> files,
                        std::vector<ArrayFeature> features, Io io,
                        OpenProgress* progress) {
  const ArrayFeature& first = features.front();
  for (const ArrayFeature& each : features) {
    if (each.rows.count() == first.rows.count()) continue;
    return InvalidArgumentError(
        "{} has {} rows of '{}', but {} has {} of '{}'; do they belong "
        "together?",
        first.parts.front().name, first.rows.count(), first.feature.name,
        each.parts.front().name, each.rows.count(), each.feature.name);
  }
  if (first.rows.count() == 0) {
    return InvalidArgumentError("{}: no row", first.parts.front().name);
  }
  // The largest is read, and of the others what is not kept, smallest first.
  std::vector<size_t> by_size(features.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) {
    return features[a].feature.RowBytes() > features[b].feature.RowBytes();
  });
  std::vector<Kept> kept(features.size());
  std::vector<size_t> read;
  uint64_t kept_bytes = 0;
  while (!by_size.empty()) {
    const size_t i = by_size.back();
    by_size.pop_back();
    const uint64_t bytes = first.rows.count() * features[i].feature.RowBytes();
    if (by_size.empty() || bytes > kKeptBytesMax - kept_bytes) {
      read.push_back(i);
      continue;
    }
    kept_bytes += bytes;
    PENSTOCK_ASSIGN_OR_RETURN(kept[i], Keep(features[i], progress));
  }
  std::reverse(read.begin(), read.end());  // messages name the largest
  // Once for each set of files, by its largest rows.
  std::vector<bool> chosen(files.size());
  for (const size_t i : read) {
    const size_t of = features[i].files;
    if (chosen[of]) continue;
    chosen[of] = true;
    PENSTOCK_RETURN_IF_ERROR(
        files[of].ChooseIo(io, features[i].feature.RowBytes()));
  }
  return std::unique_ptr<Source>(new Arrays(
      std::move(files), std::move(features), std::move(kept), std::move(read)));
}

// ---- npz

// The array of this name, as numpy.load names it: without ".npy".
StatusOr<ZipMember> FindArray(const std::string& path,
                              const std::vector<ZipMember>& members,
                              const std::string& array) {
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const ZipMember& each) {
        return each.name == array || each.name == array + ".npy";
      });
  if (found != members.end()) return *found;
  constexpr size_t kNamesToldMax = 8;
  std::vector<std::string> names;
  for (const ZipMember& each : members) {
    if (names.size() == kNamesToldMax) {
      names.push_back("...");
      break;
    }
    names.push_back(Quoted(each.name));
  }
  return NotFoundError("{}: no array {}; it has {}", path, Quoted(array),
                       JoinText(names, ", "));
}

std::string ArrayName(const std::string& file, const std::string& array) {
  return Format("{}, array {}", file, Quoted(array));
}

Status CheckReadable(const std::string& name, const ZipMember& member) {
  if (member.is_encrypted) {
    return InvalidArgumentError("{} is encrypted; decrypt it on disk", name);
  }
  if (member.method != ZipMember::kStored &&
      member.method != ZipMember::kDeflated) {
    return InvalidArgumentError(
        "{} is compressed (method {}); write it with np.savez or "
        "np.savez_compressed",
        name, member.method);
  }
  return OkStatus();
}

}  // namespace

const Declaration<NpySource>& NpySource::Declared() {
  static const auto declared =
      Declaration<NpySource>("npy",
                             "Rows of NumPy's arrays, along their first axis.")
          .Gives("as in the files")
          .Example("{features: {image: [x0.npy, x1.npy], label: y.npy}}")
          .Required(
              "features", &NpySource::features, ValueOfEachFeature(Files()),
              "{NAME: files}, each as paths, globs, braces or a list: "
              "their arrays follow one another; all features have as "
              "many rows. The largest rows are read, others kept in memory "
              "while they have at most 64 MiB together")
          .Optional("io", &NpySource::io, IoType(), kIoText);
  return declared;
}

OpenedSource NpySource::Open(OpenProgress* progress) const {
  std::vector<DataFiles> opened;
  std::vector<ArrayFeature> arrays;
  for (const auto& [name, patterns] : features) {
    ArrayFeature& array = arrays.emplace_back();
    array.feature.name = name;
    array.files = opened.size();
    PENSTOCK_ASSIGN_OR_RETURN(DataFiles files,
                              DataFiles::Open(patterns, *progress));
    for (const DataFile& file : files) {
      PENSTOCK_ASSIGN_OR_RETURN(
          const NpyHeader header,
          ReadNpyHeader(file.path(), file, 0, file.bytes(), progress));
      PENSTOCK_RETURN_IF_ERROR(array.Append(file.path(), file, 0, header));
    }
    opened.push_back(std::move(files));
  }
  return OpenArrays(std::move(opened), std::move(arrays), io, progress);
}

const Declaration<NpzSource>& NpzSource::Declared() {
  static const auto declared =
      Declaration<NpzSource>("npz",
                             "Rows of the arrays in a file of numpy.savez or "
                             "savez_compressed, along their first axis.")
          .Gives("as in the file")
          .Example("{file: train.npz, features: {image: x, label: y}}")
          .Required("file", &NpzSource::file, PathOrAddress(), "where it is")
          .Required(
              "features", &NpzSource::features,
              ValueOfEachFeature(
                  Text("the name of an array",
                       [](std::string_view text) { return !text.empty(); })),
              "{NAME: an array}; all have as many rows. The largest rows "
              "are read, others kept in memory while they have at most 64 MiB "
              "together")
          .Optional("io", &NpzSource::io, IoType(), kIoText);
  return declared;
}

OpenedSource NpzSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(DataFile only, DataFile::Open(file, *progress));
  std::vector<DataFiles> files;
  const DataFile& opened = files.emplace_back(std::move(only))[0];
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<ZipMember> members,
                            ReadZipDirectory(opened, progress));
  // Where the array of each feature lies; those that are deflated are read from
  // copies of their own.
  struct Place {
    const DataFile* file;
    uint64_t at;
    uint64_t bytes;
  };
  std::vector<Place> places;
  std::vector<CompressedBytes> deflated;
  std::vector<size_t> deflated_of;
  for (const auto& [feature, array_name] : features) {
    PENSTOCK_ASSIGN_OR_RETURN(const ZipMember member,
                              FindArray(file, members, array_name));
    const std::string name = ArrayName(file, array_name);
    PENSTOCK_RETURN_IF_ERROR(CheckReadable(name, member));
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t data_at,
                              FindZipData(opened, member, progress));
    if (member.method == ZipMember::kDeflated) {
      deflated_of.push_back(places.size());
      deflated.push_back({&opened, name, data_at, member.bytes,
                          Compression::kDeflate, member.inflated, member.crc});
    }
    places.push_back({&opened, data_at, member.bytes});
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<LocalCopy> copies,
                            CopiesOf(deflated, *progress));
  std::vector<ArrayFeature> arrays(features.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(DataFile copy, DataFile::Open(file, *progress));
    copy.ReadCopy(std::move(copies[i]));
    arrays[deflated_of[i]].files = files.size();
    const DataFile& inflated = files.emplace_back(std::move(copy))[0];
    places[deflated_of[i]] = {&inflated, 0, inflated.bytes()};
  }
  for (size_t i = 0; i < arrays.size(); ++i) {
    const auto& [in, at, bytes] = places[i];
    const std::string name = ArrayName(file, features[i].second);
    arrays[i].feature.name = features[i].first;
    PENSTOCK_ASSIGN_OR_RETURN(const NpyHeader header,
                              ReadNpyHeader(name, *in, at, bytes, progress));
    PENSTOCK_RETURN_IF_ERROR(arrays[i].Append(name, *in, at, header));
  }
  return OpenArrays(std::move(files), std::move(arrays), io, progress);
}

}  // namespace penstock
