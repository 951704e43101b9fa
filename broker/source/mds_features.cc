#include <algorithm>
#include <bit>
#include <cstring>

#include "broker/index/values.h"
#include "broker/io/read.h"
#include "broker/source/mds_columns.h"
#include "broker/source/number.h"
#include "broker/source/text_field.h"
#include "common/layout.h"
#include "common/printable.h"

namespace penstock {
namespace {

using Stored = MdsColumn::Kind;
using FeatureKind = RecordFeature::Kind;

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Why the column cannot be read, and the way out.
std::string_view RefusalOf(const MdsColumn& column) {
  if (column.encoding == "pkl") {
    return "to unpickle it would run whatever code the file has; write it as "
           "ndarray, json or bytes";
  }
  if (column.encoding == "pil" || column.encoding == "list[pil]") {
    return "it has the memory of Pillow's pictures, of any mode; write them as "
           "png or jpeg, or as ndarray";
  }
  return "the encoding is not one of MosaicML Streaming's";
}

bool IsFloat(const MdsDType& dtype) { return dtype.name.starts_with('f'); }

// Whether a feature may take values of a stored dtype.
bool MayTake(const MdsDType& stored, DType dtype) {
  if (stored.is_native && stored.dtype == dtype) return true;
  if (stored.dtype == DType::kFloat16) return false;
  return !IsFloat(stored) || IsFloat(dtype);
}

Status DTypeError(const MdsDType& stored, DType dtype) {
  return DataLossError("wanted {}, found {}", DTypeName(dtype), stored.name);
}

template <typename From>
Status StoreEach(std::span<const std::byte> values, DType dtype,
                 std::byte* out) {
  const size_t out_bytes = DTypeBytes(dtype);
  for (size_t at = 0; at < values.size(); at += sizeof(From)) {
    const auto value = ValueAt<From>(&values[at]);
    bool fits = false;
    if constexpr (std::is_floating_point_v<From>) {
      fits = StoreReal(value, dtype, out);
    } else if (std::in_range<int64_t>(value)) {
      fits = StoreWhole(static_cast<int64_t>(value), dtype, out);
    } else {
      fits = StoreReal(static_cast<double>(value), dtype, out);
    }
    if (!fits) {
      return DataLossError("the value {} does not fit {}", value,
                           DTypeName(dtype));
    }
    out += out_bytes;
  }
  return OkStatus();
}

// As values of a larger dtype, which has them all: tokens, mostly.
template <typename From, typename To>
Status Widen(std::span<const std::byte> values, std::byte* out) {
  for (size_t i = 0; i < values.size() / sizeof(From); ++i) {
    const To value = ValueAt<From>(&values[i * sizeof(From)]);
    std::memcpy(out + i * sizeof(To), &value, sizeof(To));
  }
  return OkStatus();
}

// Whose dtype MayTake allows.
Status Store(const MdsDType& stored, std::span<const std::byte> values,
             DType dtype, std::byte* out) {
  const bool to_int64 = dtype == DType::kInt64;
  switch (stored.code) {
    case 8:
      return StoreEach<uint8_t>(values, dtype, out);
    case 9:
      return StoreEach<int8_t>(values, dtype, out);
    case 16:
      return to_int64                 ? Widen<uint16_t, int64_t>(values, out)
             : dtype == DType::kInt32 ? Widen<uint16_t, int32_t>(values, out)
                                      : StoreEach<uint16_t>(values, dtype, out);
    case 17:
      return StoreEach<int16_t>(values, dtype, out);
    case 32:
      return to_int64 ? Widen<uint32_t, int64_t>(values, out)
                      : StoreEach<uint32_t>(values, dtype, out);
    case 33:
      return to_int64 ? Widen<int32_t, int64_t>(values, out)
                      : StoreEach<int32_t>(values, dtype, out);
    case 34:
      return StoreEach<float>(values, dtype, out);
    case 64:
      return StoreEach<uint64_t>(values, dtype, out);
    case 65:
      return StoreEach<int64_t>(values, dtype, out);
    default:
      return StoreEach<double>(values, dtype, out);
  }
}

// Whether the array is one of the feature's from dimension `first` on.
bool ShapeFits(std::span<const uint64_t> shape, const Feature& feature,
               size_t first) {
  return shape.size() == feature.shape.size() &&
         std::equal(shape.begin() + static_cast<ptrdiff_t>(first), shape.end(),
                    feature.shape.begin() + static_cast<ptrdiff_t>(first),
                    [](uint64_t a, int64_t b) {
                      return a == static_cast<uint64_t>(b);
                    });
}

std::string WantedText(const RecordFeature& feature) {
  return feature.kind == FeatureKind::kList
             ? Format("a list, {}", feature.feature.ToString())
             : feature.feature.ToString();
}

// ---- what is known before a sample is read

// NotFound: only samples can tell.
Status Complete(const MdsColumn& column, RecordFeature* feature) {
  feature->by_source = false;
  const auto values = [&](DType dtype, std::vector<int64_t> shape) {
    feature->kind = FeatureKind::kValues;
    feature->feature.dtype = dtype;
    feature->feature.shape = std::move(shape);
    return OkStatus();
  };
  if (column.kind == Stored::kPicture ||
      (column.kind == Stored::kPictures && feature->item)) {
    feature->kind = FeatureKind::kEncoded;
    return OkStatus();
  }
  if (column.kind == Stored::kPictures) {
    return NotFoundError("{} has several pictures, of which `item` says one",
                         column.ToString());
  }
  if (column.kind == Stored::kArray && column.dtype != nullptr &&
      column.shape) {
    return values(column.dtype->dtype, *column.shape);
  }
  if (column.encoding == "str_int") return values(DType::kInt64, {});
  if (column.encoding == "str_float") return values(DType::kFloat64, {});
  return NotFoundError("{} has values of any size", column.ToString());
}

// InvalidArgument: no sample could have such a feature.
Status Check(const RecordFeature& feature, const MdsColumn& column) {
  const auto error = [&](std::string_view what) {
    return InvalidArgumentError("feature '{}': {}: {}", feature.feature.name,
                                column.ToString(), what);
  };
  if (column.kind == Stored::kRefused) return error(RefusalOf(column));
  if (feature.item && column.kind != Stored::kPictures) {
    return error("`item` is for a column of several pictures");
  }
  switch (feature.kind) {
    case FeatureKind::kEncoded:
      if (column.kind == Stored::kPictures && !feature.item) {
        return error("say which of its pictures: `item: 0` is the first");
      }
      return column.kind == Stored::kPicture ||
                     column.kind == Stored::kPictures ||
                     column.kind == Stored::kBytes
                 ? OkStatus()
                 : error("it has no pictures");
    case FeatureKind::kText:
      return column.kind == Stored::kArray
                 ? error("it has numbers: `dtype` and `shape`, or `max_length`")
                 : OkStatus();
    case FeatureKind::kValues:
    case FeatureKind::kList:
      break;
  }
  const bool is_list = feature.kind == FeatureKind::kList;
  if (column.kind == Stored::kNumber) {
    return is_list || !feature.feature.shape.empty()
               ? error("it has one number: `shape: []`")
               : OkStatus();
  }
  if (column.kind == Stored::kBytes) return OkStatus();
  if (column.kind != Stored::kArray) {
    return error(column.kind == Stored::kText
                     ? "it has text: `max_bytes`"
                     : "it has pictures: `encoded: true`");
  }
  if (column.dtype != nullptr &&
      !MayTake(*column.dtype, feature.feature.dtype)) {
    return error(DTypeError(*column.dtype, feature.feature.dtype).message());
  }
  if (!column.shape) return OkStatus();
  const std::vector<uint64_t> shape(column.shape->begin(), column.shape->end());
  return ShapeFits(shape, feature.feature, is_list ? 1 : 0)
             ? OkStatus()
             : error(Format("wanted {}, found {} [{}]", WantedText(feature),
                            column.dtype->name, JoinText(shape, ", ")));
}

// ---- the values of a sample

Status TakeArray(const RecordFeature& feature, const MdsColumn& column,
                 std::span<const std::byte> value, std::span<std::byte> room,
                 RawRecord* raw) {
  PENSTOCK_ASSIGN_OR_RETURN(const MdsArray array, MdsArrayIn(column, value));
  const DType dtype = feature.feature.dtype;
  const bool is_list = feature.kind == FeatureKind::kList;
  if (!ShapeFits(array.shape(), feature.feature, is_list ? 1 : 0)) {
    return DataLossError("wanted {}, found {} [{}]", WantedText(feature),
                         array.dtype->name, JoinText(array.shape(), ", "));
  }
  if (!MayTake(*array.dtype, dtype)) return DTypeError(*array.dtype, dtype);
  const bool is_native = array.dtype->is_native && array.dtype->dtype == dtype;
  if (!is_list) {
    if (!is_native) {
      PENSTOCK_RETURN_IF_ERROR(
          Store(*array.dtype, array.values, dtype, room.data()));
    }
    raw->push_back(is_native ? array.values
                             : room.first(feature.feature.RowBytes()));
    return OkStatus();
  }
  const uint64_t items = array.sizes[0];
  if (is_native) return StoreList(feature, items, array.values, room, raw);
  const uint64_t fit = std::min(items, feature.max_length());
  if (fit > 0) {
    PENSTOCK_RETURN_IF_ERROR(Store(
        *array.dtype, array.values.first(array.values.size() / items * fit),
        dtype, room.data()));
  }
  return StoreList(feature, items, {}, room, raw);
}

Status Take(const RecordFeature& feature, const MdsColumn& column,
            std::span<const std::byte> value, std::span<std::byte> room,
            RawRecord* raw) {
  if (column.kind == Stored::kArray) {
    return TakeArray(feature, column, value, room, raw);
  }
  switch (feature.kind) {
    case FeatureKind::kEncoded:
      if (column.kind == Stored::kPictures) {
        PENSTOCK_ASSIGN_OR_RETURN(const MdsPictures pictures,
                                  MdsPictures::In(column, value));
        if (*feature.item >= pictures.count()) {
          return DataLossError("picture {} of {}", *feature.item,
                               pictures.count());
        }
        value = pictures[*feature.item];
      }
      if (value.empty()) return DataLossError("it is empty");
      raw->push_back(value);
      return OkStatus();
    case FeatureKind::kText:
      if (column.kind == Stored::kText) {
        if (const auto wrong = FindNotUtf8(TextOf(value))) {
          return DataLossError("byte {} of it is not UTF-8", *wrong);
        }
      }
      return StoreList(feature, value.size(), value, room, raw);
    case FeatureKind::kList:
      if (value.size() % feature.ItemBytes() != 0) {
        return DataLossError(
            "wanted any number of {} bytes, {}, found {} bytes",
            feature.ItemBytes(), feature.feature.ToString(), value.size());
      }
      return StoreList(feature, value.size() / feature.ItemBytes(), value, room,
                       raw);
    case FeatureKind::kValues:
      break;
  }
  if (column.kind == Stored::kNumber) {
    if (!StoreNumberText(TextOf(value), feature.feature.dtype, room.data())) {
      return DataLossError(
          "wanted a number that fits {}, found '{}'; `max_bytes` takes it as "
          "text",
          DTypeName(feature.feature.dtype),
          Printable(TextOf(value).substr(0, 40)));
    }
    raw->push_back(room.first(feature.feature.RowBytes()));
    return OkStatus();
  }
  if (value.size() != feature.feature.RowBytes()) {
    return DataLossError("wanted {} bytes of {}, found {}",
                         feature.feature.RowBytes(), feature.feature.ToString(),
                         value.size());
  }
  raw->push_back(value);
  return OkStatus();
}

}  // namespace

StatusOr<MdsFeatures> MdsFeatures::Make(RecordFeatures features,
                                        const MdsColumns& columns) {
  MdsFeatures made;
  if (features.size() > kFeaturesMax) {
    return NotFoundError("{} columns; a row has at most {} features",
                         features.size(), kFeaturesMax);
  }
  uint64_t begin = UINT64_MAX;
  uint64_t end = 0;
  for (RecordFeature& each : features) {
    uint64_t at = 0;
    const auto found = std::find_if(columns.begin(), columns.end(),
                                    [&](const MdsColumn& column) {
                                      if (column.name == each.key_or_name())
                                        return true;
                                      at += column.bytes.value_or(0);
                                      return false;
                                    });
    if (found == columns.end()) {
      std::string all;
      for (const MdsColumn& column : columns) {
        if (all.size() > 400) break;
        all += (all.empty() ? "" : ", ") + Printable(column.name);
      }
      return InvalidArgumentError("feature '{}': no column '{}'; there are {}",
                                  each.feature.name, each.key_or_name(), all);
    }
    if (each.by_source && found->kind != Stored::kRefused) {
      PENSTOCK_RETURN_IF_ERROR(Complete(*found, &each));
    }
    PENSTOCK_RETURN_IF_ERROR(Check(each, *found));
    const uint64_t room =
        each.kind == FeatureKind::kEncoded ? 0 : each.RowBytes();
    made.places_.push_back(
        {static_cast<size_t>(found - columns.begin()), at, room});
    made.room_ += room;
    begin = std::min(begin, at);
    end = std::max(end, at + found->bytes.value_or(0));
  }
  if (columns.sample_bytes()) {
    made.part_ = Part{begin, end - begin};
    if (end - begin > kRecordBytesMax) {
      return InvalidArgumentError(
          "{} bytes of each sample; a record has at "
          "most {}",
          end - begin, kRecordBytesMax);
    }
    for (Place& place : made.places_) place.begin -= begin;
    if (features.size() == 1) {
      const MdsColumn& column = columns[made.places_[0].column];
      made.is_plain_ = column.kind == Stored::kArray &&
                       features[0].kind == FeatureKind::kValues &&
                       column.dtype != nullptr && column.shape &&
                       column.dtype->is_native &&
                       column.dtype->dtype == features[0].feature.dtype;
    }
  }
  made.features_ = std::move(features);
  made.columns_ = columns;
  return made;
}

Status MdsFeatures::Unpack(std::span<const std::byte> read,
                           std::vector<std::byte>* scratch,
                           RawRecord* raw) const {
  thread_local std::vector<std::span<const std::byte>> values;
  if (!part_) PENSTOCK_RETURN_IF_ERROR(columns_.Split(read, &values));
  if (scratch->size() < room_) scratch->resize(room_);
  raw->clear();
  std::span<std::byte> room = *scratch;
  for (size_t i = 0; i < features_.size(); ++i) {
    const Place& place = places_[i];
    const MdsColumn& column = columns_[place.column];
    const Status status = Take(
        features_[i], column,
        part_ ? read.subspan(place.begin, *column.bytes) : values[place.column],
        room.first(place.room), raw);
    if (!status.ok()) return status.Prepend(column.ToString());
    room = room.subspan(place.room);
  }
  return OkStatus();
}

// ---- what a spec without features is told

Status MdsProposal::Add(std::span<const std::byte> sample) {
  PENSTOCK_RETURN_IF_ERROR(columns_.Split(sample, &values_));
  for (size_t i = 0; i < columns_.size(); ++i) {
    const MdsColumn& column = columns_[i];
    Seen& seen = seen_[i];
    uint64_t count = values_[i].size();
    if (column.kind == Stored::kPictures) {
      const auto pictures = MdsPictures::In(column, values_[i]);
      if (!pictures.ok()) return pictures.status().Prepend(column.ToString());
      count = pictures->count();
    } else if (column.kind == Stored::kArray) {
      const auto array = MdsArrayIn(column, values_[i]);
      if (!array.ok()) return array.status().Prepend(column.ToString());
      const auto shape = array->shape();
      const uint64_t length = shape.empty() ? 0 : shape[0];
      if (seen.values == 0) {
        seen.dtype = array->dtype;
        seen.shape.assign(shape.begin(), shape.end());
        seen.length_least = length;
      }
      seen.length_least = std::min(seen.length_least, length);
      seen.length_most = std::max(seen.length_most, length);
      seen.alike &=
          seen.dtype == array->dtype && seen.shape.size() == shape.size() &&
          (shape.empty() ||
           std::equal(shape.begin() + 1, shape.end(), seen.shape.begin() + 1));
    } else {
      seen.pictures &= LooksLikePicture(TextOf(values_[i])) ||
                       LooksLikeSound(TextOf(values_[i]));
      seen.text &= LooksLikeText(TextOf(values_[i]));
    }
    ++seen.values;
    seen.least = std::min(seen.least, count);
    seen.most = std::max(seen.most, count);
  }
  return OkStatus();
}

std::vector<std::pair<std::string, std::string>> MdsProposal::Of(
    size_t column) const {
  const MdsColumn& of = columns_[column];
  const Seen& seen = seen_[column];
  RecordFeature feature;
  if (of.kind == Stored::kRefused || seen.values == 0) return {};
  if (Complete(of, &feature).ok()) return {{"", ""}};
  const auto room = [](uint64_t most) {
    return std::bit_ceil(std::max<uint64_t>(1, 2 * most));
  };
  switch (of.kind) {
    case Stored::kPictures: {
      std::vector<std::pair<std::string, std::string>> items;
      for (uint64_t i = 0; i < std::min<uint64_t>(seen.least, 8); ++i) {
        items.emplace_back(Format(".{}", i), Format("item: {}", i));
      }
      return items;
    }
    case Stored::kArray: {
      if (!seen.alike || seen.shape.size() > kShapeDimensionsMax) return {};
      const std::string dtype(DTypeName(seen.dtype->dtype));
      if (seen.length_least == seen.length_most) {
        return {{"", Format("dtype: {}, shape: [{}]", dtype,
                            JoinText(seen.shape, ", "))}};
      }
      const std::string rest = JoinText(std::span(seen.shape).subspan(1), ", ");
      return {{"", Format("dtype: {}, max_length: {}{}", dtype,
                          room(seen.length_most),
                          rest.empty() ? "" : Format(", shape: [{}]", rest))}};
    }
    case Stored::kBytes:
      if (seen.pictures) return {{"", "encoded: true"}};
      if (seen.text) break;
      return {{"", seen.least == seen.most
                       ? Format("dtype: uint8, shape: [{}]", seen.most)
                       : Format("dtype: uint8, max_length: {}",
                                std::min(room(seen.most), kRecordBytesMax))}};
    default:
      break;
  }
  return {{"", ProposedText(seen.most)}};
}

std::string MdsProposal::Features() const {
  std::string text;
  for (size_t i = 0; i < columns_.size(); ++i) {
    const std::string& key = columns_[i].name;
    for (const auto& [suffix, what] : Of(i)) {
      const std::string name = ProposedName(key) + suffix;
      std::vector<std::string> parts;
      if (name != key) {
        parts.push_back(Format("column: \"{}\"", Printable(key)));
      }
      if (!what.empty()) parts.push_back(what);
      text += Format("{}{}: {{{}}}", text.empty() ? "" : ", ", name,
                     JoinText(parts, ", "));
    }
  }
  return text;
}

std::string MdsProposal::LeftOut() const {
  std::string text;
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (!Of(i).empty()) continue;
    text += Format("{}{}: {}", text.empty() ? "" : "; ", columns_[i].ToString(),
                   columns_[i].kind == Stored::kRefused
                       ? RefusalOf(columns_[i])
                       : "samples differ in more than a length");
  }
  return text;
}

}  // namespace penstock
