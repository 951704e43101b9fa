#include "broker/source/sample_members.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "broker/io/read.h"
#include "broker/source/json_lines.h"
#include "broker/source/npy_header.h"
#include "broker/source/number.h"
#include "common/layout.h"
#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// Members this near each other are read at once: about what storage reads in
// the time of another request.
constexpr uint64_t kGapBytesMax = 64 << 10;

struct Span {
  uint64_t begin = 0;
  uint64_t end = 0;
};

uint64_t RoomOf(const RecordFeature& feature) {
  if (feature.kind == RecordFeature::Kind::kEncoded) return 0;
  const bool in_place = !feature.has_length() && !feature.pointer;
  return in_place ? sizeof(int64_t)  // of a number in text
                  : feature.RowBytes();
}

// What is read at once; nullopt: each member by itself.
std::optional<Span> SpanOf(const Index::Record& sample,
                           std::span<const uint8_t> some) {
  std::array<uint8_t, kFeaturesMax> members;  // by their places
  size_t count = 0;
  for (const uint8_t i : some) {
    if (sample.offsets[i] == FileRecords::kAbsent) continue;
    // Not to be read: Unpack says so.
    if (sample.bytes[i] > kRecordBytesMax) return Span();
    members[count++] = i;
  }
  if (count == 0) return Span();
  std::sort(members.begin(), members.begin() + count,
            [&sample](uint8_t a, uint8_t b) {
              return sample.offsets[a] < sample.offsets[b];
            });
  const uint64_t begin = sample.offsets[members[0]];
  Span span = {begin, begin};
  for (size_t i = 0; i < count; ++i) {
    const uint64_t at = sample.offsets[members[i]];
    if (at > span.end + kGapBytesMax) return std::nullopt;
    span.end = std::max(span.end, at + sample.bytes[members[i]]);
  }
  if (span.end - span.begin > kRecordBytesMax) return std::nullopt;
  return span;
}

// Raw bytes of a smaller dtype could be the digits of a number.
bool MayBeDigits(const Feature& feature) {
  return feature.shape.empty() && DTypeBytes(feature.dtype) >= 4;
}

std::string_view Trimmed(std::span<const std::byte> member) {
  std::string_view text(reinterpret_cast<const char*>(member.data()),
                        member.size());
  constexpr std::string_view kSpace = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

// "float32 [4, 2]"; of a list "float32 [at most 4, 2]"
std::string WantedText(const RecordFeature& feature) {
  std::string text = feature.feature.ToString();
  if (feature.kind == RecordFeature::Kind::kList) {
    text.insert(text.find('[') + 1, "at most ");
  }
  return text;
}

// Values whose shape is that of the feature, of a list from its second
// dimension on.
StatusOr<std::span<const std::byte>> NpyValues(
    const RecordFeature& wanted, std::span<const std::byte> member) {
  const Feature& feature = wanted.feature;
  const size_t first = wanted.kind == RecordFeature::Kind::kList ? 1 : 0;
  const StatusOr<NpyHeader> found = ParseNpyHeader(
      "as .npy", member.first(std::min(member.size(), kNpyHeaderBytesMax)),
      member.size());
  // Whatever is wrong with it, it is wrong with this sample.
  if (!found.ok()) return DataLossError("{}", found.status().message());
  const NpyHeader& header = *found;
  if (first > 0 && header.shape == std::vector<uint64_t>{0}) {
    return std::span<const std::byte>();  // an empty list
  }
  const bool fits =
      header.dtype() == feature.dtype &&
      header.shape.size() == feature.shape.size() &&
      std::equal(
          header.shape.begin() + static_cast<ptrdiff_t>(first),
          header.shape.end(),
          feature.shape.begin() + static_cast<ptrdiff_t>(first),
          [](uint64_t a, int64_t b) { return a == static_cast<uint64_t>(b); });
  if (!fits) {
    return DataLossError("wanted {}, found {}", WantedText(wanted),
                         header.ToString());
  }
  return member.subspan(header.bytes);
}

}  // namespace

