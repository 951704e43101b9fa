#include "broker/source/megatron_index.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "broker/index/values.h"

namespace penstock {
namespace {

constexpr std::string_view kIdxMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kIdxVersionAt = kIdxMagic.size();
constexpr uint64_t kIdxCodeAt = kIdxVersionAt + sizeof(uint64_t);
constexpr uint64_t kIdxSequencesAt = kIdxCodeAt + 1;
constexpr uint64_t kIdxDocumentsAt = kIdxSequencesAt + sizeof(uint64_t);
constexpr uint64_t kIdxHeadBytes = kIdxDocumentsAt + sizeof(uint64_t);
constexpr uint64_t kIdxLengthBytes = sizeof(int32_t);
constexpr uint64_t kIdxPlaceBytes = sizeof(int64_t);

Status ReadAll(const DataFile& file, uint64_t offset, std::span<std::byte> into,
               OpenProgress* progress) {
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t found,
                            file.Read(offset, into, progress));
  return found == into.size()
             ? OkStatus()
             : DataLossError("{} became shorter while it was opened",
                             file.path());
}

// People give the name of one of the files.
std::string PrefixHint(std::string_view prefix) {
  for (const std::string_view ending : {".bin", ".idx"}) {
    if (!prefix.ends_with(ending)) continue;
    return Format("; the prefix is without {}", ending);
  }
  return "";
}

StatusOr<DataFile> OpenOneOf(const std::string& prefix, std::string_view ending,
                             const OpenProgress& progress) {
  const std::string path = Format("{}{}", prefix, ending);
  StatusOr<DataFile> file = DataFile::Open(path, progress);
  if (file.ok() || file.status().code() != StatusCode::kNotFound) return file;
  return Status(StatusCode::kNotFound,
                file.status().message() + PrefixHint(prefix));
}

}  // namespace

StatusOr<MegatronIndex> MegatronIndex::Open(const std::string& prefix,
                                            OpenProgress* progress) {
  PENSTOCK_ASSIGN_OR_RETURN(DataFile idx, OpenOneOf(prefix, ".idx", *progress));
  PENSTOCK_ASSIGN_OR_RETURN(DataFile bin, OpenOneOf(prefix, ".bin", *progress));
  MegatronIndex index(std::move(idx), std::move(bin));
  PENSTOCK_RETURN_IF_ERROR(index.ReadHead(progress));
  PENSTOCK_RETURN_IF_ERROR(index.CheckPlaces(progress));
  return index;
}

uint64_t MegatronIndex::token_bytes() const {
  switch (token_) {
    case Token::kUint8:
    case Token::kInt8:
      return 1;
    case Token::kInt16:
    case Token::kUint16:
      return 2;
    case Token::kInt32:
    case Token::kFloat32:
      return 4;
    case Token::kInt64:
    case Token::kFloat64:
      return 8;
  }
  return 8;
}

