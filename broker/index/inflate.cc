#include "broker/index/inflate.h"

#include <bzlib.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "broker/index/values.h"

namespace penstock {
namespace {

using Bytes = std::span<const std::byte>;
using namespace std::string_view_literals;

struct KnownFormat {
  Compression compression;
  std::string_view name;
  std::string_view program;
  std::vector<std::string_view> marks;     // one of which begins a file
  std::vector<std::string_view> suffixes;  // of names
};

const std::vector<KnownFormat>& Formats() {
  // Skippable frames of zstd (RFC 8878, 3.1.2): pzstd begins with one.
  static const std::vector<KnownFormat> formats = {
      {Compression::kGzip,
       "gzip",
       "gunzip",
       {"\x1f\x8b\x08"sv},
       {".gz", ".tgz", ".gzip"}},
      {Compression::kZstd,
       "zstd",
       "unzstd",
       {"\x28\xb5\x2f\xfd"sv, "\x50\x2a\x4d\x18"sv},
       {".zst", ".zstd", ".tzst"}},
      {Compression::kBzip2,
       "bzip2",
       "bunzip2",
       {"BZh"sv},
       {".bz2", ".tbz2", ".tbz"}},
      {Compression::kXz, "xz", "unxz", {"\xfd\x37zXZ\0"sv}, {".xz", ".txz"}},
      {Compression::kDeflate, "deflate", "unzip", {}, {}}};
  return formats;
}

const KnownFormat& FormatOf(Compression compression) {
  return *std::find_if(Formats().begin(), Formats().end(),
                       [compression](const KnownFormat& each) {
                         return each.compression == compression;
                       });
}

const KnownFormat* FormatBy(std::string_view head) {
  for (const KnownFormat& format : Formats()) {
    for (const std::string_view mark : format.marks) {
      if (head.starts_with(mark)) return &format;
    }
  }
  return nullptr;
}

std::string_view TextOf(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::string_view NameOf(Compression compression) {
  return FormatOf(compression).name;
}

std::string_view ProgramOf(Compression compression) {
  return FormatOf(compression).program;
}

std::optional<Compression> CompressionOf(std::string_view path, Bytes head) {
  const KnownFormat* const format = FormatBy(TextOf(head));
  if (format == nullptr) return std::nullopt;
  const bool named = std::any_of(
      format->suffixes.begin(), format->suffixes.end(),
      [path](std::string_view suffix) { return path.ends_with(suffix); });
  return named ? std::optional(format->compression) : std::nullopt;
}

bool IsNamedCompressed(std::string_view path) {
  return std::any_of(
      Formats().begin(), Formats().end(), [path](const KnownFormat& format) {
        return std::any_of(
            format.suffixes.begin(), format.suffixes.end(),
            [path](std::string_view suffix) { return path.ends_with(suffix); });
      });
}

std::optional<Compression> CompressionOf(Bytes head) {
  const std::string_view text = TextOf(head);
  const KnownFormat* const format = FormatBy(text);
  if (format == nullptr) return std::nullopt;
  const auto byte = [&head](size_t i) {
    return i < head.size() ? std::to_integer<unsigned>(head[i]) : 256u;
  };
  bool sure = true;
  switch (format->compression) {
    case Compression::kGzip: {  // RFC 1952, 2.3: flags, XFL and OS
      const unsigned extra = byte(8);
      const unsigned system = byte(9);
      sure = (byte(3) & 0xe0) == 0 &&
             (extra == 0 || extra == 2 || extra == 4) &&
             (system <= 13 || system == 255);
      break;
    }
    case Compression::kBzip2:  // the marks of a block, and of the end
      sure = byte(3) >= '1' && byte(3) <= '9' &&
             (text.substr(4).starts_with("\x31\x41\x59\x26\x53\x59"sv) ||
              text.substr(4).starts_with("\x17\x72\x45\x38\x50\x90"sv));
      break;
    case Compression::kZstd:  // a skippable frame says too little
      sure = text.starts_with(format->marks[0]);
      break;
    default:
      break;
  }
  return sure ? std::optional(format->compression) : std::nullopt;
}

// ---- how much

namespace {

// 0: not said, or wrong in all likelihood.
uint64_t SaidByXz(uint64_t file_bytes, Bytes tail) {
  if (tail.size() < LZMA_STREAM_HEADER_SIZE) return 0;
  lzma_stream_flags flags = {};
  const Bytes footer = tail.last(LZMA_STREAM_HEADER_SIZE);
  if (lzma_stream_footer_decode(
          &flags, reinterpret_cast<const uint8_t*>(footer.data())) != LZMA_OK ||
      flags.backward_size > tail.size() - footer.size()) {
    return 0;
  }
  const Bytes bytes =
      tail.first(tail.size() - footer.size()).last(flags.backward_size);
  lzma_index* index = nullptr;
  uint64_t memory = kInflateMemoryMax;
  size_t at = 0;
  if (lzma_index_buffer_decode(&index, &memory, nullptr,
                               reinterpret_cast<const uint8_t*>(bytes.data()),
                               &at, bytes.size()) != LZMA_OK) {
    return 0;
  }
  const uint64_t said = lzma_index_uncompressed_size(index);
  // Another stream lies before it.
  const bool all = lzma_index_file_size(index) == file_bytes;
  lzma_index_end(index, nullptr);
  return all ? said : 0;
}

uint64_t SaidByGzip(uint64_t file_bytes, Bytes tail) {
  if (tail.size() < sizeof(uint32_t)) return 0;
  const uint64_t said =
      ValueAt<uint32_t>(&tail[tail.size() - sizeof(uint32_t)]);
  // Else it is the last of several members, or of more than 4 GiB: deflate adds
  // 5 bytes to 64 KiB at most. Or no size at all: 258 bytes take 2 bits.
  constexpr uint64_t kRatioMax = 1032;
  return said >= file_bytes - file_bytes / 1000 &&
                 said / kRatioMax <= file_bytes
             ? said
             : 0;
}

uint64_t SaidByZstd(uint64_t file_bytes, Bytes head) {
  const unsigned long long said =
      ZSTD_getFrameContentSize(head.data(), head.size());
  if (said == ZSTD_CONTENTSIZE_UNKNOWN || said == ZSTD_CONTENTSIZE_ERROR) {
    return 0;
  }
  // Else it is the first of several frames. Whoever lies gets as much as others
  // do, and the rest when it is there.
  constexpr uint64_t kRatioMax = 1 << 15;
  return said >= file_bytes - file_bytes / 1000 &&
                 said / kRatioMax <= file_bytes
             ? said
             : 0;
}

}  // namespace

uint64_t EstimateInflated(Compression compression, uint64_t file_bytes,
                          Bytes head, Bytes tail) {
  const uint64_t said =
      compression == Compression::kXz     ? SaidByXz(file_bytes, tail)
      : compression == Compression::kGzip ? SaidByGzip(file_bytes, tail)
      : compression == Compression::kZstd ? SaidByZstd(file_bytes, head)
                                          : 0;
  if (said > 0) return said;
  return file_bytes > UINT64_MAX / kInflatedPerCompressed
             ? UINT64_MAX
             : file_bytes * kInflatedPerCompressed;
}

// ---- decoders

namespace {

// Decodes from in into out, both of which lose what was used.
class Decoder {
 public:
  enum class Next { kMore, kEnd };

  virtual ~Decoder() = default;
  // last: nothing follows in. kEnd: the content is complete, and all of in was
  // used. Without any progress it wants more.
  virtual StatusOr<Next> Step(Bytes* in, std::span<std::byte>* out,
                              bool last) = 0;
};

Status Damaged(std::string_view what) { return DataLossError("{}", what); }

// What may follow the last member of gzip or bzip2: nothing, or zeros.
StatusOr<Decoder::Next> AfterMembers(Bytes* in, bool last) {
  const auto end = std::find_if(in->begin(), in->end(), [](std::byte byte) {
    return byte != std::byte{0};
  });
  *in = in->subspan(static_cast<size_t>(end - in->begin()));
  if (!in->empty()) {
    return Damaged(
        "bytes follow the end of the compressed data which are none; cut them "
        "off, or copy it again");
  }
  return last ? Decoder::Next::kEnd : Decoder::Next::kMore;
}

class Zlib final : public Decoder {
 public:
  explicit Zlib(bool gzip) : gzip_(gzip) {
    constexpr int kWindowBits = 15;
    constexpr int kGzip = 16;
    ok_ = inflateInit2(&stream_, gzip ? kWindowBits + kGzip : -kWindowBits) ==
          Z_OK;
  }
  ~Zlib() override {
    if (ok_) inflateEnd(&stream_);
  }
  bool ok() const { return ok_; }

  StatusOr<Next> Step(Bytes* in, std::span<std::byte>* out,
                      bool last) override {
    if (ended_) {
      if (!gzip_ || in->empty() || in->front() != std::byte{0x1f} || padded_) {
        padded_ |= !in->empty();
        return AfterMembers(in, last);
      }
      inflateReset(&stream_);
      ended_ = false;
    }
    stream_.next_in =
        reinterpret_cast<Bytef*>(const_cast<std::byte*>(in->data()));
    stream_.avail_in = static_cast<uInt>(in->size());
    stream_.next_out = reinterpret_cast<Bytef*>(out->data());
    stream_.avail_out = static_cast<uInt>(out->size());
    const int result = inflate(&stream_, Z_NO_FLUSH);
    *in = in->last(stream_.avail_in);
    *out = out->last(stream_.avail_out);
    ended_ = result == Z_STREAM_END;
    if (result == Z_OK || result == Z_BUF_ERROR || ended_) return Next::kMore;
    if (result == Z_MEM_ERROR) return ResourceExhaustedError("no memory");
    return Damaged(stream_.msg != nullptr ? stream_.msg : "damaged");
  }

 private:
  const bool gzip_;
  z_stream stream_ = {};
  bool ok_;
  bool ended_ = false;   // a member, or all
  bool padded_ = false;  // zeros follow it
};

class Zstd final : public Decoder {
 public:
  bool ok() const { return stream_ != nullptr; }

  StatusOr<Next> Step(Bytes* in, std::span<std::byte>* out,
                      bool last) override {
    if (in->empty() && between_) {
      return last ? Next::kEnd : Next::kMore;
    }
    ZSTD_inBuffer from = {in->data(), in->size(), 0};
    ZSTD_outBuffer to = {out->data(), out->size(), 0};
    const size_t result = ZSTD_decompressStream(stream_.get(), &to, &from);
    *in = in->subspan(from.pos);
    *out = out->subspan(to.pos);
    if (ZSTD_isError(result) != 0) {
      if (ZSTD_getErrorCode(result) ==
          ZSTD_error_frameParameter_windowTooLarge) {
        return InvalidArgumentError(
            "its window is larger than the {} MiB that are taken for one; "
            "inflate it (unzstd --long=31), or compress it without --long",
            kInflateMemoryMax >> 21);
      }
      return Damaged(ZSTD_getErrorName(result));
    }
    between_ = result == 0;
    return Next::kMore;
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  // Its window is at most 2^27 bytes, half of kInflateMemoryMax, by default.
  const std::unique_ptr<ZSTD_DStream, Free> stream_{ZSTD_createDStream()};
  bool between_ = false;  // two frames
};

class Bzip2 final : public Decoder {
 public:
  Bzip2() { Begin(); }
  ~Bzip2() override {
    if (ok_) BZ2_bzDecompressEnd(&stream_);
  }
  bool ok() const { return ok_; }

  StatusOr<Next> Step(Bytes* in, std::span<std::byte>* out,
                      bool last) override {
    if (ended_) {
      if (in->empty() || in->front() != std::byte{'B'} || padded_) {
        padded_ |= !in->empty();
        return AfterMembers(in, last);
      }
      BZ2_bzDecompressEnd(&stream_);
      stream_ = {};
      Begin();
      if (!ok_) return ResourceExhaustedError("no memory");
      ended_ = false;
    }
    stream_.next_in =
        reinterpret_cast<char*>(const_cast<std::byte*>(in->data()));
    stream_.avail_in = static_cast<unsigned>(in->size());
    stream_.next_out = reinterpret_cast<char*>(out->data());
    stream_.avail_out = static_cast<unsigned>(out->size());
    const int result = BZ2_bzDecompress(&stream_);
    *in = in->last(stream_.avail_in);
    *out = out->last(stream_.avail_out);
    ended_ = result == BZ_STREAM_END;
    if (result == BZ_OK || ended_) return Next::kMore;
    if (result == BZ_MEM_ERROR) return ResourceExhaustedError("no memory");
    return Damaged(result == BZ_DATA_ERROR_MAGIC
                       ? "wanted the beginning of bzip2 data"
                       : "a checksum or code of its bzip2 data is wrong");
  }

 private:
  void Begin() { ok_ = BZ2_bzDecompressInit(&stream_, 0, 0) == BZ_OK; }

  bz_stream stream_ = {};
  bool ok_ = false;
  bool ended_ = false;
  bool padded_ = false;
};

class Xz final : public Decoder {
 public:
  Xz() {
    ok_ = lzma_stream_decoder(&stream_, kInflateMemoryMax, LZMA_CONCATENATED) ==
          LZMA_OK;
  }
  ~Xz() override { lzma_end(&stream_); }
  bool ok() const { return ok_; }

  StatusOr<Next> Step(Bytes* in, std::span<std::byte>* out,
                      bool last) override {
    stream_.next_in = reinterpret_cast<const uint8_t*>(in->data());
    stream_.avail_in = in->size();
    stream_.next_out = reinterpret_cast<uint8_t*>(out->data());
    stream_.avail_out = out->size();
    const lzma_ret result = lzma_code(&stream_, last ? LZMA_FINISH : LZMA_RUN);
    *in = in->last(stream_.avail_in);
    *out = out->last(stream_.avail_out);
    switch (result) {
      case LZMA_OK:
      case LZMA_BUF_ERROR:
        return Next::kMore;
      case LZMA_STREAM_END:
        return Next::kEnd;
      case LZMA_MEM_ERROR:
        return ResourceExhaustedError("no memory");
      case LZMA_MEMLIMIT_ERROR:
        return InvalidArgumentError(
            "inflating it takes {} MiB of memory, and {} are taken for one; "
            "inflate it (unxz), or compress it with a smaller dictionary",
            lzma_memusage(&stream_) >> 20, kInflateMemoryMax >> 20);
      case LZMA_FORMAT_ERROR:
        return Damaged("wanted the beginning of xz data");
      default:
        return Damaged("a checksum or code of its xz data is wrong");
    }
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool ok_;
};

template <typename D, typename... Arguments>
std::unique_ptr<Decoder> Made(Arguments... arguments) {
  auto decoder = std::make_unique<D>(arguments...);
  if (!decoder->ok()) return nullptr;
  return decoder;
}

std::unique_ptr<Decoder> MakeDecoder(Compression compression) {
  switch (compression) {
    case Compression::kGzip:
      return Made<Zlib>(true);
    case Compression::kDeflate:
      return Made<Zlib>(false);
    case Compression::kZstd:
      return Made<Zstd>();
    case Compression::kBzip2:
      return Made<Bzip2>();
    case Compression::kXz:
      return Made<Xz>();
  }
  return nullptr;
}

}  // namespace

Status Inflate(const std::string& name, Compression compression,
               const std::function<StatusOr<Bytes>()>& read,
               const std::function<Status(std::span<const std::byte>)>& take) {
  const std::unique_ptr<Decoder> decoder = MakeDecoder(compression);
  if (decoder == nullptr) return ResourceExhaustedError("no memory");
  constexpr size_t kPieceBytes = size_t{1} << 20;
  // What read gives may be larger than the libraries' counts.
  constexpr size_t kInBytesMax = size_t{1} << 30;
  std::vector<std::byte> piece(kPieceBytes);
  uint64_t offset = 0;
  Bytes given;
  bool last = false;
  for (;;) {
    if (given.empty() && !last) {
      PENSTOCK_ASSIGN_OR_RETURN(given, read());
      last = given.empty();
    }
    Bytes in = given.first(std::min(given.size(), kInBytesMax));
    const size_t had = in.size();
    std::span<std::byte> out = piece;
    const StatusOr<Decoder::Next> next = decoder->Step(&in, &out, last);
    const size_t used = had - in.size();
    given = given.subspan(used);
    offset += used;
    const size_t made = piece.size() - out.size();
    if (!next.ok()) {
      return next.status().Prepend(Format("{}, offset {}", name, offset));
    }
    if (made > 0) PENSTOCK_RETURN_IF_ERROR(take(Bytes(piece).first(made)));
    if (*next == Decoder::Next::kEnd) return OkStatus();
    if (used > 0 || made > 0 || (had == 0 && !last)) continue;
    if (had > 0) {
      return InternalError("{}, offset {}: inflating stands still", name,
                           offset);
    }
    return DataLossError(
        "{}, offset {}: the file ends within its compressed data; it was cut "
        "off: copy it again",
        name, offset);
  }
}

}  // namespace penstock
