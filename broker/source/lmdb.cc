#include <fcntl.h>

#include <algorithm>

#include "broker/declare/declaration.h"
#include "broker/io/stores.h"
#include "broker/source/kinds.h"
#include "broker/source/lmdb_tree.h"
#include "broker/source/sample_members.h"
#include "common/printable.h"

namespace penstock {
namespace {

// Keys with one '*', in whose place is what the keys of a sample have in
// common.
class KeyPattern {
 public:
  explicit KeyPattern(const std::string& text)
      : prefix_(text.substr(0, text.find('*'))),
        suffix_(text.substr(text.find('*') + 1)) {}

  std::optional<std::string_view> Match(std::string_view key) const {
    if (key.size() < prefix_.size() + suffix_.size() ||
        !key.starts_with(prefix_) || !key.ends_with(suffix_)) {
      return std::nullopt;
    }
    key.remove_suffix(suffix_.size());
    return key.substr(prefix_.size());
  }
  std::string Of(std::string_view sample) const {
    return prefix_ + std::string(sample) + suffix_;
  }

 private:
  std::string prefix_;
  std::string suffix_;
};

// What writers say of all samples, under a key of its own.
bool IsOfNoSample(std::string_view key) {
  return key == "num-samples" || key == "length" ||
         (key.starts_with("__") && key.ends_with("__"));
}

class LmdbScan {
 public:
  LmdbScan(const LmdbSource& spec, ScannedFile* file, RecordSink* records)
      : spec_(spec), file_(file), records_(records) {
    for (const RecordFeature& each : spec.features) {
      patterns_.emplace_back(each.key);
      if (each.key == kSampleName && first_ + 1 == patterns_.size()) ++first_;
    }
    is_found_.resize(patterns_.size());
  }

  Status Run() {
    PENSTOCK_ASSIGN_OR_RETURN(
        LmdbTree tree, LmdbTree::Open(spec_.database.value_or(""), file_));
    // Keys are mostly looked up in order: each feature keeps its own page.
    others_.assign(patterns_.size(), tree);
    const Status status = Scan(&tree);
    if (status.ok() || status.code() == StatusCode::kDataLoss) {
      PENSTOCK_RETURN_IF_ERROR(tree.CheckUnchanged());
    }
    return status;
  }

 private:
  Status Scan(LmdbTree* tree) {
    std::string other_key;
    PENSTOCK_RETURN_IF_ERROR(
        tree->ForEach([&](const LmdbEntry& entry) -> StatusOr<bool> {
          if (IsOfNoSample(entry.key)) return true;
          if (const auto sample = patterns_[first_].Match(entry.key)) {
            PENSTOCK_RETURN_IF_ERROR(Add(*sample, entry));
          } else if (other_key.empty()) {
            other_key = entry.key;
          }
          return true;
        }));
    if (!first_sample_) {
      return other_key.empty()
                 ? OkStatus()
                 : InvalidArgumentError(
                       "{}: no key is '{}'; one is '{}'", file_->path(),
                       spec_.features[first_].key, Printable(other_key));
    }
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (is_found_[i] || spec_.features[i].otherwise ||
          spec_.on_missing == OnMissing::kSkip) {
        continue;
      }
      return InvalidArgumentError(
          "{}: no sample has the key '{}': the first one has '{}', but no '{}'",
          file_->path(), spec_.features[i].key,
          Printable(patterns_[first_].Of(*first_sample_)),
          Printable(patterns_[i].Of(*first_sample_)));
    }
    return OkStatus();
  }

  Status Add(std::string_view sample, const LmdbEntry& first) {
    if (!first_sample_) first_sample_ = sample;
    found_.assign(patterns_.size(), first);
    bool lacks_some = false;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      const std::string& key = spec_.features[i].key;
      if (key == kSampleName) {
        const auto at = static_cast<uint64_t>(sample.data() - first.key.data());
        found_[i] = {.offset = first.key_at + at, .bytes = sample.size()};
      } else if (key != spec_.features[first_].key) {
        PENSTOCK_ASSIGN_OR_RETURN(const std::optional<LmdbEntry> found,
                                  others_[i].Find(patterns_[i].Of(sample)));
        found_[i] = found.value_or(LmdbEntry{.offset = FileRecords::kAbsent});
        lacks_some |= !found && !spec_.features[i].otherwise;
        if (!found) continue;
      }
      is_found_[i] = true;
    }
    if (lacks_some && spec_.on_missing == OnMissing::kSkip) {
      records_->LeaveOut();
      return OkStatus();
    }
    for (const LmdbEntry& each : found_) {
      PENSTOCK_RETURN_IF_ERROR(records_->Add(each.offset, each.bytes));
    }
    return OkStatus();
  }

