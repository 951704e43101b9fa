#include "broker/source/example.h"

#include "broker/index/values.h"

namespace penstock {
namespace {

// Field numbers of the messages.
constexpr uint64_t kFeatures = 1;      // of Example and of SequenceExample
constexpr uint64_t kFeatureLists = 2;  // of SequenceExample
constexpr uint64_t kEntry = 1;         // of Features: a map's entries
constexpr uint64_t kEntryKey = 1;
constexpr uint64_t kEntryValue = 2;
constexpr uint64_t kBytesList = 1;  // of Feature
constexpr uint64_t kFloatList = 2;
constexpr uint64_t kInt64List = 3;
constexpr uint64_t kValue = 1;  // of each list

enum WireType : uint64_t {
  kVarint = 0,
  kFixed64 = 1,
  kLength = 2,
  kFixed32 = 5
};

struct Field {
  uint64_t number = 0;
  uint64_t type = 0;
  uint64_t varint = 0;               // kVarint
  std::span<const std::byte> bytes;  // the others
};

// The fields of a message, one after the other.
class Message {
 public:
  explicit Message(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  size_t left() const { return rest_.size(); }

  // False: malformed.
  bool Next(Field* field) {
    uint64_t tag = 0;
    if (!Varint(&tag)) return false;
    field->number = tag >> 3;
    field->type = tag & 7;
    switch (field->type) {
      case kVarint:
        return Varint(&field->varint) && field->number != 0;
      case kFixed64:
        return Take(8, &field->bytes) && field->number != 0;
      case kFixed32:
        return Take(4, &field->bytes) && field->number != 0;
      case kLength: {
        uint64_t length = 0;
        return Varint(&length) && Take(length, &field->bytes) &&
               field->number != 0;
      }
      default:  // groups, which these messages never had
        return false;
    }
  }

  bool Varint(uint64_t* value) {
    if (!rest_.empty() && rest_[0] < std::byte{0x80}) {  // most are short
      *value = std::to_integer<uint64_t>(rest_[0]);
      rest_ = rest_.subspan(1);
      return true;
    }
    return LongVarint(value);
  }

 private:
  bool LongVarint(uint64_t* value) {
    *value = 0;
    for (size_t i = 0; i < rest_.size() && i < 10; ++i) {
      const auto byte = std::to_integer<uint64_t>(rest_[i]);
      *value |= (byte & 0x7f) << (7 * i);
      if (byte < 0x80) {
        rest_ = rest_.subspan(i + 1);
        return true;
      }
    }
    return false;
  }

  bool Take(uint64_t bytes, std::span<const std::byte>* out) {
    if (bytes > rest_.size()) return false;
    *out = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return true;
  }

  std::span<const std::byte> rest_;
};

Status MalformedError(const char* what) {
  return DataLossError("not a tf.train.Example: its {} is malformed", what);
}

// Calls visit(field) for the fields of bytes until it returns false. False:
// malformed.
template <typename Visit>
bool ForEachField(std::span<const std::byte> bytes, Visit visit) {
  Message message(bytes);
  Field field;
  while (!message.empty()) {
    if (!message.Next(&field)) return false;
    if (!visit(field)) return true;
  }
  return true;
}

// Counts the values of a packed field; nullopt: malformed.
std::optional<uint64_t> CountVarints(std::span<const std::byte> packed) {
  uint64_t count = 0;
  uint64_t value = 0;
  for (Message message(packed); !message.empty(); ++count) {
    if (!message.Varint(&value)) return std::nullopt;
  }
  return count;
}

}  // namespace

StatusOr<ExampleValues> ExampleValues::Parse(
    std::span<const std::byte> feature) {
  ExampleValues values;
  bool sound = ForEachField(feature, [&values](const Field& field) {
    if (field.type != kLength) return true;
    switch (field.number) {
      case kBytesList:
        values.kind_ = Kind::kBytes;
        break;
      case kFloatList:
        values.kind_ = Kind::kFloats;
        break;
      case kInt64List:
        values.kind_ = Kind::kInts;
        break;
      default:
        return true;
    }
    values.list_ = field.bytes;
    return true;
  });
  if (!sound) return MalformedError("Feature");
  bool has_first = false;
  bool right = true;  // every value is of its list's kind
  sound = ForEachField(values.list_, [&](const Field& field) {
    if (field.number != kValue) return true;
    uint64_t count = 1;
    if (field.type == kLength) {
      if (!has_first) values.first_ = field.bytes;
      has_first = true;
      if (values.kind_ == Kind::kFloats) {
        right &= field.bytes.size() % sizeof(float) == 0;
        count = field.bytes.size() / sizeof(float);
      } else if (values.kind_ == Kind::kInts) {
        const std::optional<uint64_t> varints = CountVarints(field.bytes);
        right &= varints.has_value();
        count = varints.value_or(0);
      }
    } else {
      right &=
          field.type == (values.kind_ == Kind::kFloats ? kFixed32 : kVarint);
      right &= values.kind_ != Kind::kBytes;
    }
    values.size_ += count;
    return right;
  });
  if (!sound || !right) return MalformedError("list of values");
  return values;
}

std::string ExampleValues::Text() const {
  switch (kind_) {
    case Kind::kBytes:
      return size_ == 1 ? Format("{} bytes", first_.size())
                        : Format("{} values of bytes", size_);
    case Kind::kFloats:
      return Format("{} float{}", size_, size_ == 1 ? "" : "s");
    case Kind::kInts:
      return Format("{} int64", size_);
    case Kind::kNone:
      break;
  }
  return "no values";
}

std::optional<std::span<const std::byte>> ExampleValues::floats() const {
  if (kind_ != Kind::kFloats || first_.size() != size_ * sizeof(float)) {
    return std::nullopt;
  }
  return first_;
}

void ExampleValues::ForEachFloat(const std::function<bool(float)>& take) const {
  ForEachField(list_, [&take](const Field& field) {
    if (field.number != kValue) return true;
    for (size_t at = 0; at + sizeof(float) <= field.bytes.size();
         at += sizeof(float)) {
      if (!take(ValueAt<float>(&field.bytes[at]))) return false;
    }
    return true;
  });
}

void ExampleValues::ForEachInt(const std::function<bool(int64_t)>& take) const {
  ForEachField(list_, [&take](const Field& field) {
    if (field.number != kValue) return true;
    if (field.type == kVarint) return take(static_cast<int64_t>(field.varint));
    uint64_t value = 0;
    for (Message message(field.bytes); message.Varint(&value);) {
      if (!take(static_cast<int64_t>(value))) return false;
    }
    return true;
  });
}

Status ForEachFeature(
    std::span<const std::byte> example,
    const std::function<Status(std::string_view name,
                               std::span<const std::byte> feature)>& visit) {
  Status status;
  const auto entry = [&](const Field& field) {
    if (field.number != kEntry || field.type != kLength) return true;
    std::string_view name;
    std::span<const std::byte> feature;
    if (!ForEachField(field.bytes, [&](const Field& part) {
          if (part.type != kLength) return true;
          if (part.number == kEntryKey) {
            name = {reinterpret_cast<const char*>(part.bytes.data()),
                    part.bytes.size()};
          } else if (part.number == kEntryValue) {
            feature = part.bytes;
          }
          return true;
        })) {
      status = MalformedError("map of features");
    } else {
      status = visit(name, feature);
    }
    return status.ok();
  };
  const bool sound = ForEachField(example, [&](const Field& field) {
    if (field.type != kLength) return true;
    if (field.number == kFeatureLists) {
      status = UnimplementedError(
          "a tf.train.SequenceExample, whose feature lists are of any length; "
          "write tf.train.Example with features of fixed length");
    } else if (field.number == kFeatures && !ForEachField(field.bytes, entry)) {
      status = MalformedError("Features");
    }
    return status.ok();
  });
  if (!sound && status.ok()) return MalformedError("message");
  return status;
}

}  // namespace penstock
