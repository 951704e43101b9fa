#include "client/command/shard_format.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>

#include "client/command/contact_sheet.h"
#include "client/command/npz_file.h"
#include "client/command/parquet_program.h"
#include "client/private_broker/process.h"
#include "common/fd.h"
#include "common/format.h"
#include "common/printable.h"

namespace penstock {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Kind = RowColumn::Kind;

constexpr uint64_t kSampleBytesMax = uint64_t{256} << 20;  // kRecordBytesMax

template <typename T>
void AppendBytes(T value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

int64_t WholeAt(DType dtype, const char* data, uint64_t index) {
  if (dtype != DType::kInt64) {
    return static_cast<int64_t>(ValueAt(dtype, data, index));
  }
  int64_t value = 0;
  std::memcpy(&value, data + index * sizeof(value), sizeof(value));
  return value;
}

bool IsFloat(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 ||
         dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

// As JSON, and Python's json, have it: NaN and Infinity too.
std::string NumberText(DType dtype, const char* data) {
  if (dtype == DType::kBool) return *data != 0 ? "true" : "false";
  if (!IsFloat(dtype)) return Format("{}", WholeAt(dtype, data, 0));
  const double value = ValueAt(dtype, data, 0);
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return Format("{}", value);
}

// The extension of a file by its first bytes.
const char* ExtensionOf(std::string_view file) {
  using namespace std::string_view_literals;
  const bool riff = file.starts_with("RIFF");
  const std::string_view form =
      file.substr(std::min<size_t>(8, file.size())).substr(0, 4);
  const std::pair<bool, const char*> known[] = {
      {file.starts_with("\xff\xd8\xff"), "jpg"},
      {file.starts_with("\x89PNG"), "png"},
      {riff && form == "WEBP", "webp"},
      {file.starts_with("II*\0"sv) || file.starts_with("MM\0*"sv), "tif"},
      {file.starts_with("BM"), "bmp"},
      {file.starts_with("P5"), "pgm"},
      {file.starts_with("P6"), "ppm"},
      {riff && form == "WAVE", "wav"},
      {file.starts_with("fLaC"), "flac"},
      {file.starts_with("OggS"), "ogg"},
      {file.starts_with("FORM"), "aiff"},
      {file.starts_with("ID3") || file.starts_with("\xff\xfb"), "mp3"}};
  for (const auto& [is, extension] : known) {
    if (is) return extension;
  }
  return "bin";
}
constexpr std::array kExtensions = {"jpg",  "png", "webp", "tif",  "bmp",
                                    "pgm",  "ppm", "wav",  "flac", "ogg",
                                    "aiff", "mp3", "bin"};

// What a spec says of a column that a record has under a name of its own.
OrderedJson FeatureOf(const RowColumn& column) {
  const Feature& feature = column.feature;
  switch (column.kind) {
    case Kind::kFile:
      return {{"encoded", true}};
    case Kind::kText:
      return {{"max_bytes", feature.shape[0]}};
    case Kind::kList:
    case Kind::kValues:
      break;
  }
  OrderedJson of = {{"dtype", DTypeName(feature.dtype)},
                    {"shape", feature.shape}};
  if (column.kind == Kind::kList) {
    of["max_length"] = feature.shape[0];
    of["shape"].erase(0);
  }
  return of;
}

Status CheckNotBFloat16(const std::vector<RowColumn>& columns) {
  for (const RowColumn& each : columns) {
    if (each.feature.dtype != DType::kBFloat16) continue;
    return InvalidArgumentError(
        "feature '{}' is bfloat16, which the format lacks: `cast: {{feature: "
        "{}, dtype: float32}}`",
        each.feature.name, each.feature.name);
  }
  return OkStatus();
}

// ---- tar files: single numbers in one JSON member, but a label

class Webdataset final : public ShardFormat {
 public:
  explicit Webdataset(std::vector<RowColumn> columns)
      : ShardFormat(std::move(columns)) {
    int files = 0;
    for (const RowColumn& each : columns_) files += each.kind == Kind::kFile;
    for (const RowColumn& each : columns_) {
      std::string name = each.feature.name;
      std::transform(name.begin(), name.end(), name.begin(), [](char c) {
        return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
      });
      if (each.kind == Kind::kFile) {
        members_.push_back(files == 1 ? "" : name + ".");
      } else if (each.kind == Kind::kText) {
        members_.push_back(name == "text" ? "txt" : name + ".txt");
      } else if (IsLabel(each)) {
        members_.push_back("cls");
      } else {
        members_.push_back(IsNumber(each) ? "json" : name + ".npy");
      }
    }
  }

  // InvalidArgument: two features would have one name.
  Status CheckMembers() const {
    std::set<std::string> known;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (members_[i] == "json" || known.insert(members_[i]).second) continue;
      return InvalidArgumentError(
          "webdataset: two features have the name '{}' in small letters: "
          "`rename` one",
          columns_[i].feature.name);
    }
    return OkStatus();
  }

  const char* extension() const override { return "tar"; }

  Status Add(const std::string& key, std::span<const RowValue> row) override {
    std::string numbers;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const RowColumn& column = columns_[i];
      const RowValue& value = row[i];
      const std::string name = key + "." + members_[i];
      if (column.kind == Kind::kFile) {
        AddMember(name + ExtensionOf(value.bytes), value.bytes);
      } else if (column.kind == Kind::kText) {
        AddMember(name, value.bytes);
      } else if (IsNumber(column)) {
        const std::string text =
            NumberText(column.feature.dtype, value.bytes.data());
        if (IsLabel(column)) {
          AddMember(name, text);
        } else {
          numbers += Format("{}\"{}\": {}", numbers.empty() ? "" : ", ",
                            column.feature.name, text);
        }
      } else {
        Feature array = column.feature;
        if (column.kind == Kind::kList) {
          array.shape[0] = static_cast<int64_t>(value.items);
        }
        AddMember(name, NpyHeader(array).append(value.bytes));
      }
    }
    if (!numbers.empty()) AddMember(key + ".json", "{" + numbers + "}");
    return OkStatus();
  }

  StatusOr<std::string> Take() override {
    text_.append(2 * kBlock, '\0');
    return std::exchange(text_, {});
  }

  OrderedJson Source(std::span<const Shard>) const override {
    OrderedJson features;
    for (size_t i = 0; i < columns_.size(); ++i) {
      OrderedJson& of = features[columns_[i].feature.name];
      of["member"] = members_[i];
      if (columns_[i].kind == Kind::kFile) {
        std::string all;
        for (const char* const each : kExtensions) {
          all += (all.empty() ? "" : ";") + members_[i] + each;
        }
        of["member"] = all;
      } else if (IsNumber(columns_[i]) && !IsLabel(columns_[i])) {
        of["pointer"] = "/" + columns_[i].feature.name;
      }
      of.update(FeatureOf(columns_[i]));
    }
    return {{"webdataset", {{"files", "*.tar"}, {"features", features}}}};
  }

 private:
  static constexpr size_t kBlock = 512;

  static bool IsNumber(const RowColumn& column) {
    return column.kind == Kind::kValues && column.feature.shape.empty();
  }
  static bool IsLabel(const RowColumn& column) {
    return IsNumber(column) && column.feature.name == "label" &&
           !IsFloat(column.feature.dtype) &&
           column.feature.dtype != DType::kBool;
  }

  // One that has no owner and no time: shards of the same rows are the same.
  void AddMember(std::string_view name, std::string_view bytes) {
    constexpr size_t kNameBytes = 100;
    if (name.size() > kNameBytes) {  // GNU's way
      AddHeader("././@LongLink", name.size() + 1, 'L');
      AddPadded(std::string(name) + '\0');
    }
    AddHeader(name.substr(0, kNameBytes), bytes.size(), '0');
    AddPadded(bytes);
  }
  void AddHeader(std::string_view name, uint64_t bytes, char type) {
    std::array<char, kBlock> header{};
    const auto put = [&header](size_t at, std::string_view text) {
      std::copy(text.begin(), text.end(), header.begin() + at);
    };
    put(0, name);
    put(100, "0000444");
    put(108, "0000000");
    put(116, "0000000");
    put(124, Format("{:011o}", bytes));
    put(136, "00000000000");
    put(148, "        ");
    header[156] = type;
    put(257, "ustar  ");
    uint32_t sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    put(148, Format("{:06o}", sum));
    header[154] = '\0';
    text_.append(header.data(), header.size());
  }
  void AddPadded(std::string_view bytes) {
    text_ += bytes;
    text_.append((kBlock - bytes.size() % kBlock) % kBlock, '\0');
  }

  std::vector<std::string> members_;  // extensions; of a file what is before it
};

// ---- MosaicML Streaming's

class Mds final : public ShardFormat {
 public:
  explicit Mds(std::vector<RowColumn> columns)
      : ShardFormat(std::move(columns)) {
    for (const RowColumn& each : columns_) {
      encodings_.push_back(EncodingOf(each));
      const bool sized = each.kind == Kind::kValues;
      sizes_.push_back(sized ? OrderedJson(each.feature.RowBytes())
                             : OrderedJson());
    }
  }

