// What is a sample, and which member has which name, is as in webdataset
// (github.com/webdataset/webdataset, tariterators), but for one thing: the
// members of a sample need not be neighbours within their file.
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include "broker/declare/declaration.h"
#include "broker/index/values.h"
#include "broker/io/read.h"
#include "broker/source/indexed_source.h"
#include "broker/source/json_lines.h"
#include "broker/source/kinds.h"
#include "broker/source/npy_header.h"
#include "broker/source/number.h"
#include "broker/source/tar_scan.h"
#include "common/layout.h"
#include "common/printable.h"

namespace penstock {
namespace {

// Members this near each other are read at once: about what storage reads in
// the time of another request.
constexpr uint64_t kGapBytesMax = 64 << 10;

// Not a member: what the members of a sample have before their extensions.
constexpr char kKey[] = "__key__";

bool IsKey(const RecordFeature& feature) {
  return feature.key_or_name() == kKey;
}

// "jpg;jpeg;png": the first that a sample has counts.
std::vector<std::string> Alternatives(const std::string& member) {
  std::vector<std::string> all;
  for (size_t at = 0; at <= member.size();) {
    const size_t end = std::min(member.find(';', at), member.size());
    all.push_back(member.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

struct MemberName {
  std::string_view sample;
  std::string extension;  // in small letters
};

using Extension = WebdatasetSource::Extension;

// Split at a dot of the last component. False: it belongs to no sample.
bool SplitName(std::string_view name, Extension extension, MemberName* out) {
  const size_t base = name.rfind('/') + 1;  // 0 without a slash
  const size_t dot = extension == Extension::kFirstDot ? name.find('.', base)
                                                       : name.rfind('.');
  if (dot == name.npos || dot <= base) return false;
  // Shards may describe themselves so.
  if (base == 0 && name.starts_with("__") && name.ends_with("__")) return false;
  out->sample = name.substr(0, dot);
  out->extension = name.substr(dot + 1);
  for (char& c : out->extension) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return true;
}

// Whether an extension is meant by one of a feature, which may be a pattern.
bool Matches(const std::string& wanted, const std::string& extension) {
  if (wanted.find_first_of("*?[") == wanted.npos) return wanted == extension;
  return fnmatch(wanted.c_str(), extension.c_str(), 0) == 0;
}

struct FoundMember {
  uint64_t offset = FileRecords::kAbsent;
  uint64_t bytes = 0;
  size_t alternative = 0;
};

class SampleScan {
 public:
  SampleScan(const WebdatasetSource& spec, ScannedFile* file,
             RecordSink* records)
      : spec_(spec), file_(file), records_(records) {
    for (const RecordFeature& each : spec.features) {
      alternatives_.push_back(Alternatives(each.key_or_name()));
    }
  }

  Status Run() {
    PENSTOCK_ASSIGN_OR_RETURN(
        const std::optional<uint64_t> odd_end,
        ForEachTarMember(
            file_, [this](const TarMember& member) { return Take(member); }));
    if (odd_end) {  // perhaps members are missing for that
      records_->EndsOddly(*odd_end);
    } else {
      PENSTOCK_RETURN_IF_ERROR(CheckSome());
    }
    const size_t features = alternatives_.size();
    for (size_t sample = 0; sample < numbers_.size(); ++sample) {
      const auto members =
          std::span(found_).subspan(sample * features, features);
      if (spec_.on_missing == OnMissing::kSkip && !IsComplete(members)) {
        records_->LeaveOut();
        continue;
      }
      for (const FoundMember& each : members) {
        PENSTOCK_RETURN_IF_ERROR(records_->Add(each.offset, each.bytes));
      }
    }
    return OkStatus();
  }

 private:
  // InvalidArgument: no sample of the file has a member, which is another
  // mistake than that of a sample.
  Status CheckSome() const {
    if (numbers_.empty() || spec_.on_missing == OnMissing::kSkip) {
      return OkStatus();
    }
    for (size_t i = 0; i < alternatives_.size(); ++i) {
      if (spec_.features[i].otherwise) continue;
      bool some = false;
      for (size_t at = i; at < found_.size() && !some;
           at += alternatives_.size()) {
        some = found_[at].offset != FileRecords::kAbsent;
      }
      if (some) continue;
      return InvalidArgumentError(
          "{}: no sample has the member {}: the first one, '{}', has {}{}",
          file_->path(), spec_.features[i].key_or_name(),
          Printable(first_sample_), Printable(first_members_),
          spec_.extension == Extension::kFirstDot && some_at_last_dot_
              ? "; `extension: last_dot` lets it begin at a name's last dot"
              : "");
    }
    return OkStatus();
  }

  bool IsComplete(std::span<const FoundMember> members) const {
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i].offset == FileRecords::kAbsent &&
          !spec_.features[i].otherwise) {
        return false;
      }
    }
    return true;
  }

  Status Take(const TarMember& member) {
    MemberName name;
    if (!SplitName(member.name, spec_.extension, &name)) return OkStatus();
    const size_t features = alternatives_.size();
    NoteForError(member, name);
    // Most members follow one of their sample.
    if (name.sample != last_sample_ || numbers_.empty()) {
      last_sample_ = name.sample;
      const auto [place, is_new] =
          numbers_.try_emplace(last_sample_, numbers_.size());
      if (is_new) {
        constexpr uint64_t kMapBytes = 96;  // of an entry, about
        PENSTOCK_RETURN_IF_ERROR(records_->Promise(
            kMapBytes + name.sample.size() + features * sizeof(FoundMember)));
        found_.resize(numbers_.size() * features);
        PlaceKey(member, name, place->second);
      }
      last_ = place->second;
    }
    for (size_t i = 0; i < features; ++i) {
      if (IsKey(spec_.features[i])) continue;
      const std::vector<std::string>& wanted = alternatives_[i];
      const auto alternative = static_cast<size_t>(
          std::find_if(wanted.begin(), wanted.end(),
                       [&name](const std::string& each) {
                         return Matches(each, name.extension);
                       }) -
          wanted.begin());
      if (alternative == wanted.size()) continue;
      FoundMember& found = found_[last_ * features + i];
      if (found.offset != FileRecords::kAbsent) {
        if (alternative == found.alternative) {
          return DataLossError(
              "{}, offset {}: member '{}' comes twice, as {}; names of samples "
              "must differ within a file, and a pattern match one member",
              file_->path(), member.header, Printable(std::string(member.name)),
              wanted[alternative]);
        }
        if (alternative > found.alternative) continue;
      }
      found = {member.offset, member.bytes, alternative};
    }
    return OkStatus();
  }

  // Where the file has the name of a new sample, or the header that has parts
  // of it.
  void PlaceKey(const TarMember& member, const MemberName& name,
                size_t sample) {
    for (size_t i = 0; i < alternatives_.size(); ++i) {
      if (!IsKey(spec_.features[i])) continue;
      found_[sample * alternatives_.size() + i] =
          member.name_at ? FoundMember{*member.name_at, name.sample.size()}
                         : FoundMember{member.header, kTarBlock};
    }
  }

  // What the first sample has, and whether its extensions begin elsewhere.
  void NoteForError(const TarMember& member, const MemberName& name) {
    constexpr size_t kMembersMax = 400;  // characters
    if (numbers_.empty()) first_sample_ = name.sample;
    if (name.sample != first_sample_) return;
    if (first_members_.size() < kMembersMax) {
      first_members_ += (first_members_.empty() ? "" : ", ") + name.extension;
    }
    MemberName last;
    if (!SplitName(member.name, Extension::kLastDot, &last)) return;
    for (const std::vector<std::string>& wanted : alternatives_) {
      some_at_last_dot_ |= last.extension != name.extension &&
                           std::find(wanted.begin(), wanted.end(),
                                     last.extension) != wanted.end();
    }
  }

  const WebdatasetSource& spec_;
  ScannedFile* const file_;
  RecordSink* const records_;
  std::vector<std::vector<std::string>> alternatives_;  // by feature
  std::unordered_map<std::string, size_t> numbers_;     // of the samples
  std::vector<FoundMember> found_;  // of each sample's features
  std::string last_sample_;
  size_t last_ = 0;
  std::string first_sample_;
  std::string first_members_;
  bool some_at_last_dot_ = false;
};

// What an index depends on besides the files.
std::string OptionsOf(const WebdatasetSource& spec) {
  const bool skips = spec.on_missing == OnMissing::kSkip;
  std::string options = skips ? "skip" : "error";
  if (spec.extension == Extension::kLastDot) options += " last_dot";
  for (const RecordFeature& each : spec.features) {
    options += Format("\n{}{}", each.key_or_name(),
                      skips && each.otherwise ? " or default" : "");
  }
  return options;
}

// A number in text, as of .cls: by webdataset's own list of such members.
bool IsNumberExtension(const std::string& extension) {
  constexpr std::array<std::string_view, 7> kNames = {
      "cls", "cls2", "class", "count", "index", "inx", "id"};
  return std::find(kNames.begin(), kNames.end(), extension) != kNames.end();
}

bool IsNumberMember(const RecordFeature& feature) {
  const std::vector<std::string> all = Alternatives(feature.key_or_name());
  return std::any_of(all.begin(), all.end(), IsNumberExtension);
}

// A value in a JSON document, or a list that is one.
bool IsJson(const RecordFeature& feature) {
  const std::vector<std::string> all = Alternatives(feature.key_or_name());
  return feature.pointer ||
         (feature.kind == RecordFeature::Kind::kList &&
          std::all_of(all.begin(), all.end(), [](const std::string& extension) {
            return extension == "json" || extension.ends_with(".json");
          }));
}

// What the first samples of a file have, for a spec without features.
class MemberProposal {
 public:
  static constexpr size_t kSamples = 64;

