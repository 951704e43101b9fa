// Ranges that are in the page cache, read at once or not at all.
//
// A map shows zeros where its file was cut within a page, and only the file's
// size says so. So what was copied from a map counts only once IsWhole, asked
// after the copy, says that the file had all of it.
#ifndef BROKER_IO_CACHED_RANGE_H_
#define BROKER_IO_CACHED_RANGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "broker/io/read_request.h"

namespace penstock {

// Bytes of all parts. nullopt: it is too large for this, or not made of ranges
// that may be read through the page cache.
std::optional<uint64_t> CachedBytes(const ReadRequest& request);

// The request will be read soon: a hint to the processor.
void ExpectCached(const ReadRequest& request);

// Reads all parts, one after the other. mapped: from the maps of their files,
// where there are such; a page that is missing is then read, by this thread.
// False: not all of it is in the page cache; nothing is said of errors.
bool ReadCached(const ReadRequest& request, bool mapped, std::byte* to);

// Copies from a mapping. False: the file no longer has all of these bytes, or
// the storage failed; some may have been copied. Takes SIGBUS over at its first
// call; of other accesses it goes where it went before. Any thread.
bool GuardedCopy(std::byte* to, const std::byte* mapped, size_t bytes);

// The part's file is as long as its map.
bool IsWhole(const ReadPart& part);

}  // namespace penstock
#endif  // BROKER_IO_CACHED_RANGE_H_
