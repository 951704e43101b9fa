#include "broker/source/mds_columns.h"

#include <algorithm>

#include "broker/index/values.h"
#include "broker/io/read.h"
#include "common/printable.h"

namespace penstock {
namespace {

constexpr MdsDType kMdsDTypes[] = {{"uint8", 8, 1, DType::kUint8, true},
                                   {"int8", 9, 1, DType::kInt8, true},
                                   {"uint16", 16, 2, DType::kInt32, false},
                                   {"int16", 17, 2, DType::kInt16, true},
                                   {"float16", 18, 2, DType::kFloat16, true},
                                   {"uint32", 32, 4, DType::kInt64, false},
                                   {"int32", 33, 4, DType::kInt32, true},
                                   {"float32", 34, 4, DType::kFloat32, true},
                                   {"uint64", 64, 8, DType::kInt64, false},
                                   {"int64", 65, 8, DType::kInt64, true},
                                   {"float64", 66, 8, DType::kFloat64, true}};

const MdsDType* DTypeOf(std::string_view name) {
  if (name == "int") name = "int64";
  const auto* const found =
      std::find_if(std::begin(kMdsDTypes), std::end(kMdsDTypes),
                   [name](const MdsDType& each) { return each.name == name; });
  return found == std::end(kMdsDTypes) ? nullptr : found;
}

const MdsDType* DTypeOf(uint8_t code) {
  const auto* const found =
      std::find_if(std::begin(kMdsDTypes), std::end(kMdsDTypes),
                   [code](const MdsDType& each) { return each.code == code; });
  return found == std::end(kMdsDTypes) ? nullptr : found;
}

// "28,28"
std::optional<std::vector<int64_t>> ShapeOf(std::string_view text) {
  std::vector<int64_t> shape;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    int64_t size = 0;
    if (!ParseNumber(text.substr(at, end - at), &size) || size < 1 ||
        shape.size() == kShapeDimensionsMax) {
      return std::nullopt;
    }
    shape.push_back(size);
    at = end + 1;
  }
  return shape;
}

// The bytes of values of a shape; nullopt: more than a record has.
template <typename Shape>
std::optional<uint64_t> BytesOf(const MdsDType& dtype, const Shape& shape) {
  uint64_t bytes = dtype.bytes;
  for (const auto size : shape) {
    // Divide: the product of hostile sizes overflows.
    if (size > 0 && bytes > kRecordBytesMax / static_cast<uint64_t>(size)) {
      return std::nullopt;
    }
    bytes *= static_cast<uint64_t>(size);
  }
  return bytes;
}

using Stored = MdsColumn::Kind;

constexpr std::pair<std::string_view, Stored> kMdsKinds[] = {
    {"bytes", Stored::kBytes},         {"str", Stored::kText},
    {"json", Stored::kText},           {"str_int", Stored::kNumber},
    {"str_float", Stored::kNumber},    {"str_decimal", Stored::kNumber},
    {"jpeg", Stored::kPicture},        {"png", Stored::kPicture},
    {"jpeg_array", Stored::kPictures}, {"jpegarray", Stored::kPictures},
    {"list[jpeg]", Stored::kPictures}, {"list[png]", Stored::kPictures},
    {"pil", Stored::kRefused},         {"list[pil]", Stored::kRefused},
    {"pkl", Stored::kRefused}};

// ndarray, ndarray:DTYPE, ndarray:DTYPE:SHAPE. False: none of them.
bool ReadArray(std::string_view form, MdsColumn* column) {
  column->kind = Stored::kArray;
  if (form.empty()) return true;
  form.remove_prefix(1);  // ':'
  if (form.empty()) return true;
  const size_t colon = form.find(':');
  column->dtype = DTypeOf(form.substr(0, colon));
  if (column->dtype == nullptr || form.starts_with("int:") || form == "int") {
    return false;
  }
  if (colon == form.npos) return true;
  column->shape = ShapeOf(form.substr(colon + 1));
  return column->shape.has_value();
}

}  // namespace

std::string MdsColumn::ToString() const {
  return Format("column '{}' ({})", Printable(name), Printable(encoding));
}

StatusOr<MdsColumn> MdsColumn::Make(std::string name, std::string encoding,
                                    std::optional<uint64_t> bytes) {
  MdsColumn column;
  column.name = std::move(name);
  column.encoding = std::move(encoding);
  const std::string_view text = column.encoding;
  constexpr std::string_view kNdarray = "ndarray";
  if (text == kNdarray || text.starts_with("ndarray:")) {
    if (!ReadArray(text.substr(kNdarray.size()), &column)) {
      return InvalidArgumentError(
          "{}: wanted ndarray, ndarray:DTYPE or ndarray:DTYPE:SIZES, of at "
          "most {} dimensions",
          column.ToString(), kShapeDimensionsMax);
    }
  } else if (const MdsDType* const dtype = DTypeOf(text); dtype != nullptr) {
    column.kind = Stored::kArray;
    column.dtype = dtype;
    column.shape.emplace();
  } else {
    const auto* const found =
        std::find_if(std::begin(kMdsKinds), std::end(kMdsKinds),
                     [text](const auto& each) { return each.first == text; });
    column.kind =
        found == std::end(kMdsKinds) ? Stored::kRefused : found->second;
    // A list has four bytes for later before it.
    if (text.starts_with("list[")) column.count_at = sizeof(uint32_t);
  }
  if (column.shape) {
    const std::optional<uint64_t> wanted =
        BytesOf(*column.dtype, *column.shape);
    if (!wanted) {
      return InvalidArgumentError("{}: values of more than {} bytes",
                                  column.ToString(), kRecordBytesMax);
    }
    if (bytes != wanted) {
      return InvalidArgumentError(
          "{}: its column_sizes say {}; a value has {} bytes",
          column.ToString(), bytes ? Format("{} bytes", *bytes) : "null",
          *wanted);
    }
  }
  if (bytes && *bytes > kRecordBytesMax) {
    return InvalidArgumentError("{}: {} bytes; a record has at most {}",
                                column.ToString(), *bytes, kRecordBytesMax);
  }
  // The format's own readers take 0 for null.
  if (bytes && *bytes > 0) column.bytes = static_cast<uint32_t>(*bytes);
  return column;
}