  // head: the first bytes of the member.
  void Add(const MemberName& name, std::string_view head, uint64_t bytes) {
    samples_.emplace(name.sample);
    if (seen_.size() == kFeaturesMax && !seen_.contains(name.extension)) return;
    Seen& seen = seen_[name.extension];
    ++seen.samples;
    seen.bytes_least = std::min(seen.bytes_least, bytes);
    seen.bytes_most = std::max(seen.bytes_most, bytes);
    seen.pictures &= LooksLikePicture(head);
    seen.sounds &= LooksLikeSound(head);
    seen.text &= LooksLikeText(head);
    std::string array;
    if (const auto header =
            ParseNpyHeader("", std::as_bytes(std::span(head)), bytes);
        header.ok() && header->dtype()) {
      array = Format("dtype: {}, shape: [{}]", header->DTypeText(),
                     JoinText(header->shape, ", "));
    }
    if (seen.samples == 1) seen.array = array;
    seen.same_array &= !array.empty() && array == seen.array;
  }
  bool Wants(std::string_view sample) const {
    return samples_.size() < kSamples || samples_.contains(sample);
  }

  Status Error(const std::string& path) const {
    if (samples_.empty()) {
      return InvalidArgumentError(
          "{}: no member is named as a part of a sample (NAME.EXTENSION)",
          path);
    }
    std::string pictures;  // of samples that have one picture each
    size_t with_picture = 0;
    for (const auto& [extension, seen] : seen_) {
      if (!seen.pictures) continue;
      pictures += (pictures.empty() ? "" : ";") + extension;
      with_picture += seen.samples;
    }
    if (with_picture > samples_.size()) pictures.clear();
    std::string features;
    std::string left_out;
    const auto add = [&features](std::string_view name, std::string_view member,
                                 std::string_view what) {
      features += Format(
          "{}{}: {{{}{}}}", features.empty() ? "" : ", ", name,
          name == member
              ? ""
              : Format("member: \"{}\", ", Printable(std::string(member))),
          what);
    };
    bool some_lack = false;
    if (!pictures.empty()) {
      add("image", pictures, "encoded: true");
      some_lack = with_picture < samples_.size();
    }
    for (const auto& [extension, seen] : seen_) {
      if (seen.pictures && !pictures.empty()) continue;
      const std::string what = Of(extension, seen);
      if (what.empty()) {
        left_out +=
            Format("{}{} ({} to {} bytes)", left_out.empty() ? "" : ", ",
                   Printable(extension), seen.bytes_least, seen.bytes_most);
        continue;
      }
      add(extension == "cls" ? "label" : ProposedName(extension), extension,
          what);
      some_lack |= seen.samples < samples_.size();
    }
    return InvalidArgumentError(
        "webdataset: say which members a row has; by the first {} sample{} of "
        "a "
        "file{}: features: {{{}}}{}",
        samples_.size(), samples_.size() == 1 ? "" : "s",
        left_out.empty() ? "" : Format(", without {}", left_out), features,
        some_lack ? "; some samples lack a member: `on_missing: skip` leaves "
                    "them out"
                  : "");
  }