Status MegatronIndex::ReadHead(OpenProgress* progress) {
  const std::string& path = idx_.path();
  if (idx_.bytes() < kIdxHeadBytes) {
    return DataLossError("{} has {} bytes; a header alone has {}", path,
                         idx_.bytes(), kIdxHeadBytes);
  }
  std::array<std::byte, kIdxHeadBytes> head{};
  PENSTOCK_RETURN_IF_ERROR(ReadAll(idx_, 0, head, progress));
  if (!std::equal(kIdxMagic.begin(), kIdxMagic.end(), head.begin(),
                  [](char a, std::byte b) { return std::byte(a) == b; })) {
    return InvalidArgumentError(
        "{} does not begin with MMIDIDX: it is no index of Megatron's "
        "datasets",
        path);
  }
  const auto version = ValueAt<uint64_t>(&head[kIdxVersionAt]);
  if (version != 1) {
    return InvalidArgumentError("{}: version {}; version 1 is read", path,
                                version);
  }
  const auto code = ValueAt<uint8_t>(&head[kIdxCodeAt]);
  if (code < 1 || code > 8) {
    return DataLossError("{}: dtype code {}; known are 1 to 8", path, code);
  }
  token_ = static_cast<Token>(code);
  if (token_ == Token::kFloat32 || token_ == Token::kFloat64) {
    return InvalidArgumentError(
        "{}: dtype code {}: values of {} are no tokens", path, code,
        token_ == Token::kFloat32 ? "float32" : "float64");
  }
  documents_ = ValueAt<uint64_t>(&head[kIdxSequencesAt]);
  const auto indices = ValueAt<uint64_t>(&head[kIdxDocumentsAt]);
  uint64_t left = idx_.bytes() - kIdxHeadBytes;
  // Divide: what the file says may be anything.
  if (documents_ > left / (kIdxLengthBytes + kIdxPlaceBytes)) {
    return DataLossError(
        "{}: {} sequences by its header, which take {} bytes each; the file "
        "has {}",
        path, documents_, kIdxLengthBytes + kIdxPlaceBytes, idx_.bytes());
  }
  left -= documents_ * (kIdxLengthBytes + kIdxPlaceBytes);
  if (indices > left / kIdxPlaceBytes) {
    return DataLossError(
        "{}: {} document indices by its header, which take {} bytes each; {} "
        "bytes are left for them",
        path, indices, kIdxPlaceBytes, left);
  }
  left -= indices * kIdxPlaceBytes;
  if (left != 0 && left != documents_) {
    return DataLossError(
        "{}: {} bytes behind its document indices; wanted none, or a mode of "
        "each of its {} sequences",
        path, left, documents_);
  }
  if (documents_ == 0) return InvalidArgumentError("{}: no sequence", path);
  std::array<std::byte, kIdxPlaceBytes> last{};
  if (indices > 0) {
    PENSTOCK_RETURN_IF_ERROR(
        ReadAll(idx_, idx_.bytes() - left - kIdxPlaceBytes, last, progress));
  }
  if (ValueAt<uint64_t>(last.data()) != documents_) {
    return DataLossError(
        "{}: the last of its {} document indices is {}, but it has {} "
        "sequences; it is damaged",
        path, indices, ValueAt<int64_t>(last.data()), documents_);
  }
  return OkStatus();
}

template <typename F>
Status MegatronIndex::ForEachPlace(OpenProgress* progress,
                                   const F& each) const {
  constexpr uint64_t kAtOnce = 1 << 16;
  std::vector<std::byte> lengths(std::min(documents_, kAtOnce) *
                                 kIdxLengthBytes);
  std::vector<std::byte> places(std::min(documents_, kAtOnce) * kIdxPlaceBytes);
  const uint64_t places_at = kIdxHeadBytes + documents_ * kIdxLengthBytes;
  for (uint64_t first = 0; first < documents_; first += kAtOnce) {
    const uint64_t count = std::min(documents_ - first, kAtOnce);
    PENSTOCK_RETURN_IF_ERROR(
        ReadAll(idx_, kIdxHeadBytes + first * kIdxLengthBytes,
                std::span(lengths).first(count * kIdxLengthBytes), progress));
    PENSTOCK_RETURN_IF_ERROR(
        ReadAll(idx_, places_at + first * kIdxPlaceBytes,
                std::span(places).first(count * kIdxPlaceBytes), progress));
    for (uint64_t i = 0; i < count; ++i) {
      PENSTOCK_RETURN_IF_ERROR(
          each(first + i, ValueAt<int32_t>(&lengths[i * kIdxLengthBytes]),
               ValueAt<int64_t>(&places[i * kIdxPlaceBytes])));
    }
    progress->CountDone(count);
  }
  return OkStatus();
}

