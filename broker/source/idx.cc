// The MNIST file format (http://yann.lecun.com/exdb/mnist, "the IDX file
// format"): two zero bytes, a type byte, the number of dimensions, each
// dimension as a big-endian uint32, then the values, big-endian, the last
// dimension fastest.
//
// A gzip file (detected by its magic, not its name) is unpacked into memory as
// a whole; a plain one is read record by record. Labels are always in memory,
// as int64. Every number in a header is checked against the file before memory
// is allocated for it.
#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <optional>

#include "broker/declare/declaration.h"
#include "broker/index/fingerprint.h"
#include "broker/index/values.h"
#include "broker/io/file_error.h"
#include "broker/io/read.h"
#include "broker/source/kinds.h"

namespace penstock {
namespace {

constexpr size_t kDimensionsMax = 8;
constexpr size_t kHeaderBytesMax = 4 + 4 * kDimensionsMax;
// Bytes of a file kept in memory.
constexpr uint64_t kUnpackedBytesMax = uint64_t{64} << 30;
// The limit of deflate (zlib.net/zlib_tech.html): the file's size bounds the
// memory, whatever its header says.
constexpr uint64_t kDeflateRatioMax = 1032;
constexpr uint64_t kChunkBytes = 1 << 20;

// Memory that is not zeroed first: it may be gigabytes.
struct Bytes {
  std::unique_ptr<std::byte[]> data;
  uint64_t size = 0;
  std::span<std::byte> span() const { return {data.get(), size}; }
};

StatusOr<Bytes> Allocate(const std::string& path, uint64_t bytes) {
  Bytes result{
      std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[bytes]), bytes};
  if (result.data == nullptr) {
    return ResourceExhaustedError("{}: no memory for its {} bytes", path,
                                  bytes);
  }
  return result;
}

struct Header {
  DType dtype = DType::kUint8;
  std::vector<uint64_t> dims;  // dims[0]: records
  uint64_t bytes = 0;          // of the header itself
  uint64_t record_bytes = 0;
  uint64_t data_bytes = 0;
};

// An open idx file with a checked header. The data are in memory, in the host's
// byte order, or in file at header.bytes.
struct IdxFile {
  DataFile file;
  Header header;
  std::optional<Bytes> unpacked;
};

std::optional<DType> DTypeOfCode(uint8_t code) {
  switch (code) {
    case 0x08:
      return DType::kUint8;
    case 0x09:
      return DType::kInt8;
    case 0x0B:
      return DType::kInt16;
    case 0x0C:
      return DType::kInt32;
    case 0x0D:
      return DType::kFloat32;
    case 0x0E:
      return DType::kFloat64;
    default:
      return std::nullopt;
  }
}

// text: the first bytes of the (unpacked) file, at most kHeaderBytesMax.
StatusOr<Header> ParseHeader(const std::string& path,
                             std::span<const uint8_t> text) {
  if (text.size() < 4) {
    return DataLossError("{}: {} bytes; an idx file has at least 4", path,
                         text.size());
  }
  const std::optional<DType> dtype = DTypeOfCode(text[2]);
  if (text[0] != 0 || text[1] != 0 || !dtype.has_value()) {
    return InvalidArgumentError(
        "{}: not an idx file: starts with {:02x} {:02x} {:02x} {:02x}, wanted "
        "00 00, a type (08, 09, 0b, 0c, 0d, 0e) and the number of dimensions",
        path, text[0], text[1], text[2], text[3]);
  }
  const size_t rank = text[3];
  if (rank == 0 || rank > kDimensionsMax) {
    return InvalidArgumentError("{}: {} dimensions; wanted 1 to {}", path, rank,
                                kDimensionsMax);
  }
  Header header;
  header.dtype = *dtype;
  header.bytes = 4 + 4 * rank;
  if (text.size() < header.bytes) {
    return DataLossError("{}: {} bytes, its header alone has {}", path,
                         text.size(), header.bytes);
  }
  header.record_bytes = DTypeBytes(*dtype);
  for (size_t i = 0; i < rank; ++i) {
    const uint64_t dim =
        __builtin_bswap32(ValueAt<uint32_t>(&std::as_bytes(text)[4 + 4 * i]));
    if (dim == 0) {
      return InvalidArgumentError(
          "{}: dimension {} is 0: {}", path, i,
          i == 0 ? "the file has no records" : "the records have no values");
    }
    header.dims.push_back(dim);
    if (i == 0) continue;
    // Divide: a product of hostile dimensions overflows.
    if (header.record_bytes > kRecordBytesMax / dim) {
      return InvalidArgumentError(
          "{}: a record of [{}] {} has more than {} bytes", path,
          JoinText(header.dims.begin() + 1, header.dims.end(), ", "),
          DTypeName(*dtype), kRecordBytesMax);
    }
    header.record_bytes *= dim;
  }
  // At most 2^32 records of 2^28 bytes: no overflow.
  header.data_bytes = header.dims[0] * header.record_bytes;
  return header;
}

// "[60000, 28, 28] uint8"
std::string Shape(const Header& header) {
  return Format("[{}] {}", JoinText(header.dims, ", "),
                DTypeName(header.dtype));
}

Status SizeMismatch(const std::string& path, const Header& header,
                    const std::string& found) {
  return DataLossError(
      "{}: its header says {}, wanted {} bytes in all, found {}; copy or "
      "download the file again",
      path, Shape(header), header.bytes + header.data_bytes, found);
}

template <typename Bits>
void SwapEach(std::span<const std::byte> from, std::byte* to,
              Bits (*swap)(Bits)) {
  for (size_t at = 0; at < from.size(); at += sizeof(Bits)) {
    const Bits bits = swap(ValueAt<Bits>(&from[at]));
    std::memcpy(to + at, &bits, sizeof(bits));
  }
}

// Converts big-endian values to the host's order; to may equal from's data.
void FromBigEndian(DType dtype, std::span<const std::byte> from,
                   std::byte* to) {
  static_assert(std::endian::native == std::endian::little);
  switch (DTypeBytes(dtype)) {
    case 2:
      return SwapEach<uint16_t>(
          from, to, [](uint16_t v) { return __builtin_bswap16(v); });
    case 4:
      return SwapEach<uint32_t>(
          from, to, [](uint32_t v) { return __builtin_bswap32(v); });
    case 8:
      return SwapEach<uint64_t>(
          from, to, [](uint64_t v) { return __builtin_bswap64(v); });
    default:
      if (to != from.data()) std::memcpy(to, from.data(), from.size());
  }
}

// A gzip stream that knows how much could be unpacked.
class GzipFile {
 public:
  // Reads fd from its start; takes a duplicate of it.
  explicit GzipFile(int fd) {
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return;
    file_ = gzdopen(own, "rb");
    if (file_ == nullptr) {
      close(own);
    } else {
      gzbuffer(file_, 128 * 1024);
    }
  }
  ~GzipFile() {
    if (file_ != nullptr) gzclose(file_);
  }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  bool ok() const { return file_ != nullptr; }

