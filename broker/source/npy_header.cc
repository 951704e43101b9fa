#include "broker/source/npy_header.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "broker/index/values.h"
#include "common/printable.h"

namespace penstock {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
static_assert(kNpyMagic.size() == kNpyMagicBytes);
constexpr size_t kNpyDimensionsMax = 64;  // NumPy's

// The notation of Python, as far as a header has it. What a method returns
// false for is not there.
class Literal {
 public:
  explicit Literal(std::string_view text) : all_(text), left_(text) {}

  // The next thing is token.
  bool Take(std::string_view token) {
    left_.remove_prefix(std::min(left_.find_first_not_of(" \t\r\n"),  //
                                 left_.size()));
    if (!left_.starts_with(token)) return false;
    left_.remove_prefix(token.size());
    return true;
  }
  bool TakeString(std::string_view* out) {
    for (const std::string_view quote : {"'", "\""}) {
      if (!Take(quote)) continue;
      const size_t end = left_.find(quote);
      if (end == left_.npos) return false;
      *out = left_.substr(0, end);
      left_.remove_prefix(end + 1);
      return true;
    }
    return false;
  }
  bool TakeBool(bool* out) {
    *out = Take("True");
    return *out || Take("False");
  }
  bool TakeTuple(std::vector<uint64_t>* out) {
    if (!Take("(")) return false;
    while (!Take(")")) {
      if (out->size() == kNpyDimensionsMax) return false;
      const char* const end = left_.data() + left_.size();
      const auto [rest, error] =
          std::from_chars(left_.data(), end, out->emplace_back());
      if (error != std::errc{}) return false;
      left_.remove_prefix(static_cast<size_t>(rest - left_.data()));
      Take("L");  // of Python 2
      if (!Take(",")) return Take(")");
    }
    return true;
  }
  bool AtEnd() { return Take("") && left_.empty(); }
  // How many bytes were taken.
  size_t at() const { return all_.size() - left_.size(); }
  std::string_view left() const { return left_; }

 private:
  const std::string_view all_;
  std::string_view left_;
};

struct Fields {
  std::string_view descr;
  bool structured = false;  // descr is a list
  bool fortran_order = false;
  std::vector<uint64_t> shape;
};

// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
bool TakeFields(Literal* text, Fields* fields) {
  constexpr std::array<std::string_view, 3> kKeys = {"descr", "fortran_order",
                                                     "shape"};
  std::array<bool, kKeys.size()> seen = {};
  if (!text->Take("{")) return false;
  while (!text->Take("}")) {
    std::string_view key;
    if (!text->TakeString(&key) || !text->Take(":")) return false;
    const size_t i = static_cast<size_t>(
        std::find(kKeys.begin(), kKeys.end(), key) - kKeys.begin());
    if (i == kKeys.size() || seen[i]) return false;
    seen[i] = true;
    if (i == 0 && text->Take("[")) {
      fields->structured = true;
      return true;
    }
    const bool taken = i == 0   ? text->TakeString(&fields->descr)
                       : i == 1 ? text->TakeBool(&fields->fortran_order)
                                : text->TakeTuple(&fields->shape);
    if (!taken) return false;
    if (!text->Take(",")) {
      if (!text->Take("}")) return false;
      break;
    }
  }
  return seen == std::array<bool, kKeys.size()>{true, true, true} &&
         text->AtEnd();
}

// What values of this kind are and what to do; "": they are numbers.
std::string_view RefusedKind(char kind) {
  switch (kind) {
    case 'u':
    case 'i':
    case 'f':
    case 'b':
      return "";
    case 'O':
      return "Python objects, which only Python can unpickle; save an array of "
             "numbers (np.array(values, dtype=...))";
    case 'U':
    case 'S':
    case 'a':
      return "text; save its bytes (np.array(values, 'S').view(np.uint8), "
             "reshaped to a row for each)";
    case 'c':
      return "complex numbers; save a.view(np.float32) or a.view(np.float64)";
    case 'M':
    case 'm':
      return "times; save a.astype(np.int64)";
    case 'V':
      return "bytes of no known meaning; save a.view() of a dtype of numbers";
    default:
      return "unknown; save an array of numbers";
  }
}

Status ParseDescr(const std::string& name, std::string_view descr,
                  NpyHeader* header) {
  std::string_view number = descr;
  char order = '|';
  if (!number.empty() &&
      std::string_view("<>|=").find(number.front()) != std::string_view::npos) {
    order = number.front();
    number.remove_prefix(1);
  }
  header->kind = number.empty() ? '?' : number.front();
  if (const std::string_view refused = RefusedKind(header->kind);
      !refused.empty()) {
    return InvalidArgumentError("{}: its values (dtype {}) are {}", name,
                                Printable(descr.substr(0, 64)), refused);
  }
  number.remove_prefix(1);
  if (!ParseNumber(number, &header->value_bytes) || header->value_bytes == 0 ||
      header->value_bytes > 32) {
    return DataLossError("{}: '{}' is no dtype", name,
                         Printable(descr.substr(0, 64)));
  }
  if (order == '>' && header->value_bytes > 1) {
    return InvalidArgumentError(
        "{}: its values are big-endian (dtype {}); save "
        "a.astype(a.dtype.newbyteorder('<'))",
        name, descr);
  }
  return OkStatus();
}

}  // namespace

