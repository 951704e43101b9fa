#include "broker/source/example_features.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <map>

#include "broker/source/example.h"

namespace penstock {
namespace {

constexpr size_t kFeaturesMax = 64;  // CheckFeatureNames

// Letters, digits, '.', '_' and '-'.
std::string RowName(std::string_view key) {
  std::string name(key.substr(0, 64));
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' &&
        c != '-') {
      c = '_';
    }
  }
  return name;
}

std::string ProposalFor(const ExampleValues& values) {
  const auto list = [&values](const char* dtype) {
    return Format("dtype: {}, shape: [{}]", dtype,
                  values.size() == 1 ? "" : std::to_string(values.size()));
  };
  switch (values.kind()) {
    case ExampleValues::Kind::kFloats:
      return list("float32");
    case ExampleValues::Kind::kInts:
      return list("int64");
    case ExampleValues::Kind::kBytes:
      break;
    case ExampleValues::Kind::kNone:
      return "";
  }
  if (values.size() != 1) return "";
  const std::span<const std::byte> bytes = values.bytes();
  const auto begins = [&bytes](std::string_view magic) {
    return bytes.size() >= magic.size() &&
           std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
  };
  if (begins("\xff\xd8\xff") || begins("\x89PNG")) return "encoded: true";
  const bool text = std::none_of(bytes.begin(), bytes.end(), [](std::byte b) {
    return std::to_integer<int>(b) < ' ' && b != std::byte{'\n'};
  });
  return text ? Format("max_bytes: {}", std::max<size_t>(bytes.size(), 1))
              : Format("dtype: uint8, shape: [{}]", bytes.size());
}

}  // namespace

ExampleFeatures::ExampleFeatures(const RecordFeatures& features) {
  for (const RecordFeature& each : features) {
    Wanted& wanted = wanted_.emplace_back();
    wanted.feature = each;
    if (each.otherwise) wanted.otherwise = DefaultBytes(each);
    if (each.kind == RecordFeature::Kind::kText) {
      wanted.room = TextBytes(each);
    } else if (each.kind == RecordFeature::Kind::kValues) {
      wanted.room = each.feature.RowBytes();
      wanted.values = wanted.room / DTypeBytes(each.feature.dtype);
    }
    room_ += wanted.room;
  }
}

Status ExampleFeatures::Unpack(std::span<const std::byte> example,
                               std::vector<std::byte>* scratch,
                               RawRecord* raw) const {
  std::array<std::span<const std::byte>, kFeaturesMax> found;
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
                               : "");
    }
    raw->push_back(wanted.otherwise);
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
    case RecordFeature::Kind::kText: {
      const uint64_t bytes_max = room.size() - sizeof(int64_t);
      if (!one_of_bytes || values.bytes().size() > bytes_max) {
        return DataLossError("wanted a text of at most {} bytes, found {}",
                             bytes_max, values.Text());
      }
      StoreText(values.bytes(), room);
      raw->push_back(room.first(bytes_max));
      raw->push_back(room.subspan(bytes_max));
      return OkStatus();
    }
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
  std::byte probe[sizeof(uint64_t)];
  const bool fits =
      values.size() == wanted.values &&
      (values.kind() == Kind::kInts
           ? StoreNumber(int64_t{0}, dtype, probe)
           : values.kind() == Kind::kFloats && StoreNumber(0.0, dtype, probe));
  if (!fits) return wrong();
  if (dtype == DType::kFloat32) {
    if (const auto floats = values.floats()) {
      raw->push_back(*floats);
      return OkStatus();
    }
  }
  const size_t each = DTypeBytes(dtype);
  std::byte* out = room.data();
  Status status;
  const auto store = [&](auto number) {
    if (!StoreNumber(number, dtype, out)) {
      status = DataLossError("the value {} does not fit {}", number,
                             DTypeName(dtype));
    }
    out += each;
    return status.ok();
  };
  if (values.kind() == Kind::kInts) {
    values.ForEachInt(store);
  } else {
    values.ForEachFloat([&store](float value) { return store(double{value}); });
  }
  PENSTOCK_RETURN_IF_ERROR(status);
  raw->push_back(room);
  return OkStatus();
}

StatusOr<std::string> ProposedFeatures(std::span<const std::byte> example) {
  std::map<std::string_view, std::string> features;
  PENSTOCK_RETURN_IF_ERROR(
      ForEachFeature(example,
                     [&features](std::string_view key,
                                 std::span<const std::byte> bytes) -> Status {
                       PENSTOCK_ASSIGN_OR_RETURN(const ExampleValues values,
                                                 ExampleValues::Parse(bytes));
                       features[key] = ProposalFor(values);
                       return OkStatus();
                     }));
  std::string text;
  for (const auto& [key, proposal] : features) {
    if (proposal.empty()) continue;
    const std::string name = RowName(key);
    text += Format("{}{}: {{{}{}}}", text.empty() ? "" : ", ", name,
                   name == key ? "" : Format("key: \"{}\", ", key), proposal);
  }
  return text;
}

}  // namespace penstock
