#include <algorithm>
#include <bit>
#include <functional>

#include "broker/source/example.h"
#include "common/layout.h"
#include "common/printable.h"

namespace penstock {
ExampleFeatures::ExampleFeatures(const RecordFeatures& features) {
  for (const RecordFeature& each : features) {
    Wanted& wanted = wanted_.emplace_back();
    wanted.feature = each;
    if (each.otherwise) wanted.otherwise = DefaultBytes(each);
    if (each.kind != RecordFeature::Kind::kEncoded) {
      wanted.room = each.RowBytes();
      wanted.values = each.feature.RowBytes() / DTypeBytes(each.feature.dtype);
    }
    room_ += wanted.room;
  }
}

Status ExampleFeatures::Unpack(std::span<const std::byte> example,
                               std::vector<std::byte>* scratch,
                               RawRecord* raw) const {
  thread_local std::vector<std::span<const std::byte>> found;
  found.assign(wanted_.size(), {});
  PENSTOCK_RETURN_IF_ERROR(ForEachFeature(
      example, [&](std::string_view key, std::span<const std::byte> feature) {
        for (size_t i = 0; i < wanted_.size(); ++i) {
          if (wanted_[i].feature.key_or_name() == key) found[i] = feature;
        }
        return OkStatus();
      }));
  if (scratch->size() < room_) scratch->resize(room_);
  raw->clear();
  std::span<std::byte> room = *scratch;
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const Wanted& wanted = wanted_[i];
    const Status status = Take(wanted, found[i], room.first(wanted.room), raw);
    if (!status.ok()) {
      return status.Prepend(
          Format("feature '{}'", wanted.feature.key_or_name()));
    }
    room = room.subspan(wanted.room);
  }
  return OkStatus();
}

namespace {

// Whether dtype has values of their kind.
bool MayHold(const ExampleValues& values, DType dtype) {
  std::byte probe[sizeof(uint64_t)];
  return values.kind() == ExampleValues::Kind::kInts
             ? StoreNumber(int64_t{0}, dtype, probe)
             : values.kind() == ExampleValues::Kind::kFloats &&
                   StoreNumber(0.0, dtype, probe);
}

// Those of the values that room has room for.
Status StoreValues(const ExampleValues& values, DType dtype,
                   std::span<std::byte> room) {
  const size_t each = DTypeBytes(dtype);
  Status status;
  const auto store = [&](auto number) {
    if (room.empty()) return false;
    if (!StoreNumber(number, dtype, room.data())) {
      status = DataLossError("the value {} does not fit {}", number,
                             DTypeName(dtype));
    }
    room = room.subspan(each);
    return status.ok();
  };
  if (values.kind() == ExampleValues::Kind::kInts) {
    values.ForEachInt(std::ref(store));  // not copied to the heap
  } else {
    values.ForEachFloat([&store](float value) { return store(double{value}); });
  }
  return status;
}

}  // namespace

Status ExampleFeatures::Take(const Wanted& wanted,
                             std::span<const std::byte> found,
                             std::span<std::byte> room, RawRecord* raw) {
  using Kind = ExampleValues::Kind;
  PENSTOCK_ASSIGN_OR_RETURN(const ExampleValues values,
                            ExampleValues::Parse(found));
  const RecordFeature& feature = wanted.feature;
  const bool one_of_bytes = values.kind() == Kind::kBytes && values.size() == 1;
  if (values.kind() == Kind::kNone) {
    if (wanted.otherwise.empty()) {
      return DataLossError("the record does not have it{}",
                           feature.kind == RecordFeature::Kind::kValues
                               ? "; `default` gives its values then"
                           : feature.kind == RecordFeature::Kind::kList
                               ? "; `default: []` makes it empty then"
                               : "");
    }
    const std::span<const std::byte> otherwise = wanted.otherwise;
    raw->push_back(otherwise.first(feature.feature.RowBytes()));
    if (feature.has_length()) {
      raw->push_back(otherwise.subspan(feature.feature.RowBytes()));
    }
    return OkStatus();
  }
  switch (feature.kind) {
    case RecordFeature::Kind::kEncoded:
      if (!one_of_bytes) {
        return DataLossError("wanted the bytes of a file, found {}",
                             values.Text());
      }
      if (values.bytes().empty()) return DataLossError("it is empty");
      raw->push_back(values.bytes());
      return OkStatus();
    case RecordFeature::Kind::kText:
      if (!one_of_bytes) {
        return DataLossError("wanted a text of at most {} bytes, found {}",
                             feature.max_length(), values.Text());
      }
      return StoreList(feature, values.bytes().size(), values.bytes(), room,
                       raw);
    case RecordFeature::Kind::kList:
      return TakeList(feature, values, room, raw);
    case RecordFeature::Kind::kValues:
      break;
  }
  const DType dtype = feature.feature.dtype;
  const auto wrong = [&] {
    return DataLossError("wanted {} of {}, or {} raw bytes, found {}",
                         wanted.values, DTypeName(dtype), room.size(),
                         values.Text());
  };
  if (one_of_bytes && values.bytes().size() == room.size()) {
    raw->push_back(values.bytes());
    return OkStatus();
  }
  if (values.size() != wanted.values || !MayHold(values, dtype)) return wrong();
  if (dtype == DType::kFloat32) {
    if (const auto floats = values.floats()) {
      raw->push_back(*floats);
      return OkStatus();
    }
  }
  PENSTOCK_RETURN_IF_ERROR(StoreValues(values, dtype, room));
  raw->push_back(room);
  return OkStatus();
}