  // Unpacks up to out.size() bytes; fewer at the end or at an error, which
  // error() distinguishes.
  uint64_t Read(std::span<std::byte> out, OpenProgress* progress) {
    uint64_t done = 0;
    while (done < out.size() &&
           !progress->cancel.load(std::memory_order_relaxed)) {
      const int n = gzread(
          file_, out.data() + done,
          static_cast<unsigned>(std::min(kChunkBytes, out.size() - done)));
      if (n <= 0) break;
      done += static_cast<uint64_t>(n);
      progress->CountDone(static_cast<uint64_t>(n));
    }
    return done;
  }

  // zlib's description of an error; "" at a clean end. A file that ends in the
  // middle of a stream is Z_BUF_ERROR.
  std::string error() const {
    int code = Z_OK;
    const char* text = gzerror(file_, &code);
    if (code == Z_OK || code == Z_STREAM_END) return "";
    return code == Z_BUF_ERROR ? "the gzip stream ends early" : text;
  }

 private:
  gzFile file_ = nullptr;
};

Status Unpack(IdxFile* idx, uint64_t file_bytes, OpenProgress* progress) {
  PENSTOCK_RETURN_IF_ERROR(idx->file.FetchAll(*progress));
  GzipFile gzip(idx->file.fd());
  if (!gzip.ok()) return OpenError(errno, idx->file.path());
  // In two steps, because a small file is shorter than the longest header.
  uint8_t head[kHeaderBytesMax];
  const auto head_bytes = std::as_writable_bytes(std::span(head));
  OpenProgress unwatched;  // progress counts only data
  uint64_t have = gzip.Read(head_bytes.first(4), &unwatched);
  if (have == 4 && head[3] <= kDimensionsMax) {
    have += gzip.Read(head_bytes.subspan(4, size_t{4} * head[3]), &unwatched);
  }
  if (const std::string error = gzip.error(); !error.empty()) {
    return DataLossError("{}: {} after {} unpacked bytes", idx->file.path(),
                         error, have);
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      idx->header, ParseHeader(idx->file.path(), std::span(head).first(have)));
  const uint64_t want = idx->header.data_bytes;
  const uint64_t possible = std::min(file_bytes, UINT64_MAX / kDeflateRatioMax);
  if (want > possible * kDeflateRatioMax) {
    return SizeMismatch(
        idx->file.path(), idx->header,
        Format("{} bytes of gzip, which cannot hold that", file_bytes));
  }
  if (want > kUnpackedBytesMax) {
    return InvalidArgumentError(
        "{}: unpacks to {} bytes, more than the {} that are kept in memory; "
        "unpack it on disk (gunzip)",
        idx->file.path(), want, kUnpackedBytesMax);
  }
  if (const Status status = progress->reserve(want); !status.ok()) {
    return status.Prepend(idx->file.path() +
                          " (unpack it on disk with gunzip)");
  }
  progress->total.fetch_add(want, std::memory_order_relaxed);
  PENSTOCK_ASSIGN_OR_RETURN(Bytes data, Allocate(idx->file.path(), want));
  const uint64_t found = gzip.Read(data.span(), progress);
  // Reading beyond the end also makes zlib check the stream's CRC.
  std::byte beyond;
  const uint64_t surplus =
      found < want ? 0 : gzip.Read(std::span(&beyond, 1), progress);
  PENSTOCK_RETURN_IF_ERROR(progress->CheckCancelled(idx->file.path()));
  const std::string error = gzip.error();
  if (surplus != 0) {
    return SizeMismatch(idx->file.path(), idx->header, "more");
  }
  if (found < want) {
    return SizeMismatch(idx->file.path(), idx->header,
                        Format("{}{}", idx->header.bytes + found,
                               error.empty() ? "" : " (" + error + ")"));
  }
  if (!error.empty()) return DataLossError("{}: {}", idx->file.path(), error);
  FromBigEndian(idx->header.dtype, data.span(), data.data.get());
  idx->unpacked = std::move(data);
  return OkStatus();
}

StatusOr<IdxFile> OpenIdxFile(const std::string& path, OpenProgress* progress) {
  PENSTOCK_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, *progress));
  const uint64_t file_bytes = file.bytes();
  IdxFile idx = {std::move(file), {}, {}};

  uint8_t head[kHeaderBytesMax];
  PENSTOCK_ASSIGN_OR_RETURN(
      const uint64_t have,
      idx.file.Read(0, std::as_writable_bytes(std::span(head)), progress));
  if (have >= 2 && head[0] == 0x1f && head[1] == 0x8b) {
    PENSTOCK_RETURN_IF_ERROR(Unpack(&idx, file_bytes, progress));
    return idx;
  }
  PENSTOCK_ASSIGN_OR_RETURN(idx.header,
                            ParseHeader(path, std::span(head).first(have)));
  if (file_bytes != idx.header.bytes + idx.header.data_bytes) {
    return SizeMismatch(path, idx.header, Format("{}", file_bytes));
  }
  return idx;
}