class MemberJson {
 public:
  explicit MemberJson(const RecordFeature& feature)
      : rows_({{feature.feature.name, FieldOf(feature)}},
              feature.cuts ? Longer::kCut : Longer::kFail),
        pointers_({*PointerTokens(*feature.pointer)}) {}

  Status Take(std::span<const std::byte> member, std::span<std::byte> room,
              RawRecord* raw) const {
    thread_local std::vector<std::byte> scratch;
    PENSTOCK_RETURN_IF_ERROR(ParseJsonLine(
        {reinterpret_cast<const char*>(member.data()), member.size()}, rows_,
        pointers_, &scratch));
    std::memcpy(room.data(), scratch.data(), rows_.bytes());
    RawRecord values;
    rows_.Point(room.first(rows_.bytes()), &values);
    raw->insert(raw->end(), values.begin(), values.end());
    return OkStatus();
  }

 private:
  static TextField FieldOf(const RecordFeature& feature) {
    TextField field;
    if (feature.kind == RecordFeature::Kind::kText) {
      field.max_bytes = feature.feature.shape[0];
      return field;
    }
    field.dtype = feature.feature.dtype;
    field.shape = feature.feature.shape;
    if (feature.kind == RecordFeature::Kind::kList) {
      field.max_length = feature.max_length();
      field.shape.erase(field.shape.begin());
      if (feature.otherwise) field.fallback.emplace();
    } else if (feature.otherwise) {
      field.fallback = DefaultBytes(feature);
      field.fallback->resize(DTypeBytes(*field.dtype));
    }
    return field;
  }

  const FieldRows rows_;
  const std::vector<std::vector<std::string>> pointers_;
};

SourceOfMembers::SourceOfMembers(std::string word,
                                 const RecordFeatures& features,
                                 std::vector<bool> numbers, Index index)
    : IndexedSource(std::move(index), RawSpecOf(features)),
      word_(std::move(word)),
      features_(features),
      numbers_(std::move(numbers)) {
  for (const RecordFeature& each : features_) {
    defaults_.push_back(each.otherwise ? DefaultBytes(each)
                                       : std::vector<std::byte>());
    room_ += RoomOf(each);
    all_.push_back(static_cast<uint8_t>(all_.size()));
    json_.push_back(each.pointer ? std::make_unique<MemberJson>(each)
                                 : nullptr);
  }
}

SourceOfMembers::~SourceOfMembers() = default;

std::string SourceOfMembers::left_out() const {
  const uint64_t count = index().left_out();
  return count == 0 ? ""
                    : Format("{} that lack{} a {}", Counted(count, "sample"),
                             count == 1 ? "s" : "", word_);
}

// Samples with some of their members alone.
class SourceOfMembers::SomeMembers final : public Source {
 public:
  SomeMembers(const SourceOfMembers& of, std::vector<uint8_t> some)
      : of_(of), some_(std::move(some)) {
    RecordFeatures features;
    for (const uint8_t i : some_) features.push_back(of.features_[i]);
    raw_spec_ = RawSpecOf(features);
  }
  uint64_t record_count() const override { return of_.record_count(); }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  void Locate(uint64_t record, ReadRequest* request) const override {
    of_.LocateSome(record, some_, request);
  }
  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    return of_.UnpackSome(record, some_, read, scratch, raw);
  }
  std::string Describe(uint64_t record) const override {
    return of_.Describe(record);
  }

 private:
  const SourceOfMembers& of_;
  const std::vector<uint8_t> some_;
  RawSpec raw_spec_;
};

std::unique_ptr<Source> SourceOfMembers::OfFeatures(
    std::span<const std::string> names) const {
  std::vector<uint8_t> some;
  for (const uint8_t i : all_) {
    if (std::find(names.begin(), names.end(), features_[i].feature.name) !=
        names.end()) {
      some.push_back(i);
    }
  }
  return some.empty() ? nullptr
                      : std::make_unique<SomeMembers>(*this, std::move(some));
}

void SourceOfMembers::Locate(uint64_t record, ReadRequest* request) const {
  LocateSome(record, all_, request);
}