Status ExampleFeatures::TakeList(const RecordFeature& feature,
                                 const ExampleValues& values,
                                 std::span<std::byte> room, RawRecord* raw) {
  using Kind = ExampleValues::Kind;
  const DType dtype = feature.feature.dtype;
  const uint64_t item = feature.ItemBytes() / DTypeBytes(dtype);
  if (values.kind() == Kind::kBytes && values.size() == 1 &&
      values.bytes().size() % feature.ItemBytes() == 0) {
    return StoreList(feature, values.bytes().size() / feature.ItemBytes(),
                     values.bytes(), room, raw);
  }
  // An empty list has no kind.
  if (values.size() > 0 &&
      (values.size() % item != 0 || !MayHold(values, dtype))) {
    return DataLossError("wanted a list of {}{}, or their raw bytes, found {}",
                         item == 1 ? "" : Format("{} times any of ", item),
                         DTypeName(dtype), values.Text());
  }
  PENSTOCK_RETURN_IF_ERROR(
      StoreValues(values, dtype, room.first(feature.feature.RowBytes())));
  return StoreList(feature, values.size() / item, {}, room, raw);
}

Status FeatureProposal::Add(std::span<const std::byte> example) {
  // The later one of two with one name counts.
  std::map<std::string_view, ExampleValues> found;
  PENSTOCK_RETURN_IF_ERROR(ForEachFeature(
      example,
      [&found](std::string_view key,
               std::span<const std::byte> bytes) -> Status {
        if (found.size() < kFeaturesMax || found.contains(key)) {
          PENSTOCK_ASSIGN_OR_RETURN(found[key], ExampleValues::Parse(bytes));
        }
        return OkStatus();
      }));
  ++examples_;
  for (const auto& [key, values] : found) {
    if (values.kind() == ExampleValues::Kind::kNone) continue;
    auto at = seen_.find(key);
    if (at == seen_.end()) {
      if (seen_.size() == kFeaturesMax) continue;
      at = seen_.try_emplace(std::string(key)).first;
      at->second.kind = values.kind();
    }
    Seen& seen = at->second;
    seen.mixed |= seen.kind != values.kind();
    ++seen.examples;
    seen.least = std::min(seen.least, values.size());
    seen.most = std::max(seen.most, values.size());
    if (values.kind() != ExampleValues::Kind::kBytes) continue;
    const std::string_view bytes(
        reinterpret_cast<const char*>(values.bytes().data()),
        values.bytes().size());
    seen.bytes_least = std::min<uint64_t>(seen.bytes_least, bytes.size());
    seen.bytes_most = std::max<uint64_t>(seen.bytes_most, bytes.size());
    seen.pictures &= LooksLikePicture(bytes);
    seen.sounds &= LooksLikeSound(bytes);
    seen.text &= LooksLikeText(bytes);
  }
  return OkStatus();
}

std::string FeatureProposal::Of(const Seen& seen) const {
  if (seen.mixed || seen.most == 0) return "";
  if (seen.kind != ExampleValues::Kind::kBytes) {
    const bool is_list = seen.least != seen.most;
    const uint64_t room = std::bit_ceil(2 * seen.most);
    return Format("dtype: {}, {}{}",
                  seen.kind == ExampleValues::Kind::kInts ? "int64" : "float32",
                  is_list          ? Format("max_length: {}", room)
                  : seen.most == 1 ? "shape: []"
                                   : Format("shape: [{}]", seen.most),
                  seen.examples == examples_ ? ""
                  : is_list                  ? ", default: []"
                                             : ", default: 0");
  }
  if (seen.least != seen.most) return "";
  if (seen.most != 1) return "";
  if (seen.pictures || seen.sounds) return "encoded: true";
  if (!seen.text && seen.bytes_least == seen.bytes_most) {
    return Format("dtype: uint8, shape: [{}]", seen.bytes_most);
  }
  return ProposedText(seen.bytes_most);
}

std::string FeatureProposal::Features() const {
  std::string text;
  for (const auto& [key, seen] : seen_) {
    const std::string proposal = Of(seen);
    if (proposal.empty()) continue;
    const std::string name = ProposedName(key);
    text += Format("{}{}: {{{}{}}}", text.empty() ? "" : ", ", name,
                   name == key ? "" : Format("key: \"{}\", ", Printable(key)),
                   proposal);
  }
  return text;
}

std::string FeatureProposal::LeftOut() const {
  std::string text;
  for (const auto& [key, seen] : seen_) {
    if (!Of(seen).empty()) continue;
    const char* const of = seen.mixed ? "values of several kinds"
                           : seen.kind == ExampleValues::Kind::kInts ? "int64"
                           : seen.kind == ExampleValues::Kind::kFloats
                               ? "floats"
                               : "values of bytes";
    text += Format("{}{} ({}{} {})", text.empty() ? "" : ", ", Printable(key),
                   seen.least == seen.most ? "" : Format("{} to ", seen.least),
                   seen.most, of);
  }
  return text;
}

}  // namespace penstock
