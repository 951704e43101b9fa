#include "broker/source/megatron_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <simdjson.h>

#include <algorithm>
#include <string_view>
#include <tuple>

#include "broker/index/values.h"
#include "broker/io/file_error.h"
#include "broker/source/npy_header.h"
#include "common/hash.h"
#include "common/printable.h"

namespace penstock {
namespace {

using simdjson::dom::element;

constexpr std::string_view kDescriptionName = "-description.txt";
// A blend's has those of all its parts.
constexpr uint64_t kDescriptionBytesMax = uint64_t{64} << 20;
constexpr size_t kDescriptionsMax = 65'536;
constexpr size_t kFieldCharsTold = 80;

std::string NumberText(double number) { return Format("{}", number); }

// As the fields of what is wanted are written; "": the key is not there.
std::string TextOf(element value) {
  std::string_view text;
  double number = 0;
  simdjson::dom::array list;
  if (!value.get(text)) return std::string(text);
  if (!value.get(number)) return NumberText(number);
  if (!value.get(list)) {
    std::string joined;
    for (const element each : list) {
      joined += (joined.empty() ? "[" : ", ") + TextOf(each);
    }
    return joined.empty() ? "[]" : joined + "]";
  }
  return value.is_null() ? "null" : simdjson::minify(value);
}

void AddFields(element object, std::initializer_list<const char*> keys,
               const std::string& prefix, MegatronDescription* description) {
  for (const char* const key : keys) {
    element value;
    description->push_back(
        {prefix + key, object.at_key(key).get(value) ? "" : TextOf(value)});
  }
}

void AddDatasetFields(element object, const std::string& prefix,
                      MegatronDescription* description) {
  AddFields(object,
            {"dataset_path", "num_samples", "index_split", "random_seed",
             "sequence_length", "split_matrix"},
            prefix, description);
}

std::string DatasetPrefix(size_t i) { return Format("datasets[{}].", i); }

MegatronDescription DescriptionOf(element document) {
  MegatronDescription description;
  AddFields(document, {"class"}, "", &description);
  simdjson::dom::array datasets;
  if (document.at_key("datasets").get(datasets)) {
    AddDatasetFields(document, "", &description);
    return description;
  }
  AddFields(document, {"split", "weights", "size"}, "", &description);
  size_t i = 0;
  for (const element each : datasets) {
    AddDatasetFields(each, DatasetPrefix(i++), &description);
  }
  return description;
}

// Whether a field says the same; a relative path is the end of the full one.
bool SaysTheSame(std::string_view field, std::string_view found,
                 std::string_view wanted) {
  if (found == wanted) return true;
  while (found.starts_with("./")) found.remove_prefix(2);
  return field.ends_with("dataset_path") && !found.empty() &&
         !found.starts_with('/') && wanted.size() > found.size() &&
         wanted.ends_with(found) &&
         wanted[wanted.size() - found.size() - 1] == '/';
}

std::string Told(std::string_view value) {
  return value.empty() ? std::string("nothing")
                       : Printable(value.substr(0, kFieldCharsTold));
}

struct CloseFolder {
  void operator()(DIR* dir) const { closedir(dir); }
};

// The paths in a folder that end so, sorted.
StatusOr<std::vector<std::string>> FilesEndingWith(const std::string& folder,
                                                   std::string_view ending,
                                                   const FileAccess& access) {
  PENSTOCK_ASSIGN_OR_RETURN(Fd opened, access.Open(folder, O_DIRECTORY));
  const std::unique_ptr<DIR, CloseFolder> dir(fdopendir(opened.get()));
  if (dir == nullptr) return OpenError(errno, folder);
  opened.Release();
  std::vector<std::string> paths;
  for (;;) {
    errno = 0;
    const dirent* const entry = readdir(dir.get());
    if (entry == nullptr) {
      if (errno != 0) return ReadError(errno, folder, 0);
      break;
    }
    const std::string_view name = entry->d_name;
    if (!name.ends_with(ending)) continue;
    if (paths.size() == kDescriptionsMax) {
      return InvalidArgumentError("{}: more than {} files named *{}", folder,
                                  kDescriptionsMax, ending);
    }
    paths.push_back(Format("{}/{}", folder, name));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

// One of NumPy's arrays of whole numbers.
struct MegatronCache::Array {
  const DataFile* file;
  NpyHeader header;

  uint64_t size() const { return header.shape[0]; }

  // dtypes: one of them. columns: 0: it has one dimension.
  Status Check(std::initializer_list<std::string_view> dtypes,
               uint64_t columns) const {
    const std::string dtype = header.DTypeText();
    const bool fits =
        header.shape.size() == (columns == 0 ? 1 : 2) &&
        (columns == 0 || header.shape[1] == columns) &&
        std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
    if (fits) return OkStatus();
    return DataLossError("{}: {}; wanted {} [n{}]", file->path(),
                         header.ToString(), JoinText(dtypes, " or "),
                         columns == 0 ? "" : Format(", {}", columns));
  }
  Status CheckSize(uint64_t wanted, std::string_view of) const {
    if (size() == wanted) return OkStatus();
    return DataLossError(
        "{}: it has {} entries; {} are {} by this `megatron`: it is of other "
        "data, or of another `extra_token` or `last_partial`; leave `cache` "
        "out to build it",
        file->path(), size(), of, wanted);
  }
  // Calls each(i, number) for all of them; false: it is out of range.
  template <typename F>
  Status ForEach(OpenProgress* progress, const F& each) const {
    const std::string dtype = header.DTypeText();
    if (dtype == "int16") return ForEachAs<int16_t>(progress, each);
    if (dtype == "int32") return ForEachAs<int32_t>(progress, each);
    if (dtype == "uint32") return ForEachAs<uint32_t>(progress, each);
    return ForEachAs<int64_t>(progress, each);
  }

 private:
  template <typename T, typename F>
  Status ForEachAs(OpenProgress* progress, const F& each) const {
    std::vector<std::byte> block(
        std::min<uint64_t>(header.data_bytes, uint64_t{1} << 20));
    const uint64_t count = header.data_bytes / sizeof(T);
    const uint64_t at_once = block.size() / sizeof(T);
    for (uint64_t first = 0; first < count; first += at_once) {
      const std::span<std::byte> values =
          std::span(block).first(std::min(count - first, at_once) * sizeof(T));
      PENSTOCK_ASSIGN_OR_RETURN(
          const uint64_t found,
          file->Read(header.bytes + first * sizeof(T), values, progress));
      if (found < values.size()) {
        return DataLossError("{} became shorter while it was opened",
                             file->path());
      }
      for (uint64_t i = 0; i < values.size() / sizeof(T); ++i) {
        const auto number =
            static_cast<int64_t>(ValueAt<T>(&values[i * sizeof(T)]));
        if (!each(first + i, number)) {
          return DataLossError("{}: entry {} is {}; the file is damaged",
                               file->path(), first + i, number);
        }
      }
    }
    return OkStatus();
  }
};

MegatronDescription MegatronDatasetFields::Description() const {
  MegatronDescription description = {{"class", "GPTDataset"}};
  std::string matrix = "null";
  if (split_matrix) {
    matrix = "[";
    for (const auto& share : *split_matrix) {
      matrix += matrix.size() == 1 ? "" : ", ";
      matrix += share ? Format("[{}, {}]", NumberText(share->first),
                               NumberText(share->second))
                      : "null";
    }
    matrix += "]";
  }
  const auto whole = [](uint64_t number) {
    return NumberText(static_cast<double>(number));
  };
  description.insert(
      description.end(),
      {{"dataset_path", dataset_path},
       {"num_samples", num_samples ? whole(*num_samples) : "null"},
       {"index_split", index_split},
       {"random_seed", whole(random_seed)},
       {"sequence_length", whole(sequence_length)},
       {"split_matrix", matrix}});
  return description;
}

MegatronDescription MegatronBlendDescription(
    std::span<const MegatronDatasetFields> datasets, const std::string& split,
    std::span<const double> weights, std::optional<uint64_t> size) {
  MegatronDescription description = {
      {"class", "BlendedDataset"},
      {"split", split},
      {"weights", Format("[{}]", JoinText(weights, ", ", NumberText))},
      {"size", size ? NumberText(static_cast<double>(*size)) : "null"}};
  for (size_t i = 0; i < datasets.size(); ++i) {
    for (const auto& [field, value] : datasets[i].Description()) {
      if (field == "class") continue;
      description.push_back({DatasetPrefix(i) + field, value});
    }
  }
  return description;
}

StatusOr<MegatronCache> MegatronCache::Open(const std::string& folder,
                                            OpenProgress* progress) {
  MegatronCache cache(folder);
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::vector<std::string> paths,
      FilesEndingWith(folder, kDescriptionName, *progress->access));
  simdjson::dom::parser parser(kDescriptionBytesMax);
  for (const std::string& path : paths) {
    PENSTOCK_ASSIGN_OR_RETURN(const DataFile file,
                              DataFile::Open(path, *progress));
    if (file.bytes() > kDescriptionBytesMax) {
      return InvalidArgumentError("{}: {} bytes; a description has at most {}",
                                  path, file.bytes(), kDescriptionBytesMax);
    }
    std::vector<std::byte> text(file.bytes() + simdjson::SIMDJSON_PADDING);
    PENSTOCK_ASSIGN_OR_RETURN(
        const uint64_t bytes,
        file.Read(0, std::span(text).first(file.bytes()), progress));
    element document;
    const auto error = parser
                           .parse(reinterpret_cast<const uint8_t*>(text.data()),
                                  bytes, /*realloc_if_needed=*/false)
                           .get(document);
    if (error) {
      return DataLossError("{}: not JSON: {}", path,
                           simdjson::error_message(error));
    }
    cache.found_.push_back(
        {path.substr(0, path.size() - kDescriptionName.size() + 1),
         DescriptionOf(document)});
  }
  return cache;
}

StatusOr<std::string> MegatronCache::Find(
    const MegatronDescription& wanted) const {
  const Found* nearest = nullptr;
  size_t most = 0;
  std::string difference;
  for (const Found& each : found_) {
    // The first field is the class.
    if (each.description[0] != wanted[0]) continue;
    size_t same = 0;
    std::string unlike;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const auto& [field, value] = wanted[i];
      const std::string_view found = i < each.description.size()
                                         ? each.description[i].second
                                         : std::string_view();
      if (SaysTheSame(field, found, value)) {
        ++same;
      } else if (unlike.empty()) {
        unlike = Format("`{}` {}, where {} is wanted", field, Told(found),
                        Told(value));
      }
    }
    if (unlike.empty() && each.description.size() == wanted.size()) {
      return each.base;
    }
    if (unlike.empty()) unlike = "more datasets";
    if (nearest == nullptr || same > most) {
      nearest = &each;
      most = same;
      difference = std::move(unlike);
    }
  }
  if (nearest == nullptr) {
    return NotFoundError(
        "{} has no *-{}-*{}: Megatron has left nothing of this kind there; "
        "leave `cache` out to build it",
        folder_, wanted[0].second, kDescriptionName);
  }
  return NotFoundError(
      "{} has nothing of this configuration; the nearest, {}description.txt, "
      "has {}; leave `cache` out to build it",
      folder_, nearest->base, difference);
}

StatusOr<MegatronCache::Array> MegatronCache::OpenArray(
    const std::string& path, OpenProgress* progress) {
  PENSTOCK_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, *progress));
  PENSTOCK_ASSIGN_OR_RETURN(
      NpyHeader header, ReadNpyHeader(path, file, 0, file.bytes(), progress));
  files_.push_back(std::move(file));
  return Array{&files_.back(), std::move(header)};
}