Status MegatronIndex::CheckPlaces(OpenProgress* progress) {
  progress->total.fetch_add(documents_, std::memory_order_relaxed);
  const uint64_t each_bytes = token_bytes();
  return ForEachPlace(
      progress, [&](uint64_t document, int32_t length, int64_t place) {
        if (length < 0) {
          return DataLossError("{}: the length of sequence {} is {}",
                               idx_.path(), document, length);
        }
        const auto count = static_cast<uint64_t>(length);
        const auto begin = static_cast<uint64_t>(place);
        if (place < 0 || begin > bin_.bytes() ||
            count > (bin_.bytes() - begin) / each_bytes) {
          return DataLossError(
              "{}: sequence {} has {} tokens of {} bytes at {}, by {}; the "
              "file has {} bytes: it was cut off, or is another; copy both "
              "again",
              bin_.path(), document, count, each_bytes, place, idx_.path(),
              bin_.bytes());
        }
        // Places may overlap: the size of PREFIX.bin is no bound of the sum.
        if (count > UINT64_MAX / 16 - tokens_) {
          return DataLossError("{}: its sequences have more than {} tokens",
                               idx_.path(), UINT64_MAX / 16);
        }
        in_a_row_ = in_a_row_ && begin == tokens_ * each_bytes;
        tokens_ += count;
        return OkStatus();
      });
}

StatusOr<uint64_t> MegatronIndex::FindByte(uint64_t document,
                                           OpenProgress* progress) const {
  if (document == documents_) return tokens_ * token_bytes();
  std::array<std::byte, kIdxPlaceBytes> place{};
  PENSTOCK_RETURN_IF_ERROR(ReadAll(
      idx_,
      kIdxHeadBytes + documents_ * kIdxLengthBytes + document * kIdxPlaceBytes,
      place, progress));
  const auto byte = ValueAt<uint64_t>(place.data());
  if (byte <= bin_.bytes()) return byte;
  return DataLossError("{} changed while it was opened", idx_.path());
}

Status MegatronIndex::Keep(OpenProgress* progress) {
  if (kept()) return OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(
      auto begins,
      NumberArray<uint32_t>::Make(idx_.path(), documents_ + 1, progress));
  PENSTOCK_ASSIGN_OR_RETURN(
      auto wraps,
      NumberArray<uint64_t>::Make(idx_.path(), tokens_ >> 32, progress));
  NumberArray<uint64_t> bytes_at;
  if (!in_a_row_) {
    PENSTOCK_ASSIGN_OR_RETURN(bytes_at, NumberArray<uint64_t>::Make(
                                            idx_.path(), documents_, progress));
  }
  progress->total.fetch_add(documents_, std::memory_order_relaxed);
  begins[0] = 0;
  uint64_t begin = 0;
  const uint64_t each_bytes = token_bytes();
  PENSTOCK_RETURN_IF_ERROR(ForEachPlace(
      progress, [&](uint64_t document, int32_t length, int64_t place) {
        const auto byte = static_cast<uint64_t>(place);
        const uint64_t end = begin + static_cast<uint64_t>(std::max(length, 0));
        // It was read before; another process may have written since.
        const bool same =
            in_a_row_ ? byte == begin * each_bytes : byte <= bin_.bytes();
        if (!same || end > tokens_) {
          return DataLossError("{} changed while it was opened", idx_.path());
        }
        if (!in_a_row_) bytes_at[document] = byte;
        if (end >> 32 > begin >> 32) wraps[begin >> 32] = document + 1;
        begins[document + 1] = static_cast<uint32_t>(end);
        begin = end;
        return OkStatus();
      }));
  if (begin != tokens_) {
    return DataLossError("{} changed while it was opened", idx_.path());
  }
  begins_ = std::move(begins);
  wraps_ = std::move(wraps);
  bytes_at_ = std::move(bytes_at);
  return OkStatus();
}

uint64_t MegatronIndex::DocumentAt(uint64_t token) const {
  const uint64_t high = token >> 32;
  const uint64_t first = high == 0 ? 0 : wraps_[high - 1];
  const uint64_t end = high < wraps_.size() ? wraps_[high] : begins_.size();
  const auto among = begins_.span().subspan(first, end - first);
  const auto behind = std::upper_bound(among.begin(), among.end(),
                                       static_cast<uint32_t>(token));
  return first + static_cast<uint64_t>(behind - among.begin()) - 1;
}

}  // namespace penstock
