#include "broker/source/parquet_metadata.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace penstock {
namespace {

// Where footers mostly begin, so that one request has them.
constexpr uint64_t kTailBytes = 32 << 10;
// The metadata of a message, as a rule.
constexpr uint64_t kMessageBytes = 4 << 10;
constexpr uint64_t kMessageBytesMax = 64 << 20;
constexpr uint64_t kPrefixBytes = 8;  // of a message: a mark, and a length
constexpr uint32_t kMark = 0xffffffff;

// 0 where it lies behind the end: bytes are foreign.
template <typename T>
T NumberAt(std::string_view bytes, uint64_t at) {
  T value{};
  if (at < bytes.size() && sizeof(T) <= bytes.size() - at) {
    std::memcpy(&value, bytes.data() + at, sizeof(T));
  }
  return value;
}

// A table of FlatBuffers: a table's first bytes lead back to the places of its
// fields.
class FlatTable {
 public:
  FlatTable(std::string_view bytes, uint64_t at) : bytes_(bytes), at_(at) {}

  // The place of a field; 0: it is left out.
  uint64_t Field(uint64_t number) const {
    const uint64_t fields = at_ - static_cast<uint64_t>(Value<int32_t>(at_));
    const uint64_t entry = 4 + 2 * number;
    if (entry + 2 > Value<uint16_t>(fields)) return 0;
    const uint64_t place = Value<uint16_t>(fields + entry);
    return place == 0 ? 0 : at_ + place;
  }
  FlatTable Table(uint64_t number) const {
    const uint64_t at = Field(number);
    return {bytes_, at + Value<uint32_t>(at)};
  }
  template <typename T>
  T Of(uint64_t number) const {
    const uint64_t at = Field(number);
    return at == 0 ? T{} : Value<T>(at);
  }

 private:
  template <typename T>
  T Value(uint64_t at) const {
    return NumberAt<T>(bytes_, at);
  }

  std::string_view bytes_;
  uint64_t at_;
};

// Message.fbs of Arrow.
enum : uint64_t { kHeaderType = 1, kHeader = 2, kBodyLength = 3 };
enum : uint8_t { kDictionaryBatch = 2, kRecordBatch = 3 };
constexpr uint64_t kCompression = 3;  // of a RecordBatch

class Metadata {
 public:
  Metadata(const DataFile& file, const OpenProgress& progress)
      : file_(file), progress_(progress) {}

  Status Fetch() {
    file_.remote()->FetchUnits(false);
    constexpr uint64_t kLeastBytes = 16;
    if (file_.bytes() < kLeastBytes) return file_.FetchAll(progress_);
    const uint64_t tail = std::min(kTailBytes, file_.bytes());
    PENSTOCK_ASSIGN_OR_RETURN(
        const HeldRanges held,
        file_.Fetch({{0, kPrefixBytes}, {file_.bytes() - tail, tail}},
                    progress_));
    PENSTOCK_RETURN_IF_ERROR(
        file_.FetchForGood({{0, kPrefixBytes}}, progress_));
    PENSTOCK_ASSIGN_OR_RETURN(const std::string begin, Text(0, kPrefixBytes));
    if (begin.starts_with("PAR1")) return FetchFooter(sizeof("PAR1") - 1);
    if (begin.starts_with("ARROW1")) {
      PENSTOCK_RETURN_IF_ERROR(FetchFooter(sizeof("ARROW1") - 1));
      return FetchMessages(kPrefixBytes);
    }
    return NumberAt<uint32_t>(begin, 0) == kMark ? FetchMessages(0)
                                                 : OkStatus();
  }

 private:
  StatusOr<std::string> Text(uint64_t offset, uint64_t bytes) const {
    std::string text(bytes, '\0');
    PENSTOCK_RETURN_IF_ERROR(
        file_.Read(offset, std::as_writable_bytes(std::span(text)), &progress_)
            .status());
    return text;
  }

  // Its length and magic bytes end the file.
  Status FetchFooter(uint64_t magic_bytes) {
    const uint64_t end = magic_bytes + sizeof(uint32_t);
    PENSTOCK_ASSIGN_OR_RETURN(const std::string text,
                              Text(file_.bytes() - end, end));
    const uint64_t bytes =
        std::min(NumberAt<uint32_t>(text, 0) + end, file_.bytes());
    return file_.FetchForGood({{file_.bytes() - bytes, bytes}}, progress_);
  }

  // The messages of a stream, which Arrow's files have, too.
  Status FetchMessages(uint64_t at) {
    while (file_.bytes() - at > kPrefixBytes) {
      const uint64_t guess = std::min(kMessageBytes, file_.bytes() - at);
      PENSTOCK_ASSIGN_OR_RETURN(const HeldRanges held,
                                file_.Fetch({{at, guess}}, progress_));
      PENSTOCK_ASSIGN_OR_RETURN(const std::string prefix,
                                Text(at, kPrefixBytes));
      const uint64_t bytes =
          kPrefixBytes + NumberAt<uint32_t>(prefix, sizeof(kMark));
      if (NumberAt<uint32_t>(prefix, 0) != kMark ||
          bytes > std::min(kMessageBytesMax, file_.bytes() - at)) {
        return file_.FetchAll(progress_);  // older than Arrow 0.15, or damaged
      }
      PENSTOCK_RETURN_IF_ERROR(file_.FetchForGood({{at, bytes}}, progress_));
      if (bytes == kPrefixBytes) return OkStatus();  // the end
      PENSTOCK_ASSIGN_OR_RETURN(const std::string text,
                                Text(at + kPrefixBytes, bytes - kPrefixBytes));
      const FlatTable message(text, NumberAt<uint32_t>(text, 0));
      const auto type = message.Of<uint8_t>(kHeaderType);
      const auto body = message.Of<uint64_t>(kBodyLength);
      if (body > file_.bytes() - at - bytes ||
          (type == kRecordBatch &&
           message.Table(kHeader).Field(kCompression) != 0)) {
        return file_.FetchAll(progress_);
      }
      at += bytes;
      if (type == kDictionaryBatch) {
        PENSTOCK_RETURN_IF_ERROR(file_.FetchForGood({{at, body}}, progress_));
      }
      at += body;
    }
    return OkStatus();
  }

  const DataFile& file_;
  const OpenProgress& progress_;
};

}  // namespace

Status FetchParquetMetadata(const DataFile& file,
                            const OpenProgress& progress) {
  return file.remote() == nullptr ? OkStatus()
                                  : Metadata(file, progress).Fetch();
}

}  // namespace penstock