 private:
  struct Seen {
    uint64_t samples = 0;
    uint64_t bytes_least = UINT64_MAX;
    uint64_t bytes_most = 0;
    bool pictures = true;
    bool sounds = true;
    bool text = true;
    bool same_array = true;
    std::string array;
  };
  static std::string Of(const std::string& extension, const Seen& seen) {
    if (seen.pictures || seen.sounds) return "encoded: true";
    if (IsNumberExtension(extension)) return "dtype: int64, shape: []";
    if (seen.same_array) return seen.array;
    if (seen.text) return ProposedText(seen.bytes_most);
    if (seen.bytes_least != seen.bytes_most) return "";
    return Format("dtype: uint8, shape: [{}]", seen.bytes_most);
  }

  std::set<std::string, std::less<>> samples_;
  std::map<std::string, Seen, std::less<>> seen_;  // by extension
};

Status AskFeaturesError(const WebdatasetSource& spec, OpenProgress* progress) {
  PENSTOCK_ASSIGN_OR_RETURN(const DataFiles found,
                            DataFiles::Open(spec.files, *progress));
  const DataFile& file = found[0];
  MemberProposal proposal;
  std::array<std::byte, kNpyHeaderBytesMax> head;
  ScannedFile scanned(file, progress);
  const auto scan =
      ForEachTarMember(&scanned, [&](const TarMember& member) -> Status {
        MemberName name;
        if (!SplitName(member.name, spec.extension, &name) ||
            !proposal.Wants(name.sample)) {
          return OkStatus();
        }
        PENSTOCK_ASSIGN_OR_RETURN(
            const uint64_t bytes,
            file.Read(member.offset,
                      std::span(head).first(
                          std::min<uint64_t>(member.bytes, head.size())),
                      progress));
        proposal.Add(name, {reinterpret_cast<const char*>(head.data()), bytes},
                     member.bytes);
        return OkStatus();
      });
  return scan.ok() ? proposal.Error(file.path()) : scan.status();
}

class Webdataset final : public IndexedSource {
 public:
  Webdataset(const WebdatasetSource& spec, Index index)
      : IndexedSource(std::move(index), RawSpecOf(spec.features)),
        features_(spec.features),
        extension_(spec.extension) {
    for (const RecordFeature& each : features_) {
      defaults_.push_back(each.otherwise ? DefaultBytes(each)
                                         : std::vector<std::byte>());
      numbers_.push_back(IsNumberMember(each));
      room_ += RoomOf(each);
      json_.push_back(IsJson(each) ? std::make_unique<JsonField>(each)
                                   : nullptr);
    }
  }