  const char* extension() const override { return "mds"; }

  Status Add(const std::string&, std::span<const RowValue> row) override {
    std::string values;
    const size_t begin = text_.size();
    for (size_t i = 0; i < columns_.size(); ++i) {
      const RowColumn& column = columns_[i];
      const size_t at = values.size();
      if (column.kind == Kind::kFile && encodings_[i].empty()) {
        // Its readers decode any format under either name.
        const std::string_view extension = ExtensionOf(row[i].bytes);
        encodings_[i] = extension == "jpg"   ? "jpeg"
                        : extension == "png" ? "png"
                                             : "bytes";
      } else if (column.kind == Kind::kList) {
        AppendShape(column, row[i].items, &values);
      }
      values += row[i].bytes;
      if (column.kind != Kind::kValues) {
        AppendBytes(static_cast<uint32_t>(values.size() - at), &text_);
      }
    }
    text_ += values;
    if (text_.size() - begin > kSampleBytesMax) {
      return DataLossError("a sample of {} bytes; at most {} can be read",
                           text_.size() - begin, kSampleBytesMax);
    }
    ends_.push_back(text_.size());
    return OkStatus();
  }

  StatusOr<std::string> Take() override {
    const std::string columns = Columns().dump();
    const uint64_t head =
        sizeof(uint32_t) * (ends_.size() + 2) + columns.size();
    std::string file;
    file.reserve(head + text_.size());
    AppendBytes(static_cast<uint32_t>(ends_.size()), &file);
    AppendBytes(static_cast<uint32_t>(head), &file);
    for (const uint64_t end : ends_) {
      AppendBytes(static_cast<uint32_t>(head + end), &file);
    }
    file += columns;
    file += text_;
    ends_.clear();
    text_.clear();
    return file;
  }

