// What is a sample, and which member has which name, is as in webdataset
// (github.com/webdataset/webdataset, tariterators), but for one thing: the
// members of a sample need not be neighbours within their file.
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include "broker/declare/declaration.h"
#include "broker/source/kinds.h"
#include "broker/source/sample_members.h"
#include "broker/source/tar_scan.h"
#include "common/layout.h"
#include "common/printable.h"

namespace penstock {
namespace {

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
        PENSTOCK_RETURN_IF_ERROR(TakeName(member, name));
      }
      last_ = place->second;
    }
    for (size_t i = 0; i < features; ++i) {
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

  // The last sample gets its name.
  Status TakeName(const TarMember& member, const MemberName& name) {
    const size_t features = alternatives_.size();
    for (size_t i = 0; i < features; ++i) {
      if (spec_.features[i].key_or_name() != kSampleName) continue;
      if (member.name_at == FileRecords::kAbsent) {
        return InvalidArgumentError(
            "{}, offset {}: the name '{}' is in two pieces (ustar), and "
            "{} is a range of the file: pack it again (tar --format=posix)",
            file_->path(), member.header, Printable(member.name), kSampleName);
      }
      found_[found_.size() - features + i] = {member.name_at,
                                              name.sample.size(), 0};
    }
    return OkStatus();
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

// A list that is a JSON document.
bool IsJsonList(const RecordFeature& feature) {
  const std::vector<std::string> all = Alternatives(feature.key_or_name());
  return feature.kind == RecordFeature::Kind::kList &&
         std::all_of(all.begin(), all.end(), [](const std::string& extension) {
           return extension == "json" || extension.ends_with(".json");
         });
}

// What the first samples of a file have, for a spec without features.
class MemberProposal {
 public:
  static constexpr size_t kSamples = 64;

  Status Add(const MemberName& name, const TarMember& member,
             const DataFile& file, OpenProgress* progress) {
    if (samples_.size() == kSamples && !samples_.contains(name.sample)) {
      return OkStatus();
    }
    samples_.emplace(name.sample);
    if (seen_.size() == kFeaturesMax && !seen_.contains(name.extension)) {
      return OkStatus();
    }
    return seen_[name.extension].Add(file, member.offset, member.bytes,
                                     progress);
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
      const std::string what = seen.Proposed(IsNumberExtension(extension));
      if (what.empty()) {
        left_out += (left_out.empty() ? "" : ", ") + seen.Text(extension);
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
  std::set<std::string, std::less<>> samples_;
  std::map<std::string, SeenMembers, std::less<>> seen_;  // by extension
};

Status AskFeaturesError(const WebdatasetSource& spec, OpenProgress* progress) {
  PENSTOCK_ASSIGN_OR_RETURN(const DataFiles found,
                            DataFiles::Open(spec.files, *progress));
  const DataFile& file = found[0];
  MemberProposal proposal;
  ScannedFile scanned(file, progress);
  const auto scan =
      ForEachTarMember(&scanned, [&](const TarMember& member) -> Status {
        MemberName name;
        return SplitName(member.name, spec.extension, &name)
                   ? proposal.Add(name, member, file, progress)
                   : OkStatus();
      });
  return scan.ok() ? proposal.Error(file.path()) : scan.status();
}

class Webdataset final : public SourceOfMembers {
 public:
  using SourceOfMembers::SourceOfMembers;

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
          .Required("files", &WebdatasetSource::files, Files(), kFilesText)
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
              "NAME), or __key__, the sample's name, `pointer`, where a JSON "
              "member has it (/label), and for "
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
    if (each.key_or_name() == kSampleName &&
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
  RecordFeatures read = features;
  std::vector<bool> numbers;
  for (RecordFeature& each : read) {
    numbers.push_back(IsNumberMember(each));
    if (!each.pointer && IsJsonList(each)) each.pointer = "";  // all of it
  }
  return std::unique_ptr<Source>(
      new Webdataset("member", read, std::move(numbers), std::move(index)));
}

}  // namespace penstock