  std::string warning() const override {
    const Index::OddEnds odd = index().odd_ends();
    if (odd.files == 0) return "";
    return Format(
        "{}, offset {}: {}{}", odd.first->path(), odd.offset,
        odd.offset == odd.first->bytes()
            ? "the file ends without the zeros that end an archive; it may "
              "have been cut off: compare or copy it again"
            : "another archive begins behind the first one, and is not read: "
              "join them with `tar --concatenate`, or keep two files",
        odd.files == 1 ? "" : Format(" (one of {} such files)", odd.files));
  }
  std::string left_out() const override {
    const uint64_t count = index().left_out();
    return count == 0 ? ""
                      : Format("{} sample{} that lack a member", count,
                               count == 1 ? "" : "s");
  }

  void Locate(uint64_t record, ReadRequest* request) const override {
    const Index::Record sample = index().At(record);
    const std::optional<Span> span = SpanOf(sample);
    if (span) {
      sample.file->Locate(span->begin, span->end - span->begin, request);
      return;
    }
    bool first = true;
    for (size_t i = 0; i < sample.offsets.size(); ++i) {
      if (sample.offsets[i] == FileRecords::kAbsent) continue;
      ReadPart* const part = first ? request : &request->more.emplace_back();
      sample.file->Locate(sample.offsets[i], sample.bytes[i], part);
      first = false;
    }
  }

  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    const Index::Record sample = index().At(record);
    for (size_t i = 0; i < features_.size(); ++i) {
      if (sample.bytes[i] <= kRecordBytesMax) continue;
      return DataLossError(
          "{}: member {}: {} bytes{}; a record has at most {}",
          Describe(record), features_[i].key_or_name(), sample.bytes[i],
          sample.bytes[i] == UINT32_MAX ? " or more" : "", kRecordBytesMax);
    }
    const std::optional<Span> span = SpanOf(sample);
    if (scratch->size() < room_) scratch->resize(room_);
    raw->clear();
    std::span<std::byte> room = *scratch;
    size_t part = 0;
    for (size_t i = 0; i < features_.size(); ++i) {
      const std::span<std::byte> mine = room.first(RoomOf(features_[i]));
      room = room.subspan(mine.size());
      const bool absent = sample.offsets[i] == FileRecords::kAbsent;
      const Status status =
          absent
              ? TakeDefault(i, raw)
              : Take(i,
                     span ? read.bytes.subspan(sample.offsets[i] - span->begin,
                                               sample.bytes[i])
                          : read.Part(part++),
                     mine, raw);
      if (!status.ok()) {
        return status.Prepend(Format("{}: member {}", Describe(record),
                                     features_[i].key_or_name()));
      }
    }
    return OkStatus();
  }