StatusOr<int64_t> LabelOf(DType dtype, const std::byte* bytes) {
  const ColumnValue label = NumberOf(dtype, bytes);
  if (const auto* whole = std::get_if<int64_t>(&label)) return *whole;
  const double value = std::get<double>(label);
  // The comparison is false for NaN; 2^63 is exact in a double.
  if (!(value >= -0x1p63 && value < 0x1p63) || value != std::trunc(value)) {
    return InvalidArgumentError("label {} is not an integer", value);
  }
  return static_cast<int64_t>(value);
}

struct Labels {
  std::vector<int64_t> values;
  DataFile file;
};

StatusOr<Labels> LoadLabels(const std::string& path, OpenProgress* progress) {
  PENSTOCK_ASSIGN_OR_RETURN(IdxFile idx, OpenIdxFile(path, progress));
  const Header& header = idx.header;
  if (header.dims.size() != 1) {
    return InvalidArgumentError("{}: labels have one dimension, found {}", path,
                                Shape(header));
  }
  if (header.dims[0] > kUnpackedBytesMax / sizeof(int64_t)) {
    return InvalidArgumentError("{}: {} labels do not fit into {} bytes", path,
                                header.dims[0], kUnpackedBytesMax);
  }
  if (!idx.unpacked.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(Bytes data, Allocate(path, header.data_bytes));
    progress->total.fetch_add(data.size, std::memory_order_relaxed);
    PENSTOCK_ASSIGN_OR_RETURN(
        const uint64_t found,
        idx.file.Read(header.bytes, data.span(), progress));
    progress->CountDone(found);
    if (found != data.size) {
      return SizeMismatch(path, header, Format("{}", header.bytes + found));
    }
    FromBigEndian(header.dtype, data.span(), data.data.get());
    idx.unpacked = std::move(data);
  }
  std::vector<int64_t> labels(header.dims[0]);
  for (uint64_t i = 0; i < labels.size(); ++i) {
    const StatusOr<int64_t> label = LabelOf(
        header.dtype, &idx.unpacked->data[i * DTypeBytes(header.dtype)]);
    if (!label.ok()) {
      return label.status().Prepend(Format("{}: record {}", path, i));
    }
    labels[i] = *label;
  }
  return Labels{std::move(labels), std::move(idx.file)};
}