  OrderedJson Source(std::span<const Shard>) const override {
    OrderedJson features;
    for (const RowColumn& each : columns_) {
      OrderedJson& of = features[each.feature.name];
      of = each.kind == Kind::kValues ? OrderedJson::object() : FeatureOf(each);
      if (each.feature.dtype == DType::kBool) of = FeatureOf(each);
    }
    return {{"mds", {{"path", "."}, {"features", features}}}};
  }

  std::string Index(std::span<const Shard> shards) const override {
    OrderedJson list = OrderedJson::array();
    for (size_t i = 0; i < shards.size(); ++i) {
      OrderedJson shard = Columns();
      shard["raw_data"] = {{"basename", ShardName(i, extension())},
                           {"bytes", shards[i].bytes},
                           {"hashes", OrderedJson::object()}};
      shard["samples"] = shards[i].rows;
      shard["zip_data"] = nullptr;
      list.push_back(std::move(shard));
    }
    return OrderedJson{{"shards", std::move(list)}, {"version", 2}}.dump();
  }

  OrderedJson learned() const override { return encodings_; }
  void Learn(const OrderedJson& encodings) override {
    for (size_t i = 0; i < columns_.size() && i < encodings.size(); ++i) {
      if (encodings[i].is_string()) encodings_[i] = encodings[i];
    }
  }

 private:
  // "": by the first file.
  static std::string EncodingOf(const RowColumn& column) {
    if (column.kind == Kind::kFile) return "";
    if (column.kind == Kind::kText) return "str";
    const Feature& feature = column.feature;
    const std::string dtype(DTypeName(
        feature.dtype == DType::kBool ? DType::kUint8 : feature.dtype));
    if (column.kind == Kind::kList) return "ndarray:" + dtype;
    if (feature.shape.empty()) return dtype == "int64" ? "int" : dtype;
    return Format("ndarray:{}:{}", dtype, JoinText(feature.shape, ","));
  }