  std::string Describe(uint64_t record) const override {
    const Index::Record sample = index().At(record);
    const uint64_t first =
        *std::min_element(sample.offsets.begin(), sample.offsets.end());
    return Format(
        "{}, sample {}{}", sample.file->path(), sample.number,
        first == FileRecords::kAbsent ? "" : Format(" at offset {}", first));
  }

 private:
  struct Span {
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  static uint64_t RoomOf(const RecordFeature& feature) {
    if (feature.kind == RecordFeature::Kind::kEncoded) return 0;
    const bool in_place = !feature.has_length() && !feature.pointer;
    return in_place ? sizeof(int64_t)  // of a number in text
                    : feature.RowBytes();
  }

  // What is read at once; nullopt: each member by itself.
  static std::optional<Span> SpanOf(const Index::Record& sample) {
    std::array<uint8_t, kFeaturesMax> members;  // by their places
    size_t count = 0;
    for (size_t i = 0; i < sample.offsets.size(); ++i) {
      if (sample.offsets[i] == FileRecords::kAbsent) continue;
      // Not to be read: Unpack says so.
      if (sample.bytes[i] > kRecordBytesMax) return Span();
      members[count++] = static_cast<uint8_t>(i);
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

  Status TakeDefault(size_t feature, RawRecord* raw) const {
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

  Status Take(size_t i, std::span<const std::byte> member,
              std::span<std::byte> room, RawRecord* raw) const {
    const RecordFeature& feature = features_[i];
    if (json_[i]) return json_[i]->Take(member, room, raw);
    if (IsKey(feature)) return TakeKey(feature, member, room, raw);
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
          PENSTOCK_ASSIGN_OR_RETURN(
              items, NpyValues(feature.feature, /*first=*/1, member));
        }
        if (items.size() % feature.ItemBytes() != 0) {
          return DataLossError(
              "wanted any number of {} bytes, {}, or a .npy file, found {} "
              "bytes",
              feature.ItemBytes(), feature.feature.ToString(), items.size());
        }
        return StoreList(feature, items.size() / feature.ItemBytes(), items,
                         room, raw);
      }
      case RecordFeature::Kind::kValues:
        break;
    }
    if (IsNpy(member)) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::span<const std::byte> values,
                                NpyValues(feature.feature, 0, member));
      raw->push_back(values);
      return OkStatus();
    }
    if (numbers_[i] || MayBeText(feature.feature)) {
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
                           feature.feature.RowBytes(),
                           feature.feature.ToString(), member.size());
    }
    raw->push_back(member);
    return OkStatus();
  }

  Status TakeKey(const RecordFeature& feature, std::span<const std::byte> bytes,
                 std::span<std::byte> room, RawRecord* raw) const {
    std::string name;
    MemberName parts;
    if (bytes.size() == kTarBlock) name = TarNameOfParts(bytes);
    if (SplitName(name, extension_, &parts)) {
      bytes = std::as_bytes(std::span(parts.sample));
    }
    return StoreList(feature, bytes.size(), bytes, room, raw);
  }

  // Raw bytes of a smaller dtype could be the digits of a number.
  static bool MayBeText(const Feature& feature) {
    return feature.shape.empty() && DTypeBytes(feature.dtype) >= 4;
  }

  static std::string_view Trimmed(std::span<const std::byte> member) {
    std::string_view text(reinterpret_cast<const char*>(member.data()),
                          member.size());
    constexpr std::string_view kSpace = " \t\r\n";
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    return text.substr(0, text.find_last_not_of(kSpace) + 1);
  }

  // Values whose shape is that of the feature from dimension `first` on.
  static StatusOr<std::span<const std::byte>> NpyValues(
      const Feature& feature, size_t first, std::span<const std::byte> member) {
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
        std::equal(header.shape.begin() + static_cast<ptrdiff_t>(first),
                   header.shape.end(),
                   feature.shape.begin() + static_cast<ptrdiff_t>(first),
                   [](uint64_t a, int64_t b) {
                     return a == static_cast<uint64_t>(b);
                   });
    if (!fits) {
      return DataLossError("wanted {}, found {}", feature.ToString(),
                           header.ToString());
    }
    return member.subspan(header.bytes);
  }

  // A value of a member that is a JSON document.
  class JsonField {
   public:
    explicit JsonField(const RecordFeature& feature)
        : rows_({{feature.feature.name, FieldOf(feature)}},
                feature.cuts ? Longer::kCut : Longer::kFail),
          pointers_({*PointerTokens(feature.pointer.value_or(""))}) {}

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

  const RecordFeatures features_;
  const Extension extension_;
  std::vector<std::unique_ptr<JsonField>> json_;  // by feature
  std::vector<std::vector<std::byte>> defaults_;  // by feature
  std::vector<bool> numbers_;                     // by feature: written as text
  uint64_t room_ = 0;
};

}  // namespace