StatusOr<MdsArray> MdsArrayIn(const MdsColumn& column,
                              std::span<const std::byte> value) {
  MdsArray array;
  size_t at = 0;
  const auto byte = [&]() { return std::to_integer<uint8_t>(value[at++]); };
  array.dtype = column.dtype;
  if (array.dtype == nullptr) {
    if (value.empty()) return DataLossError("an empty value");
    const uint8_t code = byte();
    array.dtype = DTypeOf(code);
    if (array.dtype == nullptr) {
      return DataLossError("{} is the number of no dtype", code);
    }
  }
  if (column.shape) {
    array.dimensions = column.shape->size();
    std::copy(column.shape->begin(), column.shape->end(), array.sizes.begin());
  } else {
    if (value.size() == at) return DataLossError("it ends before its shape");
    const uint8_t head = byte();
    array.dimensions = head >> 2;
    const size_t size_bytes = size_t{1} << (head & 3);
    if (array.dimensions > array.sizes.size()) {
      return DataLossError("an array of {} dimensions; at most {}",
                           array.dimensions, array.sizes.size());
    }
    if ((value.size() - at) / size_bytes < array.dimensions) {
      return DataLossError("it ends within its shape");
    }
    for (size_t i = 0; i < array.dimensions; ++i) {
      std::memcpy(&array.sizes[i], &value[at], size_bytes);
      at += size_bytes;
    }
  }
  array.values = value.subspan(at);
  const std::optional<uint64_t> wanted = BytesOf(*array.dtype, array.shape());
  if (wanted != array.values.size()) {
    return DataLossError("{} bytes of values; {} [{}] wants {}",
                         array.values.size(), array.dtype->name,
                         JoinText(array.shape(), ", "),
                         wanted ? Format("{}", *wanted) : "more");
  }
  return array;
}

StatusOr<MdsPictures> MdsPictures::In(const MdsColumn& column,
                                      std::span<const std::byte> value) {
  const uint64_t head = column.count_at + sizeof(uint32_t);
  if (value.size() < head) {
    return DataLossError("{} bytes, where a number of pictures is wanted",
                         value.size());
  }
  const uint64_t count = ValueAt<uint32_t>(&value[column.count_at]);
  value = value.subspan(head);
  if (count > value.size() / sizeof(uint32_t)) {
    return DataLossError("it ends within the sizes of {} pictures", count);
  }
  MdsPictures pictures;
  pictures.sizes_ = value.first(count * sizeof(uint32_t));
  pictures.pictures_ = value.subspan(pictures.sizes_.size());
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < count; ++i) {
    bytes += ValueAt<uint32_t>(&pictures.sizes_[i * sizeof(uint32_t)]);
  }
  if (bytes != pictures.pictures_.size()) {
    return DataLossError("its {} pictures have {} bytes; by their sizes {}",
                         count, pictures.pictures_.size(), bytes);
  }
  return pictures;
}

std::span<const std::byte> MdsPictures::operator[](uint64_t i) const {
  uint64_t begin = 0;
  for (uint64_t before = 0; before < i; ++before) {
    begin += ValueAt<uint32_t>(&sizes_[before * sizeof(uint32_t)]);
  }
  return pictures_.subspan(begin,
                           ValueAt<uint32_t>(&sizes_[i * sizeof(uint32_t)]));
}

MdsColumns::MdsColumns(std::vector<MdsColumn> columns)
    : columns_(std::move(columns)) {
  for (const MdsColumn& each : columns_) {
    each.bytes ? fixed_bytes_ += *each.bytes : ++sized_;
  }
}

Status MdsColumns::Split(
    std::span<const std::byte> sample,
    std::vector<std::span<const std::byte>>* values) const {
  const uint64_t head = sized_ * sizeof(uint32_t);
  if (sample.size() < head) {
    return DataLossError("{} bytes; the sizes of its columns alone have {}",
                         sample.size(), head);
  }
  values->resize(columns_.size());
  uint64_t at = head;
  const std::byte* size = sample.data();
  for (size_t i = 0; i < columns_.size(); ++i) {
    uint64_t bytes = 0;
    if (columns_[i].bytes) {
      bytes = *columns_[i].bytes;
    } else {
      bytes = ValueAt<uint32_t>(size);
      size += sizeof(uint32_t);
    }
    if (bytes > sample.size() - at) {
      return DataLossError(
          "{}: {} bytes by its size; {} are left of the sample's {}",
          columns_[i].ToString(), bytes, sample.size() - at, sample.size());
    }
    (*values)[i] = sample.subspan(at, bytes);
    at += bytes;
  }
  if (at != sample.size()) {
    return DataLossError("{} bytes; its columns have {} by their sizes",
                         sample.size(), at);
  }
  return OkStatus();
}

}  // namespace penstock
