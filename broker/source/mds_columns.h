// The columns of MDS shards, by their encodings (MosaicML Streaming 0.13,
// streaming/base/format/mds), their values in a sample, and the features that a
// spec takes from them. Untrusted input; nothing is copied that need not be.
#ifndef BROKER_SOURCE_MDS_COLUMNS_H_
#define BROKER_SOURCE_MDS_COLUMNS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/declare/value_type.h"
#include "broker/source/record_feature.h"
#include "broker/source/source.h"
#include "common/status.h"

namespace penstock {

// A dtype of the format. Those that no feature can have become the next larger
// one.
struct MdsDType {
  std::string_view name;
  uint8_t code;  // before the values of an array that says its own
  uint8_t bytes;
  DType dtype;
  // A value of a feature of this dtype has the stored bytes.
  bool is_native;
};

struct MdsColumn {
  enum class Kind {
    kBytes,
    kText,     // str, json
    kNumber,   // in text: str_int, str_float, str_decimal
    kPicture,  // a picture file
    kPictures,
    kArray,    // int, uint8, ..., ndarray
    kRefused,  // it cannot be read
  };
  std::string name;
  std::string encoding;
  Kind kind = Kind::kBytes;
  std::optional<uint32_t> bytes;  // of each value; nullopt: each sample says
  // kArray; nullptr, nullopt: each value says. Both: `bytes` follow.
  const MdsDType* dtype = nullptr;
  std::optional<std::vector<int64_t>> shape;
  // In pictures, the number of them is behind so many bytes.
  uint64_t count_at = 0;

  // InvalidArgument, as for a message that begins with the column: an encoding
  // with other bytes than it has, or that is none.
  static StatusOr<MdsColumn> Make(std::string name, std::string encoding,
                                  std::optional<uint64_t> bytes);
  // "column 'x' (ndarray:int32)"
  std::string ToString() const;
};

// A value of kArray.
struct MdsArray {
  const MdsDType* dtype = nullptr;
  std::array<uint64_t, kShapeDimensionsMax> sizes{};
  size_t dimensions = 0;
  std::span<const std::byte> values;

  std::span<const uint64_t> shape() const {
    return std::span(sizes).first(dimensions);
  }
};
// DataLoss: it is none, or has another number of bytes than its shape.
StatusOr<MdsArray> MdsArrayIn(const MdsColumn& column,
                              std::span<const std::byte> value);

// The pictures of a value of kPictures.
class MdsPictures {
 public:
  // DataLoss: its sizes are not those of the value.
  static StatusOr<MdsPictures> In(const MdsColumn& column,
                                  std::span<const std::byte> value);
  uint64_t count() const { return sizes_.size() / sizeof(uint32_t); }
  std::span<const std::byte> operator[](uint64_t i) const;

 private:
  std::span<const std::byte> sizes_;
  std::span<const std::byte> pictures_;
};

class MdsColumns {
 public:
  MdsColumns() = default;
  explicit MdsColumns(std::vector<MdsColumn> columns);

  size_t size() const { return columns_.size(); }
  const MdsColumn& operator[](size_t i) const { return columns_[i]; }
  std::vector<MdsColumn>::const_iterator begin() const {
    return columns_.begin();
  }
  std::vector<MdsColumn>::const_iterator end() const { return columns_.end(); }

  // The bytes of each sample; nullopt: some column has values of any size.
  std::optional<uint64_t> sample_bytes() const {
    return sized_ == 0 ? std::optional(fixed_bytes_) : std::nullopt;
  }
  // DataLoss: the sizes of its columns are not those of the sample.
  Status Split(std::span<const std::byte> sample,
               std::vector<std::span<const std::byte>>* values) const;

 private:
  std::vector<MdsColumn> columns_;
  uint64_t sized_ = 0;        // columns whose sizes a sample says
  uint64_t fixed_bytes_ = 0;  // of all others
};

class MdsFeatures {
 public:
  // Completes what the columns say. InvalidArgument: a column is not there,
  // cannot be read, or does not fit; NotFound: only the samples can tell what a
  // feature is.
  static StatusOr<MdsFeatures> Make(RecordFeatures features,
                                    const MdsColumns& columns);

  const RecordFeatures& features() const { return features_; }
  // What has to be read of each sample: all of it, where it is nullopt.
  struct Part {
    uint64_t begin = 0;
    uint64_t bytes = 0;
  };
  const std::optional<Part>& part() const { return part_; }
  // The part is the only feature.
  bool is_plain() const { return is_plain_; }

  // As Source::Unpack. read: the part. Errors name the column.
  Status Unpack(std::span<const std::byte> read,
                std::vector<std::byte>* scratch, RawRecord* raw) const;

 private:
  struct Place {
    size_t column = 0;
    uint64_t begin = 0;  // in the part
    uint64_t room = 0;   // in the scratch
  };

  RecordFeatures features_;
  MdsColumns columns_;
  std::vector<Place> places_;  // by feature
  uint64_t room_ = 0;
  std::optional<Part> part_;
  bool is_plain_ = false;
};

// What samples have, as a spec would tell it.
class MdsProposal {
 public:
  explicit MdsProposal(const MdsColumns& columns)
      : columns_(columns), seen_(columns.size()) {}
  Status Add(std::span<const std::byte> sample);
  // "image: {}, text: {max_bytes: 128}"
  std::string Features() const;
  // What no spec can tell, with the reasons; "": nothing.
  std::string LeftOut() const;

 private:
  // What all values of a column have been like.
  struct Seen {
    uint64_t values = 0;
    uint64_t least = UINT64_MAX;  // bytes; pictures of kPictures
    uint64_t most = 0;
    bool pictures = true;  // or sounds
    bool text = true;
    const MdsDType* dtype = nullptr;
    std::vector<uint64_t> shape;
    bool alike = true;          // arrays: but for the first dimension
    uint64_t length_least = 0;  // of that
    uint64_t length_most = 0;
  };
  // Pairs of a suffix for the name, and what the feature is.
  std::vector<std::pair<std::string, std::string>> Of(size_t column) const;

  const MdsColumns& columns_;
  std::vector<Seen> seen_;
  std::vector<std::span<const std::byte>> values_;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_MDS_COLUMNS_H_