  const LmdbSource& spec_;
  ScannedFile* const file_;
  RecordSink* const records_;
  size_t first_ = 0;                  // the feature whose keys are the samples
  std::vector<KeyPattern> patterns_;  // by feature, as all of these
  std::vector<LmdbTree> others_;
  std::vector<bool> is_found_;  // in any sample
  std::vector<LmdbEntry> found_;
  std::optional<std::string> first_sample_;
};

// What an index depends on besides the files.
std::string OptionsOf(const LmdbSource& spec) {
  const bool skips = spec.on_missing == OnMissing::kSkip;
  std::string options =
      Format("{}\n{}", skips ? "skip" : "error", spec.database.value_or(""));
  for (const RecordFeature& each : spec.features) {
    options += Format("\n{}{}", each.key,
                      skips && each.otherwise ? " or default" : "");
  }
  return options;
}

// ---- values as they are

Status PickleError(const std::string& path) {
  return InvalidArgumentError(
      "{}: its values are pickled objects of Python, which only Python may "
      "load: read them by a dataset of yours (`source: {{python: ...}}`)",
      path);
}

// A pickle is neither a picture nor a text, and says nothing when it is read as
// one.
Status CheckNotPickled(const RecordFeatures& features, const Index& index,
                       OpenProgress* progress) {
  const Index::Record record = index.At(0);
  for (size_t i = 0; i < features.size(); ++i) {
    const bool could_be = features[i].kind == RecordFeature::Kind::kEncoded ||
                          features[i].kind == RecordFeature::Kind::kText;
    if (!could_be || record.offsets[i] == FileRecords::kAbsent) continue;
    SeenMembers seen;
    PENSTOCK_RETURN_IF_ERROR(
        seen.Add(*record.file, record.offsets[i], record.bytes[i], progress));
    if (seen.pickles) return PickleError(record.file->path());
  }
  return OkStatus();
}

// "image-*" for "image-000000001", else "*": other keys with a number at their
// end are names.
std::string PatternOf(std::string_view key) {
  const size_t digits = key.find_last_not_of("0123456789") + 1;
  const std::string_view prefix = key.substr(0, digits);
  const bool counts = digits < key.size() && LooksLikeText(prefix) &&
                      prefix.find_first_of("*0123456789") == prefix.npos;
  return Format("{}*", counts ? prefix : "");
}

Status AskFeaturesError(const LmdbSource& spec, const DataFile& file,
                        OpenProgress* progress) {
  constexpr uint64_t kSamples = 64;
  constexpr size_t kPatternsMax = 8;
  ScannedFile scanned(file, progress);
  PENSTOCK_ASSIGN_OR_RETURN(
      LmdbTree tree, LmdbTree::Open(spec.database.value_or(""), &scanned));
  std::string features;
  std::string left_out;
  std::string from;
  for (size_t i = 0; i < kPatternsMax; ++i) {
    std::string pattern;
    SeenMembers seen;
    PENSTOCK_RETURN_IF_ERROR(
        tree.ForEachFrom(from, [&](const LmdbEntry& entry) -> StatusOr<bool> {
          if (IsOfNoSample(entry.key)) return true;
          if (pattern.empty()) pattern = PatternOf(entry.key);
          if (!KeyPattern(pattern).Match(entry.key)) return false;
          PENSTOCK_RETURN_IF_ERROR(
              seen.Add(file, entry.offset, entry.bytes, progress));
          return seen.samples < kSamples;
        }));
    if (pattern.empty()) break;
    if (seen.pickles) return PickleError(file.path());
    const std::string what = seen.Proposed(/*is_number=*/false);
    const std::string prefix = pattern.substr(0, pattern.size() - 1);
    const size_t name = prefix.find_last_not_of("-_/:. ") + 1;
    if (what.empty()) {
      left_out += (left_out.empty() ? "" : ", ") + seen.Text(pattern);
    } else {
      features += Format(
          "{}{}: {{{}{}}}", features.empty() ? "" : ", ",
          name > 0 ? ProposedName(prefix.substr(0, name))
                   : (seen.pictures ? "image" : "value"),
          prefix.empty() ? "" : Format("key: \"{}\", ", Printable(pattern)),
          what);
    }
    if (prefix.empty()) break;
    from = prefix;  // the first key behind all that begin so
    from.back() = static_cast<char>(from.back() + 1);
  }
  return InvalidArgumentError(
      "lmdb: say which keys a row has; by the first values of a file{}: "
      "features: {{{}}}",
      left_out.empty() ? "" : Format(", without {}", left_out), features);
}