namespace {

// Whether the numbers from `first` on come so many times each: by sums of their
// hashes, which need no memory. A file that lost its end has zeros.
bool EachComes(std::span<const uint32_t> numbers, uint64_t first,
               uint64_t times) {
  uint64_t sum = 0;
  uint64_t wanted = 0;
  for (const uint32_t number : numbers) sum += Mix64(number);
  for (uint64_t i = 0; i < numbers.size() / times; ++i) {
    wanted += times * Mix64(first + i);
  }
  return sum == wanted;
}

}  // namespace

StatusOr<MegatronArrays> MegatronCache::Load(const MegatronDescription& wanted,
                                             const MegatronIndex& index,
                                             MegatronRange range,
                                             const MegatronRules& rules,
                                             OpenProgress* progress) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string base, Find(wanted));
  PENSTOCK_ASSIGN_OR_RETURN(const MegatronSizes sizes,
                            FindMegatronSizes(index, range, rules));
  files_.reserve(files_.size() + 3);  // arrays point to them
  PENSTOCK_ASSIGN_OR_RETURN(const Array documents,
                            OpenArray(base + "document_index.npy", progress));
  PENSTOCK_ASSIGN_OR_RETURN(const Array begins,
                            OpenArray(base + "sample_index.npy", progress));
  PENSTOCK_ASSIGN_OR_RETURN(const Array shuffled,
                            OpenArray(base + "shuffle_index.npy", progress));
  PENSTOCK_RETURN_IF_ERROR(documents.Check({"int32"}, 0));
  PENSTOCK_RETURN_IF_ERROR(begins.Check({"int32", "int64"}, 2));
  PENSTOCK_RETURN_IF_ERROR(shuffled.Check({"uint32", "int64"}, 0));
  PENSTOCK_RETURN_IF_ERROR(documents.CheckSize(sizes.documents, "documents"));
  PENSTOCK_RETURN_IF_ERROR(
      begins.CheckSize(sizes.samples + 1, "samples and their end"));
  PENSTOCK_RETURN_IF_ERROR(shuffled.CheckSize(sizes.samples, "samples"));

  PENSTOCK_ASSIGN_OR_RETURN(MegatronArrays arrays,
                            MakeMegatronArrays(base, sizes, progress));
  PENSTOCK_RETURN_IF_ERROR(
      documents.ForEach(progress, [&](uint64_t i, int64_t number) {
        arrays.documents[i] = static_cast<uint32_t>(number);
        return number >= 0 && static_cast<uint64_t>(number) >= range.begin &&
               static_cast<uint64_t>(number) < range.end;
      }));
  PENSTOCK_RETURN_IF_ERROR(
      shuffled.ForEach(progress, [&](uint64_t i, int64_t number) {
        arrays.shuffled[i] = static_cast<uint32_t>(number);
        return number >= 0 && static_cast<uint64_t>(number) < sizes.samples;
      }));
  for (const auto& [array, numbers, first, times] :
       {std::tuple(&documents, arrays.documents.span(), range.begin,
                   sizes.passes),
        std::tuple(&shuffled, arrays.shuffled.span(), uint64_t{0},
                   uint64_t{1})}) {
    if (EachComes(numbers, first, times)) continue;
    return DataLossError(
        "{}: it does not have each of {} numbers {}; delete the files {}* of a "
        "cache to have it built anew",
        array->file->path(), numbers.size() / times,
        times == 1 ? "once" : Format("{} times", times), base);
  }
  MegatronWalk walk(&index, rules, &arrays);
  Status walked;
  int64_t document = 0;
  const Status read = begins.ForEach(progress, [&](uint64_t i, int64_t number) {
    if (i % 2 == 0) {
      document = number;
      if (i > 0) walked = walk.Next();
      return walked.ok();
    }
    if (document == static_cast<int64_t>(walk.document()) &&
        number == static_cast<int64_t>(walk.offset())) {
      return true;
    }
    walked = DataLossError(
        "{}: sample {} begins at token {} of document {} of the order; "
        "wanted token {} of document {}: it is damaged, or of another "
        "`extra_token`; leave `cache` out to build it",
        begins.file->path(), i / 2, number, document, walk.offset(),
        walk.document());
    return false;
  });
  PENSTOCK_RETURN_IF_ERROR(walked);
  PENSTOCK_RETURN_IF_ERROR(read);
  return arrays;
}

