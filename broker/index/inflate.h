// The content of compressed bytes, in pieces. They are untrusted: whatever they
// are, a decoder takes bounded memory, and nothing is inflated that nobody asks
// for.
#ifndef BROKER_INDEX_INFLATE_H_
#define BROKER_INDEX_INFLATE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace penstock {

// kDeflate: the data of a member of a zip archive (RFC 1951), which nothing
// tells from others.
enum class Compression { kGzip, kZstd, kBzip2, kXz, kDeflate };
std::string_view NameOf(Compression compression);  // "gzip"
// A command that inflates a file: "gunzip".
std::string_view ProgramOf(Compression compression);

// What a file is compressed by, as its first kCompressionHeadBytes bytes (or
// all of it) say; nullopt: nothing, in all likelihood.
inline constexpr size_t kCompressionHeadBytes = 18;
std::optional<Compression> CompressionOf(std::span<const std::byte> head);
// The same where plain files may begin with any bytes: only of a path that ends
// as such files do (".gz"), to which the format's mark alone is enough.
std::optional<Compression> CompressionOf(std::string_view path,
                                         std::span<const std::byte> head);

// Whether a path ends as that of a compressed file does.
bool IsNamedCompressed(std::string_view path);

// What a file of this size inflates to, by its first and last bytes: many of
// them, or all. Only xz and zstd say so, of their last stream or first frame;
// gzip says so modulo 2^32. What is not said is taken to be
// kInflatedPerCompressed times its size.
inline constexpr uint64_t kInflatedPerCompressed = 4;
uint64_t EstimateInflated(Compression compression, uint64_t file_bytes,
                          std::span<const std::byte> head,
                          std::span<const std::byte> tail);
inline constexpr size_t kCompressionTailBytes = size_t{64} << 10;

// Calls take for the content's bytes in their order. read gives the next bytes,
// which last until it is called again; none: the end. Several members, frames
// or streams follow one another; zeros may follow those of gzip and bzip2.
// Errors: those of read and take; DataLoss, with name and the offset in what
// was read: damaged, cut off, or followed by something else; InvalidArgument:
// it needs more memory than kInflateMemoryMax.
Status Inflate(
    const std::string& name, Compression compression,
    const std::function<StatusOr<std::span<const std::byte>>()>& read,
    const std::function<Status(std::span<const std::byte>)>& take);
// xz -9 needs 65 MiB, zstd --ultra -22 128 MiB; others up to 4 MiB.
inline constexpr uint64_t kInflateMemoryMax = uint64_t{256} << 20;

}  // namespace penstock
#endif  // BROKER_INDEX_INFLATE_H_