// A folder of a store is known by what lies below it alone.
bool IsFolder(const std::string& path, const FileAccess& access) {
  if (!IsAddress(path)) return access.Open(path, O_PATH | O_DIRECTORY).ok();
  return path.ends_with('/') ||
         (path.find_first_of("*?[{") == path.npos &&
          access.Check(path).code() == StatusCode::kNotFound &&
          access.Check(path + "/data.mdb").ok());
}

}  // namespace

const Declaration<LmdbSource>& LmdbSource::Declared() {
  static const auto declared =
      Declaration<LmdbSource>(
          "lmdb", "Values of LMDB files, by their keys, in the order of these.")
          .Gives(kFieldsAndListsGive)
          .Example(
              "{files: /data/MJSynth, features: {image: {key: \"image-*\", "
              "encoded: true}, word: {key: \"label-*\", max_bytes: 64}}}")
          .Required("files", &LmdbSource::files, Files(),
                    std::string(kFilesText) +
                        "; a folder is its data.mdb. Nobody may write to them "
                        "meanwhile")
          .Optional(
              "features", &LmdbSource::features,
              RecordFeaturesType("key", {"default", "pointer"}),
              "{NAME: {encoded: true}} and others as for webdataset, with "
              "`key` for `member`: a key whose * stands for what the keys of a "
              "sample have in common (*: each value is a sample), or __key__, "
              "what that is. The samples are the keys of the first feature, "
              "but not num-samples, length and __any__. Left out, an error "
              "proposes them")
          .Optional(
              "database", &LmdbSource::database,
              Maybe(Text("a name",
                         [](std::string_view name) { return !name.empty(); })),
              "one within the files; left out, the main one")
          .Optional("on_missing", &LmdbSource::on_missing, OnMissingType(),
                    "a sample without such a key is an error (on_error "
                    "applies), or is left out of the dataset")
          .Optional("io", &LmdbSource::io, IoType(), kIoText);
  return declared;
}

OpenedSource LmdbSource::Open(OpenProgress* progress) const {
  LmdbSource spec = *this;
  for (std::string& each : spec.files.patterns) {
    if (!IsFolder(each, *progress->access)) continue;
    each += each.ends_with('/') ? "data.mdb" : "/data.mdb";
  }
  bool has_pattern = features.empty();
  for (RecordFeature& each : spec.features) {
    const bool is_name = each.key_or_name() == kSampleName;
    if (each.key.empty()) each.key = is_name ? kSampleName : "*";
    if (is_name) continue;
    has_pattern = true;
    if (std::count(each.key.begin(), each.key.end(), '*') == 1) continue;
    return InvalidArgumentError(
        "lmdb: feature '{}': key '{}' wants one *, as in \"image-*\"",
        each.feature.name, Printable(each.key));
  }
  if (!has_pattern) {
    return InvalidArgumentError(
        "lmdb: {} is the name of a sample, whose keys another feature has",
        kSampleName);
  }
  PENSTOCK_ASSIGN_OR_RETURN(DataFiles found,
                            DataFiles::Open(spec.files, *progress));
  if (features.empty()) return AskFeaturesError(spec, found[0], progress);
  PENSTOCK_ASSIGN_OR_RETURN(
      Index index,
      Index::Open(std::move(found),
                  {.kind = "lmdb",
                   .options = OptionsOf(spec),
                   .places = static_cast<uint32_t>(features.size()),
                   .scan =
                       [&spec](ScannedFile* file, RecordSink* records) {
                         return LmdbScan(spec, file, records).Run();
                       }},
                  progress));
  PENSTOCK_RETURN_IF_ERROR(CheckNotPickled(features, index, progress));
  PENSTOCK_RETURN_IF_ERROR(index.ChooseIo(io));
  return std::unique_ptr<Source>(new SourceOfMembers(
      "key", spec.features, std::vector<bool>(features.size()),
      std::move(index)));
}

}  // namespace penstock