Status SourceOfMembers::Unpack(uint64_t record, const ReadBytes& read,
                               std::vector<std::byte>* scratch,
                               RawRecord* raw) const {
  return UnpackSome(record, all_, read, scratch, raw);
}

void SourceOfMembers::LocateSome(uint64_t record, std::span<const uint8_t> some,
                                 ReadRequest* request) const {
  const Index::Record sample = index().At(record);
  const std::optional<Span> span = SpanOf(sample, some);
  if (span) {
    sample.file->Locate(span->begin, span->end - span->begin, request);
    return;
  }
  bool first = true;
  for (const size_t i : some) {
    if (sample.offsets[i] == FileRecords::kAbsent) continue;
    ReadPart* const part = first ? request : &request->more.emplace_back();
    sample.file->Locate(sample.offsets[i], sample.bytes[i], part);
    first = false;
  }
}

Status SourceOfMembers::UnpackSome(uint64_t record,
                                   std::span<const uint8_t> some,
                                   const ReadBytes& read,
                                   std::vector<std::byte>* scratch,
                                   RawRecord* raw) const {
  const Index::Record sample = index().At(record);
  for (const size_t i : some) {
    if (sample.bytes[i] <= kRecordBytesMax) continue;
    return DataLossError(
        "{}: {} {}: {} bytes{}; a record has at most {}", Describe(record),
        word_, features_[i].key_or_name(), sample.bytes[i],
        sample.bytes[i] == UINT32_MAX ? " or more" : "", kRecordBytesMax);
  }
  const std::optional<Span> span = SpanOf(sample, some);
  if (scratch->size() < room_) scratch->resize(room_);
  raw->clear();
  std::span<std::byte> room = *scratch;
  size_t part = 0;
  for (const size_t i : some) {
    const std::span<std::byte> mine = room.first(RoomOf(features_[i]));
    room = room.subspan(mine.size());
    const bool absent = sample.offsets[i] == FileRecords::kAbsent;
    const Status status =
        absent ? TakeDefault(i, raw)
               : Take(i,
                      span ? read.bytes.subspan(sample.offsets[i] - span->begin,
                                                sample.bytes[i])
                           : read.Part(part++),
                      mine, raw);
    if (!status.ok()) {
      return status.Prepend(Format("{}: {} {}", Describe(record), word_,
                                   features_[i].key_or_name()));
    }
  }
  return OkStatus();
}

std::string SourceOfMembers::Describe(uint64_t record) const {
  const Index::Record sample = index().At(record);
  const uint64_t first =
      *std::min_element(sample.offsets.begin(), sample.offsets.end());
  return Format(
      "{}, sample {}{}", sample.file->path(), sample.number,
      first == FileRecords::kAbsent ? "" : Format(" at offset {}", first));
}

Status SourceOfMembers::TakeDefault(size_t feature, RawRecord* raw) const {
  if (defaults_[feature].empty()) {
    return DataLossError(
        "the sample does not have it; `on_missing: skip` leaves such samples "
        "out");
  }
  const std::span<const std::byte> values = defaults_[feature];
  const uint64_t bytes = features_[feature].feature.RowBytes();
  raw->push_back(values.first(bytes));
  if (features_[feature].has_length()) raw->push_back(values.subspan(bytes));
  return OkStatus();
}