  // The sizes of an array, each in as few bytes as the largest needs.
  static void AppendShape(const RowColumn& column, uint64_t items,
                          std::string* to) {
    std::vector<uint64_t> sizes(column.feature.shape.begin(),
                                column.feature.shape.end());
    sizes[0] = items;
    const uint64_t most = *std::max_element(sizes.begin(), sizes.end());
    const unsigned power = most < 1u << 8 ? 0 : most < 1u << 16 ? 1 : 2;
    to->push_back(static_cast<char>(sizes.size() << 2 | power));
    for (const uint64_t size : sizes) {
      to->append(reinterpret_cast<const char*>(&size), size_t{1} << power);
    }
  }

  OrderedJson Columns() const {
    std::vector<std::string> names;
    for (const RowColumn& each : columns_) names.push_back(each.feature.name);
    return {{"column_encodings", encodings_},
            {"column_names", names},
            {"column_sizes", sizes_},
            {"compression", nullptr},
            {"format", "mds"},
            {"hashes", OrderedJson::array()},
            {"size_limit", nullptr},
            {"version", 2}};
  }

  std::vector<std::string> encodings_;
  std::vector<OrderedJson> sizes_;
  std::vector<uint64_t> ends_;  // of the samples in text_
};

// ---- records of one size, of which each feature has its room

class Fixed final : public ShardFormat {
 public:
  explicit Fixed(std::vector<RowColumn> columns)
      : ShardFormat(std::move(columns)) {}

  const char* extension() const override { return "bin"; }
  Status Add(const std::string&, std::span<const RowValue> row) override {
    for (size_t i = 0; i < columns_.size(); ++i) {
      text_ += row[i].bytes;
      text_.append(columns_[i].feature.RowBytes() - row[i].bytes.size(), '\0');
      if (columns_[i].length) AppendBytes(row[i].items, &text_);
    }
    return OkStatus();
  }
  StatusOr<std::string> Take() override { return std::exchange(text_, {}); }
  OrderedJson Source(std::span<const Shard>) const override {
    OrderedJson features;
    for (const RowColumn& each : columns_) {
      features[each.feature.name] = {{"dtype", DTypeName(each.feature.dtype)},
                                     {"shape", each.feature.shape}};
      if (!each.length) continue;
      features[each.length_name] = {{"dtype", "int64"},
                                    {"shape", OrderedJson::array()}};
    }
    return {
        {"fixed_length_records", {{"files", "*.bin"}, {"features", features}}}};
  }
};

// ---- tokens, one document after the other

class Tokens final : public ShardFormat {
 public:
  Tokens(std::vector<RowColumn> columns, size_t column, std::string dtype)
      : ShardFormat(std::move(columns)),
        column_(column),
        dtype_(std::move(dtype)) {}

  const char* extension() const override { return "bin"; }

  Status Add(const std::string&, std::span<const RowValue> row) override {
    const DType dtype = columns_[column_].feature.dtype;
    const RowValue& value = row[column_];
    const uint64_t count = value.bytes.size() / DTypeBytes(dtype);
    for (uint64_t i = 0; i < count; ++i) {
      const int64_t token = WholeAt(dtype, value.bytes.data(), i);
      const bool fits = dtype_ == "uint16"   ? Put<uint16_t>(token)
                        : dtype_ == "uint32" ? Put<uint32_t>(token)
                        : dtype_ == "int32"  ? Put<int32_t>(token)
                                             : Put<int64_t>(token);
      if (!fits) {
        return DataLossError("token {} does not fit {}: give --dtype", token,
                             dtype_);
      }
    }
    return OkStatus();
  }

  StatusOr<std::string> Take() override { return std::exchange(text_, {}); }

  OrderedJson Source(std::span<const Shard> shards) const override {
    uint64_t bytes = UINT64_MAX;
    for (const Shard& each : shards) bytes = std::min(bytes, each.bytes);
    const uint64_t tokens = bytes / (dtype_ == "uint16"  ? 2
                                     : dtype_ == "int64" ? 8
                                                         : 4);
    constexpr uint64_t kSequence = 1024;
    return {{"tokens",
             {{"files", "*.bin"},
              {"dtype", dtype_},
              {"sequence_length",
               std::clamp<uint64_t>(tokens - std::min<uint64_t>(tokens, 1), 1,
                                    kSequence)}}}};
  }

