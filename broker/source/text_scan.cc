#include "broker/source/text_scan.h"

#include <cstring>
#include <string_view>

namespace penstock {

StatusOr<uint64_t> FindText(const std::string& path,
                            std::span<const std::byte> head) {
  const std::string_view mark(reinterpret_cast<const char*>(head.data()),
                              std::min(head.size(), kTextMarkBytes));
  if (mark.starts_with("\x1f\x8b") || mark.starts_with("\x28\xb5\x2f")) {
    return InvalidArgumentError(
        "{} is compressed, so that its lines have no places in it; unpack it "
        "on disk (gunzip, unzstd)",
        path);
  }
  if (mark.starts_with("\xff\xfe") || mark.starts_with("\xfe\xff")) {
    return InvalidArgumentError(
        "{} is in UTF-16; convert it (iconv -f UTF-16 -t UTF-8)", path);
  }
  return mark == "\xef\xbb\xbf" ? mark.size() : 0;
}

StatusOr<uint64_t> FindText(ScannedFile* file) {
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::span<const std::byte> head,
      file->At(0, std::min<uint64_t>(kTextMarkBytes, file->bytes())));
  return FindText(file->path(), head);
}

const char* FindNewline(const char* next, const char* end) {
  return static_cast<const char*>(
      std::memchr(next, '\n', static_cast<size_t>(end - next)));
}

}  // namespace penstock
