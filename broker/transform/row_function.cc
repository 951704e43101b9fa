#include "broker/transform/row_function.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "broker/declare/value_type.h"

namespace penstock {
namespace {

constexpr uint64_t kAlign = 64;
constexpr size_t kNameBytesMax = 256;

uint64_t Aligned(uint64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

bool IsDottedName(std::string_view text) {
  bool in_word = false;
  for (const char c : text) {
    const bool letter = std::isalpha(static_cast<unsigned char>(c)) || c == '_';
    const bool digit = c >= '0' && c <= '9';
    if (c == '.' ? !in_word : !letter && !(digit && in_word)) return false;
    in_word = c != '.';
  }
  return in_word && text.size() <= kNameBytesMax;
}

ValueType<std::optional<ElementSpec>> OutputsType() {
  return Maybe(Features());
}

StatusOr<ElementSpec> OutputsOf(const std::optional<ElementSpec>& features,
                                const RawSpec& inputs) {
  if (features) return *features;
  ElementSpec outputs;
  for (const RawFeature& input : inputs) {
    if (input.encoded) {
      return InvalidArgumentError(
          "is given feature '{}' as the bytes of a file: say with `features` "
          "what it returns",
          input.feature.name);
    }
    outputs.push_back(input.feature);
  }
  return outputs;
}

Status CheckTrustedFile(const std::string& path, const struct stat& st,
                        mode_t writable_by) {
  if ((st.st_mode & writable_by) == 0 &&
      (st.st_uid == 0 || st.st_uid == geteuid())) {
    return OkStatus();
  }
  return FailedPreconditionError(
      "others can write '{}' (mode {:04o}, user {}): code is only taken from "
      "where root or the broker's user alone writes",
      path, st.st_mode & 07777, st.st_uid);
}

StatusOr<std::string> CheckTrusted(const std::string& folder,
                                   mode_t writable_by) {
  std::error_code error;
  const std::filesystem::path found = std::filesystem::canonical(folder, error);
  if (error) return ErrnoError(error.value(), Format("'{}'", folder));
  for (std::filesystem::path path = found;; path = path.parent_path()) {
    struct stat st;
    if (stat(path.c_str(), &st) != 0) {
      return ErrnoError(errno, Format("'{}'", path.string()));
    }
    if (path == found && !S_ISDIR(st.st_mode)) {
      return InvalidArgumentError("'{}' is not a folder", folder);
    }
    // In a sticky parent folder (/tmp) other users cannot replace files that
    // are not theirs.
    const bool sticky = path != found && (st.st_mode & S_ISVTX) != 0;
    PENSTOCK_RETURN_IF_ERROR(
        CheckTrustedFile(path, st, sticky ? 0 : writable_by));
    if (path == path.root_path()) return found.string();
  }
}

StatusOr<RowLayout> PlanRow(std::span<const uint64_t> input_bytes,
                            const ElementSpec& outputs) {
  RowLayout layout;
  const auto add = [&](uint64_t bytes, std::vector<uint64_t>* offsets) {
    offsets->push_back(layout.bytes);
    if (bytes > kFunctionBytesMax - layout.bytes) return false;
    layout.bytes += Aligned(bytes);
    return layout.bytes <= kFunctionBytesMax;
  };
  bool fits = true;
  for (const uint64_t bytes : input_bytes) {
    fits = fits && add(bytes, &layout.input_offsets);
  }
  for (const Feature& output : outputs) {
    fits = fits && add(output.RowBytes(), &layout.output_offsets);
  }
  if (!fits) {
    return ResourceExhaustedError(
        "a row of a function, in and out, has more than {} bytes",
        kFunctionBytesMax);
  }
  return layout;
}

}  // namespace penstock