 private:
  template <typename T>
  bool Put(int64_t token) {
    if (token < static_cast<int64_t>(std::numeric_limits<T>::min()) ||
        token > static_cast<int64_t>(std::numeric_limits<T>::max())) {
      return false;
    }
    AppendBytes(static_cast<T>(token), &text_);
    return true;
  }

  const size_t column_;
  const std::string dtype_;
};

StatusOr<std::unique_ptr<ShardFormat>> MakeTokens(
    const ShardFormatOptions& options, std::vector<RowColumn> columns) {
  std::vector<size_t> found;
  for (size_t i = 0; i < columns.size(); ++i) {
    const RowColumn& each = columns[i];
    const bool is_wanted =
        options.feature.empty()
            ? !each.feature.shape.empty() && each.feature.dtype != DType::kUint8
            : each.feature.name == options.feature;
    if (is_wanted && !IsFloat(each.feature.dtype) &&
        each.feature.dtype != DType::kBool &&
        (each.kind == Kind::kValues || each.kind == Kind::kList)) {
      found.push_back(i);
    }
  }
  if (found.size() != 1) {
    return InvalidArgumentError(
        "tokens: {} of its features{}: --feature names one of integers; "
        "`tokenize` and `encode_bytes` make them of text",
        found.empty() ? "none" : "several",
        options.feature.empty()
            ? " has lists of integers"
            : Format(" is '{}', of integers", Printable(options.feature)));
  }
  const DType dtype = columns[found[0]].feature.dtype;
  const std::string own = dtype == DType::kInt64 ? "int64" : "int32";
  return std::unique_ptr<ShardFormat>(
      std::make_unique<Tokens>(std::move(columns), found[0],
                               options.dtype.empty() ? own : options.dtype));
}

// ---- Parquet, made by pyarrow in a process of Python

constexpr double kPython_s = 600;

// What the program writes for this input. FailedPrecondition: its last line.
StatusOr<std::string> RunParquetProgram(std::string_view input) {
  const Fd files[] = {Fd(memfd_create("input", MFD_CLOEXEC)),
                      Fd(memfd_create("output", MFD_CLOEXEC)),
                      Fd(memfd_create("errors", MFD_CLOEXEC))};
  if (!files[2] || !WriteWholly(files[0].get(), input) ||
      lseek(files[0].get(), 0, SEEK_SET) != 0) {
    return ErrnoError(errno, "memfd of a shard");
  }
  const char* const python = std::getenv("PENSTOCK_PYTHON");
  ProcessSpec spec;
  spec.argv = {python == nullptr ? "python3" : python, "-c",
               std::string(kParquetProgram)};
  spec.stdin_fd = files[0].get();
  spec.stdout_fd = files[1].get();
  spec.stderr_fd = files[2].get();
  PENSTOCK_ASSIGN_OR_RETURN(const Process process, Process::Start(spec));
  const std::optional<ProcessExit> ended = process.WaitFor(kPython_s);
  const Fd& wanted = files[ended && ended->ok() ? 1 : 2];
  std::string text(static_cast<size_t>(lseek(wanted.get(), 0, SEEK_END)), '\0');
  if (!ReadWholly(wanted.get(), text.data(), text.size())) {
    return ErrnoError(errno, "memfd of a shard");
  }
  if (ended && ended->ok()) return text;
  while (text.ends_with('\n')) text.pop_back();
  return FailedPreconditionError(
      "{}", text.empty() ? Format("{} {}", spec.argv[0],
                                  ended ? ended->ToString() : "does not end")
                         : text.substr(text.rfind('\n') + 1));
}

class Parquet final : public ShardFormat {
 public:
  explicit Parquet(std::vector<RowColumn> columns)
      : ShardFormat(std::move(columns)), parts_(columns_.size()) {}

  const char* extension() const override { return "parquet"; }
  uint64_t bytes() const override { return bytes_; }

  Status Add(const std::string&, std::span<const RowValue> row) override {
    for (size_t i = 0; i < columns_.size(); ++i) {
      Part& part = parts_[i];
      part.values += row[i].bytes;
      bytes_ += row[i].bytes.size();
      if (columns_[i].kind == Kind::kValues) continue;
      const bool of_bytes = columns_[i].kind != Kind::kList;
      part.end +=
          static_cast<uint32_t>(of_bytes ? row[i].bytes.size() : row[i].items);
      AppendBytes(part.end, &part.ends);
    }
    ++rows_;
    return OkStatus();
  }

