// Damages a JPEG segment by segment; mutants.cc and decode_fuzz.cc use it.
#include "tests/fuzz/mutate_jpeg.h"

#include <algorithm>
#include <cstdint>

namespace penstock {
namespace {

using Bytes = std::vector<std::byte>;

constexpr uint8_t kDht = 0xc4;
constexpr uint8_t kEndOfImage = 0xd9;
constexpr uint8_t kStartOfScan = 0xda;
constexpr uint8_t kDqt = 0xdb;
constexpr uint8_t kDri = 0xdd;

// A marker with its content; a scan's data are the segment after its header.
struct Segment {
  uint8_t marker = 0;  // 0: data of a scan
  size_t offset = 0;
  size_t bytes = 0;
};

uint8_t At(std::span<const std::byte> file, size_t offset) {
  return std::to_integer<uint8_t>(file[offset]);
}

bool IsRestart(uint8_t byte) { return byte >= 0xd0 && byte <= 0xd7; }

// The file's segments, as far as they can be parsed; none is empty.
std::vector<Segment> SegmentsOf(std::span<const std::byte> file) {
  std::vector<Segment> segments;
  size_t at = 0;
  bool data = false;
  while (at + 1 < file.size()) {
    if (data) {
      size_t end = at;
      while (end + 1 < file.size() &&
             (At(file, end) != 0xff || At(file, end + 1) == 0 ||
              IsRestart(At(file, end + 1)))) {
        ++end;
      }
      if (end > at) segments.push_back({0, at, end - at});
      at = end;
      data = false;
      continue;
    }
    if (At(file, at) != 0xff) {
      ++at;
      continue;
    }
    const uint8_t marker = At(file, at + 1);
    size_t bytes = 2;
    const bool has_length =
        marker >= 0xc0 && marker != 0xd8 && marker != kEndOfImage;
    if (has_length && !IsRestart(marker) && at + 3 < file.size()) {
      bytes += size_t{At(file, at + 2)} << 8 | At(file, at + 3);
    }
    bytes = std::min(bytes, file.size() - at);
    segments.push_back({marker, at, bytes});
    at += bytes;
    data = marker == kStartOfScan;
  }
  return segments;
}

class Mutation {
 public:
  Mutation(Bytes* file, std::span<const std::byte> other,
           std::mt19937_64* random)
      : file_(*file), other_(other), random_(*random) {}

  void Run() {
    if (file_.size() < 4) {
      file_.push_back(Any());
      return;
    }
    const std::vector<Segment> segments = SegmentsOf(file_);
    const Segment segment = Choose(segments);
    switch (Below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        return ChangeByte(segment);
      case 5: {  // a scan's data: several bytes, so that codes go wrong
        Segment data = segment;
        for (const Segment& each : segments) {
          if (each.marker == 0 && Below(2) == 0) data = each;
        }
        for (uint64_t i = Below(4); i < 4; ++i) ChangeByte(data);
        return;
      }
      case 6:
        return Erase(segment.offset, segment.bytes);
      case 7:
        return Insert(
            Choose(segments).offset,
            Bytes(file_.begin() + ToOffset(segment.offset),
                  file_.begin() + ToOffset(segment.offset + segment.bytes)));
      case 8: {
        constexpr uint8_t kMarkers[] = {
            0xc0,        0xc1,         0xc2, kDht, 0xc9, 0xca, 0xcc, 0xd8,
            kEndOfImage, kStartOfScan, kDqt, kDri, 0xe0, 0xee, 0xfe};
        if (segment.marker == 0 || segment.offset + 1 >= file_.size()) return;
        file_[segment.offset + 1] =
            std::byte{kMarkers[Below(std::size(kMarkers))]};
        return;
      }
      case 9:  // its length
        if (segment.marker == 0 || segment.bytes < 4) return;
        return Nudge(segment.offset + 3);
      case 10: {
        const uint64_t interval = 1 + Below(64);
        return Insert(segment.offset, {std::byte{0xff}, std::byte{kDri},
                                       std::byte{0}, std::byte{4}, std::byte{0},
                                       static_cast<std::byte>(interval)});
      }
      case 11:
      case 12:
        return TakeFromOther(segment);
      case 13: {
        const size_t at = Below(file_.size());
        return Erase(at, 1 + Below(std::min<size_t>(64, file_.size() - at)));
      }
      case 14: {
        const size_t from = Below(file_.size());
        const size_t bytes =
            1 + Below(std::min<size_t>(256, file_.size() - from));
        return Insert(Below(file_.size()),
                      Bytes(file_.begin() + ToOffset(from),
                            file_.begin() + ToOffset(from + bytes)));
      }
      default: {
        const bool ends_well = Below(2) == 0;
        file_.resize(4 + Below(file_.size() - 3));
        if (!ends_well) return;
        file_.push_back(std::byte{0xff});
        file_.push_back(std::byte{kEndOfImage});
        return;
      }
    }
  }