StatusOr<MegatronBlend> MegatronCache::LoadBlend(
    const MegatronDescription& wanted, uint64_t size,
    std::span<const uint64_t> sizes, OpenProgress* progress) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string base, Find(wanted));
  files_.reserve(files_.size() + 2);
  PENSTOCK_ASSIGN_OR_RETURN(const Array parts,
                            OpenArray(base + "dataset_index.npy", progress));
  PENSTOCK_ASSIGN_OR_RETURN(
      const Array samples,
      OpenArray(base + "dataset_sample_index.npy", progress));
  PENSTOCK_RETURN_IF_ERROR(parts.Check({"int16"}, 0));
  PENSTOCK_RETURN_IF_ERROR(samples.Check({"int64"}, 0));
  PENSTOCK_RETURN_IF_ERROR(parts.CheckSize(size, "samples"));
  PENSTOCK_RETURN_IF_ERROR(samples.CheckSize(size, "samples"));
  PENSTOCK_ASSIGN_OR_RETURN(MegatronBlend blend,
                            MegatronBlend::Make(size, sizes.size(), progress));
  PENSTOCK_RETURN_IF_ERROR(parts.ForEach(progress, [&](uint64_t,
                                                       int64_t number) {
    const auto part = static_cast<uint64_t>(number);
    return number >= 0 && part < sizes.size() && blend.Add(part) < sizes[part];
  }));
  PENSTOCK_RETURN_IF_ERROR(
      samples.ForEach(progress, [&](uint64_t i, int64_t number) {
        return number == static_cast<int64_t>(blend.SampleOf(i));
      }));
  return blend;
}

}  // namespace penstock
