// The input is a compressed file, of the compression that its first byte says.
// It inflates or is refused as documented, in whatever pieces it is read, and
// never to more than is taken.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "broker/index/inflate.h"
#include "common/hash.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

constexpr size_t kTakenMax = size_t{256} << 10;

using Bytes = std::span<const std::byte>;

// A digest of what was taken, and the status.
struct Result {
  uint64_t digest = 0;
  size_t taken = 0;
  StatusCode code = StatusCode::kOk;
  bool operator==(const Result&) const = default;
};

Result InflateIn(Compression by, Bytes file, size_t piece) {
  Result result;
  std::string text;
  const Status status = Inflate(
      "input", by,
      [&]() -> StatusOr<Bytes> {
        const Bytes next = file.first(std::min(piece, file.size()));
        file = file.subspan(next.size());
        return next;
      },
      [&](Bytes bytes) -> Status {
        Require(!bytes.empty(), "there is something to take");
        if (bytes.size() > kTakenMax - text.size()) {
          return FailedPreconditionError("enough");
        }
        text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        return OkStatus();
      });
  Require(status.ok() || status.code() == StatusCode::kDataLoss ||
              status.code() == StatusCode::kInvalidArgument ||
              status.message() == "enough",
          "a file is refused as documented");
  result.code = status.code();
  if (status.ok()) {
    result.taken = text.size();
    result.digest = Fnv1a(text);
  }
  return result;
}

void Check(Bytes input) {
  if (input.empty()) return;
  constexpr Compression kAll[] = {Compression::kGzip, Compression::kZstd,
                                  Compression::kBzip2, Compression::kXz,
                                  Compression::kDeflate};
  const auto said = kAll[std::to_integer<size_t>(input[0]) % std::size(kAll)];
  const Bytes file = input.subspan(1);
  const Bytes head = file.first(std::min(file.size(), kCompressionHeadBytes));
  const auto by = CompressionOf(head);
  for (const char* const name : {"/a.gz", "/a.zst", "/a.bz2", "/a.xz"}) {
    const auto named = CompressionOf(name, head);
    Require(!by || !named || named == by, "a name changes no format");
  }
  (void)EstimateInflated(
      said, file.size(), head,
      file.last(std::min(file.size(), kCompressionTailBytes)));
  const Result whole = InflateIn(said, file, SIZE_MAX);
  const Result pieces = InflateIn(said, file, 1);
  // Damage behind what is enough is seen in one of them alone.
  if (whole.code == StatusCode::kFailedPrecondition ||
      pieces.code == StatusCode::kFailedPrecondition) {
    return;
  }
  Require(whole == pieces, "pieces make no difference");
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check(std::as_bytes(std::span(data, size)));
  return 0;
}