  StatusOr<std::string> Take() override {
    OrderedJson columns = OrderedJson::array();
    std::string values;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const RowColumn& column = columns_[i];
      static constexpr const char* kKinds[] = {"values", "list", "text",
                                               "file"};
      columns.push_back({{"name", column.feature.name},
                         {"kind", kKinds[static_cast<size_t>(column.kind)]},
                         {"dtype", DTypeName(column.feature.dtype)},
                         {"shape", column.feature.shape},
                         {"bytes", parts_[i].values.size()}});
      if (column.kind != Kind::kValues) {
        values.append(sizeof(uint32_t), '\0').append(parts_[i].ends);
      }
      values += parts_[i].values;
    }
    const OrderedJson head = {{"rows", rows_}, {"columns", columns}};
    parts_.assign(columns_.size(), {});
    bytes_ = rows_ = 0;
    return RunParquetProgram(head.dump() + "\n" + values);
  }

  OrderedJson Source(std::span<const Shard>) const override {
    OrderedJson source = {{"files", "*.parquet"}};
    int64_t text = 0;
    for (const RowColumn& each : columns_) {
      if (each.kind == Kind::kText)
        text = std::max(text, each.feature.shape[0]);
      if (each.kind != Kind::kList) continue;
      source["max_length"][each.feature.name] = each.feature.shape[0];
    }
    if (text > 0) source["max_bytes"] = text;
    return {{"parquet", source}};
  }

 private:
  struct Part {
    std::string values;
    std::string ends;  // of its rows, but for the 0 before them
    uint32_t end = 0;
  };
  std::vector<Part> parts_;  // by column
  uint64_t bytes_ = 0;
  uint64_t rows_ = 0;
};

}  // namespace

std::vector<RowColumn> ColumnsOf(const ElementSpec& features,
                                 uint64_t file_room) {
  std::vector<RowColumn> columns;
  std::set<uint32_t> lengths;
  for (uint32_t i = 0; i < features.size(); ++i) {
    RowColumn& column = columns.emplace_back();
    column.feature = features[i];
    column.place = i;
    column.length = LengthOf(features, features[i]);
    if (!column.length) continue;
    lengths.insert(*column.length);
    column.length_name = features[*column.length].name;
    const bool is_list = column.length_name == features[i].name + kLengthSuffix;
    const bool is_file =
        MayBeText(features[i]) &&
        features[i].shape[0] == static_cast<int64_t>(file_room);
    column.kind = !is_list ? Kind::kText : is_file ? Kind::kFile : Kind::kList;
  }
  std::erase_if(columns, [&lengths](const RowColumn& each) {
    return lengths.contains(each.place);
  });
  return columns;
}

std::string ShardName(size_t number, std::string_view extension) {
  return Format("{:06}.{}", number, extension);
}

StatusOr<std::unique_ptr<ShardFormat>> ShardFormat::Make(
    const ShardFormatOptions& options, std::vector<RowColumn> columns) {
  if (options.format == "tokens") {
    return MakeTokens(options, std::move(columns));
  }
  if (options.format == "fixed") {
    for (const RowColumn& each : columns) {
      if (each.kind != Kind::kFile) continue;
      return InvalidArgumentError(
          "fixed: '{}' is a picture or sound whose files differ in size: "
          "decode "
          "it to one shape in `map` (decode_image with a size)",
          each.feature.name);
    }
    return std::unique_ptr<ShardFormat>(
        std::make_unique<Fixed>(std::move(columns)));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckNotBFloat16(columns).Prepend(options.format));
  if (options.format == "parquet") {
    PENSTOCK_RETURN_IF_ERROR(RunParquetProgram("").status());
    return std::unique_ptr<ShardFormat>(
        std::make_unique<Parquet>(std::move(columns)));
  }
  if (options.format == "mds") {
    return std::unique_ptr<ShardFormat>(
        std::make_unique<Mds>(std::move(columns)));
  }
  auto webdataset = std::make_unique<Webdataset>(std::move(columns));
  PENSTOCK_RETURN_IF_ERROR(webdataset->CheckMembers());
  return std::unique_ptr<ShardFormat>(std::move(webdataset));
}

}  // namespace penstock
