// A dataset of Megatron: PREFIX.bin has the tokens of all documents, PREFIX.idx
// where each lies (megatron.core.datasets.indexed_dataset): nine bytes of
// magic, the version u64, a code of the tokens' dtype u8, the numbers of
// sequences and of document indices u64; of each sequence its length i32 and
// its place in PREFIX.bin i64; the document indices i64; maybe a mode i8 of
// each sequence. What its GPTDataset takes for a document is a sequence of the
// file. Untrusted input.
#ifndef BROKER_SOURCE_MEGATRON_INDEX_H_
#define BROKER_SOURCE_MEGATRON_INDEX_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "broker/index/data_file.h"
#include "broker/index/open_progress.h"
#include "common/status.h"

namespace penstock {

// Numbers in memory that is not zeroed first: there may be billions of them.
template <typename T>
class NumberArray {
 public:
  NumberArray() = default;
  // ResourceExhausted, also where they were not promised. what: for messages.
  static StatusOr<NumberArray> Make(const std::string& what, uint64_t size,
                                    OpenProgress* progress) {
    if (size > UINT64_MAX / 2 / sizeof(T)) {
      return ResourceExhaustedError("{}: {} numbers", what, size);
    }
    if (const Status status = progress->reserve(size * sizeof(T));
        !status.ok()) {
      return status.Prepend(what);
    }
    NumberArray array;
    array.data_.reset(new (std::nothrow) T[size]);
    array.size_ = size;
    if (array.data_ == nullptr) {
      return ResourceExhaustedError("{}: no memory for {} bytes", what,
                                    array.memory_bytes());
    }
    return array;
  }

  bool empty() const { return size_ == 0; }
  uint64_t size() const { return size_; }
  uint64_t memory_bytes() const { return size_ * sizeof(T); }
  T& operator[](uint64_t i) { return data_[i]; }
  const T& operator[](uint64_t i) const { return data_[i]; }
  std::span<T> span() { return {data_.get(), size_}; }
  std::span<const T> span() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<T[]> data_;
  uint64_t size_ = 0;
};

// Constant once its places are kept; any thread may then use it.
class MegatronIndex {
 public:
  // Codes of the format.
  enum class Token : uint8_t {
    kUint8 = 1,
    kInt8 = 2,
    kInt16 = 3,
    kInt32 = 4,
    kInt64 = 5,
    kFloat64 = 6,
    kFloat32 = 7,
    kUint16 = 8,
  };

  // Reads all of PREFIX.idx once and checks it against the size of PREFIX.bin.
  // DataLoss and InvalidArgument name the file and the field.
  static StatusOr<MegatronIndex> Open(const std::string& prefix,
                                      OpenProgress* progress);

  const DataFile& idx() const { return idx_; }
  const DataFile& bin() const { return bin_; }
  DataFile* mutable_bin() { return &bin_; }
  Token token() const { return token_; }
  uint64_t token_bytes() const;
  uint64_t documents() const { return documents_; }
  uint64_t tokens() const { return tokens_; }
  // Each document begins where the one before it ends, the first at byte 0.
  bool in_a_row() const { return in_a_row_; }

  // Where a document (<= documents() if they lie in a row, else <) lies in
  // PREFIX.bin; a read of PREFIX.idx.
  StatusOr<uint64_t> FindByte(uint64_t document, OpenProgress* progress) const;

  // Keeps the places of all documents in memory, for what follows: 4 bytes a
  // document, 12 where they do not lie in a row. Does nothing the second time.
  Status Keep(OpenProgress* progress);
  bool kept() const { return !begins_.empty(); }
  uint64_t memory_bytes() const {
    return begins_.memory_bytes() + wraps_.memory_bytes() +
           bytes_at_.memory_bytes();
  }
  // The tokens of all documents before it (<= documents()).
  uint64_t BeginOf(uint64_t document) const {
    const std::span<const uint64_t> wraps = wraps_.span();
    const auto next = std::upper_bound(wraps.begin(), wraps.end(), document);
    return static_cast<uint64_t>(next - wraps.begin()) << 32 |
           begins_[document];
  }
  uint64_t LengthOf(uint64_t document) const {
    return begins_[document + 1] - begins_[document];
  }
  uint64_t ByteOf(uint64_t document) const {
    return in_a_row_ ? BeginOf(document) * token_bytes() : bytes_at_[document];
  }
  // The last document that begins at this token (< tokens()) or before it.
  uint64_t DocumentAt(uint64_t token) const;
  void Expect(uint64_t document) const {
    __builtin_prefetch(&begins_[document]);
  }

 private:
  MegatronIndex(DataFile idx, DataFile bin)
      : idx_(std::move(idx)), bin_(std::move(bin)) {}
  Status ReadHead(OpenProgress* progress);
  Status CheckPlaces(OpenProgress* progress);
  // Calls each(document, length, byte), which gives a Status, for all of them.
  template <typename F>
  Status ForEachPlace(OpenProgress* progress, const F& each) const;

  DataFile idx_;
  DataFile bin_;
  Token token_ = Token::kInt32;
  uint64_t documents_ = 0;
  uint64_t tokens_ = 0;
  bool in_a_row_ = true;
  // In tokens, with the end: the low 32 bits, and the documents at which the
  // high ones grow, by one as a length has 31 bits.
  NumberArray<uint32_t> begins_;
  NumberArray<uint64_t> wraps_;
  NumberArray<uint64_t> bytes_at_;  // empty if they lie in a row
};

}  // namespace penstock
#endif  // BROKER_SOURCE_MEGATRON_INDEX_H_