Status SourceOfMembers::Take(size_t i, std::span<const std::byte> member,
                             std::span<std::byte> room, RawRecord* raw) const {
  const RecordFeature& feature = features_[i];
  if (json_[i]) return json_[i]->Take(member, room, raw);
  switch (feature.kind) {
    case RecordFeature::Kind::kEncoded:
      if (member.empty()) return DataLossError("it is empty");
      raw->push_back(member);
      return OkStatus();
    case RecordFeature::Kind::kText:
      return StoreList(feature, member.size(), member, room, raw);
    case RecordFeature::Kind::kList: {
      std::span<const std::byte> items = member;
      if (IsNpy(member)) {
        PENSTOCK_ASSIGN_OR_RETURN(items, NpyValues(feature, member));
      }
      if (items.size() % feature.ItemBytes() != 0) {
        return DataLossError(
            "wanted any number of {} bytes, {}, or a .npy file, found {} "
            "bytes",
            feature.ItemBytes(), WantedText(feature), items.size());
      }
      return StoreList(feature, items.size() / feature.ItemBytes(), items, room,
                       raw);
    }
    case RecordFeature::Kind::kValues:
      break;
  }
  if (IsNpy(member)) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::span<const std::byte> values,
                              NpyValues(feature, member));
    raw->push_back(values);
    return OkStatus();
  }
  if (numbers_[i] || MayBeDigits(feature.feature)) {
    const std::string_view text = Trimmed(member);
    if (StoreNumberText(text, feature.feature.dtype, room.data())) {
      raw->push_back(room.first(DTypeBytes(feature.feature.dtype)));
      return OkStatus();
    }
    if (numbers_[i] || member.size() != feature.feature.RowBytes()) {
      return DataLossError(
          "wanted a number that fits {}, found '{}'{}",
          DTypeName(feature.feature.dtype),
          Printable(std::string(text.substr(0, 40))),
          text.empty() || !LooksLikeText(text)
              ? ""
              : "; a word is taken as text (`max_bytes: 64`), which "
                "`map: [{lookup: ...}]` makes a number");
    }
  }
  if (member.size() != feature.feature.RowBytes()) {
    return DataLossError("wanted {} bytes of {}, or a .npy file, found {}",
                         feature.feature.RowBytes(), feature.feature.ToString(),
                         member.size());
  }
  raw->push_back(member);
  return OkStatus();
}

Status SeenMembers::Add(const DataFile& file, uint64_t offset, uint64_t bytes,
                        OpenProgress* progress) {
  std::vector<std::byte> room(std::min<uint64_t>(bytes, kNpyHeaderBytesMax));
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t got,
                            file.Read(offset, room, progress));
  const std::string_view head(reinterpret_cast<const char*>(room.data()), got);
  ++samples;
  bytes_least = std::min(bytes_least, bytes);
  bytes_most = std::max(bytes_most, bytes);
  pictures &= LooksLikePicture(head);
  sounds &= LooksLikeSound(head);
  text &= LooksLikeText(head);
  // Protocols 2 to 5 begin with their number.
  pickles &=
      head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
  const auto header = ParseNpyHeader("", std::as_bytes(std::span(head)), bytes);
  arrays &= header.ok() && header->dtype();
  if (!arrays) return OkStatus();
  const std::vector<uint64_t>& shape = header->shape;
  if (shape == std::vector<uint64_t>{0}) {  // an empty list, of any dtype
    same_shape = false;
    return OkStatus();
  }
  if (!array) array = *header;
  same_shape &= shape == array->shape;
  const bool differs_in_length =
      shape.size() == array->shape.size() && !shape.empty() &&
      std::equal(shape.begin() + 1, shape.end(), array->shape.begin() + 1);
  arrays =
      header->dtype() == array->dtype() && (same_shape || differs_in_length);
  if (!shape.empty()) items_most = std::max(items_most, shape[0]);
  return OkStatus();
}

std::string SeenMembers::Proposed(bool is_number) const {
  if (pictures || sounds) return "encoded: true";
  if (is_number) return "dtype: int64, shape: []";
  if (arrays && array && same_shape) {
    return Format("dtype: {}, shape: [{}]", array->DTypeText(),
                  JoinText(array->shape, ", "));
  }
  if (arrays) {
    if (!array || array->shape.empty()) return "";
    const std::string rest = JoinText(std::span(array->shape).subspan(1), ", ");
    return Format("dtype: {}, max_length: {}{}", array->DTypeText(),
                  std::bit_ceil(2 * std::min(items_most, kRecordBytesMax)),
                  rest.empty() ? "" : Format(", shape: [{}]", rest));
  }
  if (text) return ProposedText(bytes_most);
  if (pickles || bytes_least != bytes_most) return "";
  return Format("dtype: uint8, shape: [{}]", bytes_most);
}

std::string SeenMembers::Text(std::string_view name) const {
  return Format("{} ({} to {} bytes)", Printable(name), bytes_least,
                bytes_most);
}

}  // namespace penstock