std::string NpyHeader::DTypeText() const {
  if (kind == 'b') return "bool";
  return Format("{}{}",
                kind == 'u'   ? "uint"
                : kind == 'i' ? "int"
                              : "float",
                8 * value_bytes);
}

std::string NpyHeader::ToString() const {
  return Format("{} [{}]", DTypeText(), JoinText(shape, ", "));
}

std::optional<DType> NpyHeader::dtype() const {
  const StatusOr<DType> known = DTypeFromName(DTypeText());
  if (!known.ok() || DTypeBytes(*known) != value_bytes) return std::nullopt;
  return *known;
}

bool IsNpy(std::span<const std::byte> head) {
  return head.size() >= kNpyMagic.size() &&
         std::equal(kNpyMagic.begin(), kNpyMagic.end(), head.begin(),
                    [](char a, std::byte b) { return std::byte(a) == b; });
}

StatusOr<NpyHeader> ParseNpyHeader(const std::string& name,
                                   std::span<const std::byte> head,
                                   uint64_t bytes) {
  if (!IsNpy(head)) {
    return InvalidArgumentError(
        "{}: not in NumPy's format: its first bytes are not \\x93NUMPY", name);
  }
  const auto byte_at = [&](size_t at) {
    return std::to_integer<size_t>(head[at]);
  };
  // Magic, version of two bytes, length of two or four.
  const size_t major =
      head.size() > kNpyMagic.size() ? byte_at(kNpyMagic.size()) : 0;
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t text_at = kNpyMagic.size() + 2 + length_bytes;
  if (head.size() < text_at) {
    return DataLossError("{}: it ends within its header, at byte {}", name,
                         bytes);
  }
  if (major < 1 || major > 3) {
    return InvalidArgumentError(
        "{}: version {}.{} of NumPy's format; known are 1 to 3", name, major,
        byte_at(kNpyMagic.size() + 1));
  }
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) {
    length |= byte_at(kNpyMagic.size() + 2 + i) << 8 * i;
  }
  if (length > bytes - text_at) {
    return DataLossError("{}: it ends within its header of {} bytes, at {}",
                         name, text_at + length, bytes);
  }
  if (length > kNpyHeaderBytesMax - text_at) {
    return InvalidArgumentError("{}: a header of {} bytes, more than {}", name,
                                text_at + length, kNpyHeaderBytesMax);
  }
  Literal text({reinterpret_cast<const char*>(head.data()) + text_at, length});
  Fields fields;
  if (!TakeFields(&text, &fields)) {
    return DataLossError("{}: its header is damaged at byte {}: '{}'", name,
                         text_at + text.at(),
                         Printable(text.left().substr(0, 32)));
  }
  if (fields.structured) {
    return InvalidArgumentError(
        "{}: its dtype is structured; save each field as an array of its own "
        "(np.save(path, a['field']))",
        name);
  }
  NpyHeader header;
  PENSTOCK_RETURN_IF_ERROR(ParseDescr(name, fields.descr, &header));
  // With one dimension or none, both orders are the same.
  if (fields.fortran_order && fields.shape.size() > 1) {
    return InvalidArgumentError(
        "{}: its values are in Fortran's order; save np.ascontiguousarray(a)",
        name);
  }
  header.shape = std::move(fields.shape);
  header.bytes = text_at + length;
  header.data_bytes = header.value_bytes;
  for (const uint64_t dimension : header.shape) {
    // What overflows is longer than any file.
    if (__builtin_mul_overflow(header.data_bytes, dimension,
                               &header.data_bytes)) {
      return DataLossError("{}: its header says {}, found {} bytes", name,
                           header.ToString(), bytes);
    }
  }
  if (header.data_bytes != bytes - header.bytes) {
    return DataLossError(
        "{}: its header says {}, wanted {} bytes after its {}, found {}; copy "
        "it or save it again, one array a file",
        name, header.ToString(), header.data_bytes, header.bytes,
        bytes - header.bytes);
  }
  return header;
}

StatusOr<NpyHeader> ReadNpyHeader(const std::string& name, const DataFile& file,
                                  uint64_t offset, uint64_t bytes,
                                  OpenProgress* progress) {
  std::vector<std::byte> head(std::min<uint64_t>(bytes, kNpyHeaderBytesMax));
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t found,
                            file.Read(offset, head, progress));
  if (found < head.size()) {
    return DataLossError("{} became shorter while it was opened", file.path());
  }
  return ParseNpyHeader(name, head, bytes);
}

}  // namespace penstock