class Idx final : public Source {
 public:
  Idx(IdxFile images, std::optional<Labels> labels)
      : images_(std::move(images)), labels_(std::move(labels)) {
    const Header& header = images_.header;
    raw_spec_.push_back(
        {{"image", header.dtype, {header.dims.begin() + 1, header.dims.end()}},
         false});
    if (labels_) {
      raw_spec_.push_back({{"label", DType::kInt64, {}}, false});
    }
  }

  uint64_t record_count() const override { return images_.header.dims[0]; }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  uint64_t memory_bytes() const override {
    return (images_.unpacked ? images_.unpacked->size : 0) +
           (labels_ ? labels_->values.size() * sizeof(int64_t) : 0);
  }

  bool Changed() const override {
    return images_.file.Changed() || (labels_ && labels_->file.Changed());
  }
  void AddTimes(Fingerprint* to) const override {
    const auto add = [to](const DataFile& file) {
      to->Add(file.bytes());
      file.AddTime(to);
    };
    add(images_.file);
    if (labels_) add(labels_->file);
  }
  void ListFiles(const FileVisit& visit) const override {
    const auto list = [&visit](const DataFile& file) {
      const std::string_view path = file.path();
      visit(path.substr(path.rfind('/') + 1), file.bytes());
    };
    list(images_.file);
    if (labels_) list(labels_->file);
  }
  std::string io() const override {
    return images_.unpacked ? "" : IoText(images_.file.align());
  }
  std::optional<size_t> plain_feature() const override {
    if (images_.unpacked || DTypeBytes(images_.header.dtype) != 1) {
      return std::nullopt;
    }
    return 0;
  }

  void Locate(uint64_t record, ReadRequest* request) const override {
    if (images_.unpacked) {
      request->kind = ReadRequest::Kind::kNone;
      return;
    }
    images_.file.Locate(Offset(record), images_.header.record_bytes, request);
  }

  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    const Header& header = images_.header;
    raw->resize(raw_spec_.size());
    if (images_.unpacked) {
      (*raw)[0] = images_.unpacked->span().subspan(record * header.record_bytes,
                                                   header.record_bytes);
    } else if (read.bytes.size() != header.record_bytes) {
      return DataLossError("{}: wanted {} bytes, found {}", Describe(record),
                           header.record_bytes, read.bytes.size());
    } else if (DTypeBytes(header.dtype) == 1) {
      (*raw)[0] = read.bytes;
    } else {
      scratch->resize(read.bytes.size());
      FromBigEndian(header.dtype, read.bytes, scratch->data());
      (*raw)[0] = *scratch;
    }
    if (labels_) {
      (*raw)[1] = std::as_bytes(std::span(labels_->values).subspan(record, 1));
    }
    return OkStatus();
  }

  bool KnownNumber(uint64_t record, size_t feature,
                   std::byte* number) const override {
    if (feature != 1) return false;
    std::memcpy(number, &labels_->values[record], sizeof(int64_t));
    return true;
  }

  std::string Describe(uint64_t record) const override {
    return Format("{}, record {} ({}offset {})", images_.file.path(), record,
                  images_.unpacked ? "unpacked, " : "", Offset(record));
  }

 private:
  uint64_t Offset(uint64_t record) const {
    return images_.header.bytes + record * images_.header.record_bytes;
  }

  const IdxFile images_;
  const std::optional<Labels> labels_;
  RawSpec raw_spec_;
};

}  // namespace

const Declaration<IdxSource>& IdxSource::Declared() {
  static const auto declared =
      Declaration<IdxSource>("idx",
                             "Files in the format of MNIST, plain or gzip.")
          .Gives("image as in the file; with labels, label int64")
          .Example("{images: images.gz, labels: labels.gz}")
          .Required("images", &IdxSource::images, PathOrAddress(),
                    "the file of images")
          .Optional("labels", &IdxSource::labels,
                    LeftOutAt({}, PathOrAddress()),
                    "the file of labels; without it there is no label")
          .Optional("io", &IdxSource::io, IoType(), kIoText);
  return declared;
}

OpenedSource IdxSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(IdxFile file, OpenIdxFile(images, progress));
  if (!file.unpacked) {
    PENSTOCK_RETURN_IF_ERROR(file.file.ChooseIo(io, file.header.data_bytes,
                                                file.header.record_bytes));
  }
  std::optional<Labels> loaded;
  if (!labels.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(Labels read, LoadLabels(labels, progress));
    loaded.emplace(std::move(read));
    if (loaded->values.size() != file.header.dims[0]) {
      return InvalidArgumentError(
          "{} has {} images, but {} has {} labels; do they belong together?",
          images, file.header.dims[0], labels, loaded->values.size());
    }
  }
  return std::unique_ptr<Source>(new Idx(std::move(file), std::move(loaded)));
}

}  // namespace penstock