const Declaration<WebdatasetSource>& WebdatasetSource::Declared() {
  static const auto declared =
      Declaration<WebdatasetSource>(
          "webdataset",
          "Samples of tar files: members with one base name (0001.jpg, "
          "0001.cls).")
          .Gives(kFieldsAndListsGive)
          .Example(
              "{files: \"/data/train-{000000..000146}.tar\", features: {image: "
              "{member: jpg;jpeg;png, encoded: true}, label: {member: cls, "
              "dtype: int64, shape: []}}}")
          .Required("files", &WebdatasetSource::files, Files(),
                    std::string(kFilesText) + "; not compressed as a whole")
          .Optional(
              "features", &WebdatasetSource::features,
              RecordFeaturesType("member", {"default", "pointer"}),
              "{NAME: {encoded: true}} of a picture or sound, {NAME: {dtype, "
              "shape}} of "
              "a number in text (cls; any of 4 bytes or more), an array (npy) "
              "or raw bytes, {NAME: {max_bytes}} of text, {NAME: {dtype, "
              "max_length}} of a list of numbers (npy, JSON, raw bytes), each "
              "of `shape` ([]); for these two `longer`, fail or cut; with "
              "`member`, its "
              "extension, a pattern (*.jpg) or several by preference (jpg;png; "
              "NAME), or __key__, the name of the sample, `pointer`, where a "
              "JSON member has it (/label), and for "
              "numbers `default`, the values where a sample lacks it (an error "
              "of the sample). Left out, an error proposes them")
          .Optional("extension", &WebdatasetSource::extension,
                    Words<Extension>({{"first_dot", Extension::kFirstDot},
                                      {"last_dot", Extension::kLastDot}}),
                    "where it begins in a name: 0001.seg.png has seg.png, "
                    "22.05.jpg with last_dot has jpg")
          .Optional("on_missing", &WebdatasetSource::on_missing,
                    OnMissingType(),
                    "a sample without such a member is an error (on_error "
                    "applies), or is left out of the dataset")
          .Optional("io", &WebdatasetSource::io, IoType(), kIoText);
  return declared;
}

OpenedSource WebdatasetSource::Open(OpenProgress* progress) const {
  if (features.empty()) return AskFeaturesError(*this, progress);
  const RecordScanner scanner = {
      .kind = "webdataset",
      .options = OptionsOf(*this),
      .places = static_cast<uint32_t>(features.size()),
      .scan = [this](ScannedFile* file, RecordSink* records) {
        return SampleScan(*this, file, records).Run();
      }};
  for (const RecordFeature& each : features) {
    if (IsKey(each) &&
        (each.kind != RecordFeature::Kind::kText || each.pointer)) {
      return InvalidArgumentError(
          "webdataset: feature '{}': __key__ is a text, the name of a sample: "
          "write `max_bytes: 256`",
          each.feature.name);
    }
    if (each.kind == RecordFeature::Kind::kValues && IsNumberMember(each) &&
        !each.feature.shape.empty() && !each.pointer) {
      return InvalidArgumentError(
          "webdataset: feature '{}': member {} holds one number in text: write "
          "`shape: []`",
          each.feature.name, each.key_or_name());
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(Index index, Index::Open(files, scanner, progress));
  PENSTOCK_RETURN_IF_ERROR(index.ChooseIo(io));
  return std::unique_ptr<Source>(new Webdataset(*this, std::move(index)));
}

}  // namespace penstock
