#include "broker/job/packed_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "common/format.h"
#include "common/layout.h"

namespace penstock {
namespace {

template <typename T>
bool Write(int64_t number, std::byte* to) {
  if constexpr (std::numeric_limits<T>::is_integer) {
    if (number < std::numeric_limits<T>::min() ||
        number > std::numeric_limits<T>::max()) {
      return false;
    }
  }
  const T value = static_cast<T>(number);
  std::memcpy(to, &value, sizeof(value));
  return true;
}

// False: the number is none of the dtype.
bool WriteNumber(DType dtype, int64_t number, std::byte* to) {
  switch (dtype) {
    case DType::kUint8:
      return Write<uint8_t>(number, to);
    case DType::kInt8:
      return Write<int8_t>(number, to);
    case DType::kInt16:
      return Write<int16_t>(number, to);
    case DType::kInt32:
      return Write<int32_t>(number, to);
    case DType::kInt64:
      return Write<int64_t>(number, to);
    case DType::kFloat32:
      return Write<float>(number, to);
    case DType::kFloat64:
      return Write<double>(number, to);
    case DType::kBool:
      return (number == 0 || number == 1) && Write<uint8_t>(number, to);
    case DType::kFloat16:
    case DType::kBFloat16:
      return number == 0 && Write<int16_t>(number, to);
  }
  return false;
}

template <typename T>
T* At(PackedRows::Places row, size_t feature) {
  return reinterpret_cast<T*>(row[feature]);
}

std::string NamesOf(const ElementSpec& features) {
  std::vector<std::string> names;
  for (const Feature& feature : features) names.push_back(feature.name);
  return JoinText(names, ", ");
}

}  // namespace

StatusOr<PackedRows::List> PackedRows::ListOf(const PackSpec& spec,
                                              const ElementSpec& document) {
  std::optional<List> found;
  for (size_t i = 0; i < document.size(); ++i) {
    const std::optional<uint32_t> length = LengthOf(document, document[i]);
    if (!length) {
      if (document[i].name != spec.feature) continue;
      return InvalidArgumentError(
          "feature: '{}' is {} in every record, and lists are packed, which "
          "have a length of their own",
          spec.feature, document[i].ToString());
    }
    if (!spec.feature.empty() && document[i].name != spec.feature) continue;
    if (found) {
      return InvalidArgumentError(
          "'{}' and '{}' are lists: say which `feature` is packed, of whose "
          "lengths the other has to be",
          document[found->feature].name, document[i].name);
    }
    found = List{i, *length};
  }
  if (found) return *found;
  if (!spec.feature.empty()) {
    return InvalidArgumentError("feature: there is no '{}'; rows have {}",
                                spec.feature, NamesOf(document));
  }
  return InvalidArgumentError(
      "rows have no list to pack: a feature with a .length beside it, or text "
      "with its _bytes; they have {} (`megatron` gives documents without a "
      "`sequence_length`, `tokens` with `documents`; with one, rows are "
      "sequences already)",
      NamesOf(document));
}

StatusOr<std::unique_ptr<const PackedRows>> PackedRows::Make(
    const PackSpec& spec, const ElementSpec& document, uint32_t documents) {
  PENSTOCK_ASSIGN_OR_RETURN(const List list, ListOf(spec, document));
  std::unique_ptr<PackedRows> rows(new PackedRows);
  rows->document_ = document;
  rows->length_ = spec.length;
  rows->documents_ = documents;
  rows->mask_first_ = spec.mask_first;
  std::set<size_t> lengths;
  for (const Feature& feature : document) {
    if (const auto length = LengthOf(document, feature)) {
      lengths.insert(*length);
    }
  }
  for (size_t i = 0; i < document.size(); ++i) {
    if (lengths.contains(i)) continue;
    const Feature& feature = document[i];
    const std::optional<uint32_t> length = LengthOf(document, feature);
    if (!length) {
      return InvalidArgumentError(
          "feature '{0}' is {1} of each document, and a row has several: leave "
          "it out (`map: [drop: {{features: {0}}}]`)",
          feature.name, feature.ToString());
    }
    if (i == list.feature) rows->list_ = rows->lists_.size();
    Feature packed = feature;
    packed.shape[0] = static_cast<int64_t>(spec.length);
    const uint64_t item_bytes = packed.RowBytes() / spec.length;
    const auto pad = std::find_if(
        spec.pad.begin(), spec.pad.end(),
        [&](const auto& each) { return each.first == feature.name; });
    std::vector<std::byte> item(item_bytes);
    const uint32_t bytes = DTypeBytes(feature.dtype);
    for (uint64_t at = 0; pad != spec.pad.end() && at < item_bytes;
         at += bytes) {
      if (WriteNumber(feature.dtype, pad->second, item.data() + at)) continue;
      return InvalidArgumentError("pad.{}: {} is no value of {}", feature.name,
                                  pad->second, feature.ToString());
    }
    rows->lists_.push_back({i, *length, item_bytes, std::move(item)});
    rows->row_.push_back(std::move(packed));
  }
  for (const auto& [name, value] : spec.pad) {
    const bool known = std::any_of(
        rows->row_.begin(), rows->row_.end(),
        [&name = name](const Feature& each) { return each.name == name; });
    if (known) continue;
    return InvalidArgumentError("pad.{}: there is no such list; packed are {}",
                                name, NamesOf(rows->row_));
  }
  const auto length = static_cast<int64_t>(spec.length);
  const auto in_row = static_cast<int64_t>(documents);
  for (const PackSpec::Output output : spec.with) {
    Feature feature = {.name = std::string(NameOf(output)),
                       .dtype = DType::kInt32,
                       .shape = {length}};
    switch (output) {
      case PackSpec::Output::kPositionIds:
      case PackSpec::Output::kDocumentIds:
        break;
      case PackSpec::Output::kLossMask:
        feature.dtype = DType::kUint8;
        break;
      case PackSpec::Output::kSeqLens:
        feature.shape = {in_row};
        break;
      case PackSpec::Output::kCuSeqlens:
        feature.shape = {in_row + 2};
        break;
      case PackSpec::Output::kRecords:
        feature.dtype = DType::kInt64;
        feature.shape = {in_row};
        break;
    }
    for (const Feature& other : rows->row_) {
      if (other.name != feature.name) continue;
      return InvalidArgumentError(
          "with: the documents have a list '{0}' of their own, which is packed "
          "as the others are: leave {0} out here, or `rename` or `drop` theirs",
          feature.name);
    }
    rows->beside_.push_back({output, rows->row_.size()});
    rows->row_.push_back(std::move(feature));
  }
  if (rows->row_.size() > kFeaturesMax) {
    return InvalidArgumentError("rows of {} features; at most {}",
                                rows->row_.size(), kFeaturesMax);
  }
  return std::unique_ptr<const PackedRows>(std::move(rows));
}

void PackedRows::Pad(uint64_t begin, uint64_t end, Places row) const {
  for (size_t i = 0; i < lists_.size(); ++i) {
    const Packed& list = lists_[i];
    std::byte* to = row[i] + begin * list.item_bytes;
    const bool same =
        std::all_of(list.pad.begin(), list.pad.end(),
                    [&list](std::byte each) { return each == list.pad[0]; });
    if (same) {
      std::memset(to, static_cast<int>(list.pad[0]),
                  (end - begin) * list.item_bytes);
      continue;
    }
    for (uint64_t at = begin; at < end; ++at, to += list.item_bytes) {
      std::memcpy(to, list.pad.data(), list.item_bytes);
    }
  }
}

void PackedRows::Begin(std::span<const Piece> pieces, Places row) const {
  const uint64_t used = pieces.back().at + pieces.back().size;
  Pad(used, length_, row);
  for (const auto& [output, feature] : beside_) {
    switch (output) {
      case PackSpec::Output::kPositionIds: {
        int32_t* const ids = At<int32_t>(row, feature);
        for (const Piece& piece : pieces) {
          for (uint64_t i = 0; i < piece.size; ++i) {
            ids[piece.at + i] = static_cast<int32_t>(i);
          }
        }
        std::fill(ids + used, ids + length_, 0);
        break;
      }
      case PackSpec::Output::kDocumentIds: {
        int32_t* const ids = At<int32_t>(row, feature);
        for (size_t i = 0; i < pieces.size(); ++i) {
          std::fill_n(ids + pieces[i].at, pieces[i].size,
                      static_cast<int32_t>(i));
        }
        std::fill(ids + used, ids + length_, -1);
        break;
      }
      case PackSpec::Output::kSeqLens: {
        int32_t* const lengths = At<int32_t>(row, feature);
        for (size_t i = 0; i < pieces.size(); ++i) {
          lengths[i] = static_cast<int32_t>(pieces[i].size);
        }
        std::fill(lengths + pieces.size(), lengths + documents_, 0);
        break;
      }
      case PackSpec::Output::kCuSeqlens: {
        int32_t* const begins = At<int32_t>(row, feature);
        for (size_t i = 0; i < pieces.size(); ++i) {
          begins[i] = static_cast<int32_t>(pieces[i].at);
        }
        begins[pieces.size()] = static_cast<int32_t>(used);
        // Padding is the last: each item of the row is in one.
        std::fill(begins + pieces.size() + 1, begins + documents_ + 2,
                  static_cast<int32_t>(length_));
        break;
      }
      case PackSpec::Output::kLossMask: {
        std::byte* const mask = row[feature];
        std::memset(mask, 1, used);
        std::memset(mask + used, 0, length_ - used);
        if (!mask_first_) break;
        for (const Piece& piece : pieces) mask[piece.at] = std::byte{0};
        break;
      }
      case PackSpec::Output::kRecords: {
        int64_t* const records = At<int64_t>(row, feature);
        for (size_t i = 0; i < pieces.size(); ++i) {
          records[i] = static_cast<int64_t>(pieces[i].record);
        }
        std::fill(records + pieces.size(), records + documents_, -1);
        break;
      }
    }
  }
}

Status PackedRows::Put(const Piece& piece, Places document, Places row) const {
  for (size_t i = 0; i < lists_.size(); ++i) {
    const Packed& list = lists_[i];
    int64_t length = 0;
    std::memcpy(&length, document[list.length], sizeof(length));
    if (length > document_[list.from].shape[0]) {
      return DataLossError(
          "'{}' is {}, and '{}' has room for {}: give it the number of items, "
          "or another name",
          document_[list.length].name, length, document_[list.from].name,
          document_[list.from].shape[0]);
    }
    if (length != static_cast<int64_t>(piece.length)) {
      const std::string& name = document_[list.from].name;
      if (i == list_) {
        return DataLossError(
            "list '{}' has a length of {} here, and the column that it was "
            "packed by says {}: `map` may not change its length; `penstock "
            "convert` the rows first",
            name, length, piece.length);
      }
      return DataLossError(
          "list '{}' has a length of {}, and '{}' one of {}: lists that are "
          "packed together are of one length; `drop` the other",
          name, length, document_[lists_[list_].from].name, piece.length);
    }
    std::memcpy(row[i] + piece.at * list.item_bytes,
                document[list.from] + piece.begin * list.item_bytes,
                piece.size * list.item_bytes);
  }
  return OkStatus();
}

void PackedRows::LeaveOut(const Piece& piece, Places row) const {
  Pad(piece.at, piece.at + piece.size, row);
  for (const auto& [output, feature] : beside_) {
    if (output != PackSpec::Output::kLossMask) continue;
    std::memset(row[feature] + piece.at, 0, piece.size);
  }
}

}  // namespace penstock