 private:
  static ptrdiff_t ToOffset(size_t at) { return static_cast<ptrdiff_t>(at); }
  // Not std::uniform_int_distribution: its numbers differ between libraries.
  uint64_t Below(uint64_t end) { return random_() % end; }
  std::byte Any() { return static_cast<std::byte>(Below(256)); }

  // Prefers tables and headers.
  Segment Choose(const std::vector<Segment>& segments) {
    if (segments.empty()) return {0, 0, file_.size()};
    Segment chosen = segments[Below(segments.size())];
    for (int i = 0; i < 3; ++i) {
      const uint8_t marker = chosen.marker;
      if (marker >= 0xc0 && marker < 0xe0 && chosen.bytes > 2) break;
      chosen = segments[Below(segments.size())];
    }
    return chosen;
  }

  void Nudge(size_t at) {
    const auto byte = std::to_integer<unsigned>(file_[at]);
    const unsigned changed[] = {byte ^ 1u << Below(8), byte + 1, byte - 1,
                                static_cast<unsigned>(Below(256))};
    file_[at] = static_cast<std::byte>(changed[Below(4)]);
  }
  void ChangeByte(const Segment& segment) {
    const size_t skipped = segment.marker != 0 && segment.bytes > 4 ? 4 : 0;
    const size_t at = segment.offset + skipped + Below(segment.bytes - skipped);
    if (at < file_.size()) Nudge(at);
  }
  void Erase(size_t at, size_t bytes) {
    file_.erase(file_.begin() + ToOffset(at),
                file_.begin() + ToOffset(at + bytes));
  }
  void Insert(size_t at, const Bytes& bytes) {
    file_.insert(file_.begin() + ToOffset(at), bytes.begin(), bytes.end());
  }

  // Replaces this segment by one of the same kind if there is one, or the rest
  // of the file.
  void TakeFromOther(const Segment& segment) {
    const std::vector<Segment> others = SegmentsOf(other_);
    if (others.empty()) return;
    Segment taken = others[Below(others.size())];
    for (const Segment& each : others) {
      if (each.marker == segment.marker && Below(2) == 0) taken = each;
    }
    const bool rest = Below(4) == 0;
    const auto from = other_.begin() + ToOffset(taken.offset);
    const Bytes bytes(from, rest ? other_.end() : from + ToOffset(taken.bytes));
    Erase(segment.offset, rest ? file_.size() - segment.offset : segment.bytes);
    Insert(segment.offset, bytes);
  }

  Bytes& file_;
  const std::span<const std::byte> other_;
  std::mt19937_64& random_;
};

}  // namespace

void MutateJpeg(std::vector<std::byte>* file, std::span<const std::byte> other,
                std::mt19937_64& random) {
  for (bool more = true; more; more = random() % 4 == 0) {
    Mutation(file, other, &random).Run();
  }
}

}  // namespace penstock
