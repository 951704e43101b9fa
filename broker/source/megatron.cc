// Record i is sample i of Megatron's dataset, behind its shuffles: a job that
// goes on at row n goes on where Megatron has consumed n samples. Without a
// sequence_length it is document i of the file.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "broker/declare/declaration.h"
#include "broker/index/fingerprint.h"
#include "broker/index/in_parallel.h"
#include "broker/index/values.h"
#include "broker/io/read.h"
#include "broker/source/kinds.h"
#include "broker/source/megatron_cache.h"
#include "broker/source/megatron_index.h"
#include "broker/source/megatron_samples.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little);

using MegatronFeature = MegatronSource::Feature;
using MegatronOrder = MegatronSource::Order;

// With the last label.
constexpr uint64_t kMegatronLengthMax = kRecordBytesMax / sizeof(int64_t) - 1;
// What Megatron takes where its tokenizer has no token for it.
constexpr int64_t kMegatronPad = -1;
constexpr std::pair<std::string_view, MegatronSource::Use> kMegatronUses[] = {
    {"train", MegatronSource::Use::kTrain},
    {"valid", MegatronSource::Use::kValid},
    {"test", MegatronSource::Use::kTest}};
constexpr std::pair<std::string_view, MegatronFeature> kMegatronFeatures[] = {
    {"tokens", MegatronFeature::kTokens},
    {"labels", MegatronFeature::kLabels},
    {"loss_mask", MegatronFeature::kLossMask},
    {"position_ids", MegatronFeature::kPositionIds},
    {"dataset_id", MegatronFeature::kDatasetId}};

template <typename Pairs>
auto WordsOf(const Pairs& pairs) {
  return Words(std::vector(std::begin(pairs), std::end(pairs)));
}

bool HasDocuments(const MegatronSource& spec) {
  return spec.sequence_length == 0;
}

using Token = MegatronIndex::Token;

// As int64.
template <typename T>
void WidenEach(std::span<const std::byte> from, int64_t* to) {
  for (size_t i = 0; i < from.size() / sizeof(T); ++i) {
    to[i] = static_cast<int64_t>(ValueAt<T>(&from[i * sizeof(T)]));
  }
}
void Widen(Token token, std::span<const std::byte> from, int64_t* to) {
  switch (token) {
    case Token::kUint8:
      return WidenEach<uint8_t>(from, to);
    case Token::kInt8:
      return WidenEach<int8_t>(from, to);
    case Token::kInt16:
      return WidenEach<int16_t>(from, to);
    case Token::kUint16:
      return WidenEach<uint16_t>(from, to);
    case Token::kInt32:
      return WidenEach<int32_t>(from, to);
    case Token::kInt64:
      return WidenEach<int64_t>(from, to);
    case Token::kFloat32:
    case Token::kFloat64:
      return;  // refused when it was opened
  }
}

MegatronRules RulesOf(const MegatronSource& spec,
                      std::optional<uint64_t> samples) {
  return {
      .sequence_length = static_cast<uint32_t>(spec.sequence_length),
      .extra_token = spec.extra_token,
      .pads_last = spec.last_partial == MegatronSource::LastPartial::kPad,
      .seed = static_cast<uint32_t>(spec.seed.value_or(MegatronSource::kSeed)),
      .samples = samples};
}

// The features of a row, made of the tokens that were read.
class MegatronRow {
 public:
  // longest: of the documents, where rows are these.
  MegatronRow(const MegatronSource& spec, uint64_t longest)
      : spec_(spec),
        length_(HasDocuments(spec) ? longest : spec.sequence_length) {}

  ElementSpec Features() const {
    const std::vector<int64_t> shape = {static_cast<int64_t>(length_)};
    ElementSpec features;
    if (HasDocuments(spec_)) {
      features.push_back({"tokens", DType::kInt64, shape});
      features.push_back({"tokens.length", DType::kInt64, {}});
      return features;
    }
    for (const MegatronFeature each : spec_.features) {
      Feature& feature = features.emplace_back();
      for (const auto& [name, same] : kMegatronFeatures) {
        if (same == each) feature.name = name;
      }
      feature.dtype = DType::kInt64;
      feature.shape = shape;
      if (each == MegatronFeature::kLossMask) feature.dtype = DType::kFloat32;
      if (each == MegatronFeature::kDatasetId) {
        feature.dtype = DType::kInt16;
        feature.shape = {};
      }
    }
    return features;
  }

  // An error names the token that is too large.
  Status Unpack(Token token, uint64_t token_bytes, const int16_t* dataset_id,
                std::span<const std::byte> read,
                std::vector<std::byte>* scratch, RawRecord* raw) const {
    // One token more than a row: the last label, or how many there are.
    scratch->resize((2 * length_ + 1) * sizeof(int64_t) +
                    length_ * sizeof(float));
    auto* const tokens = reinterpret_cast<int64_t*>(scratch->data());
    int64_t* const positions = tokens + length_ + 1;
    auto* const mask = reinterpret_cast<float*>(positions + length_);
    const uint64_t count = read.size() / token_bytes;
    const uint64_t most = length_ + (HasDocuments(spec_) ? 0 : 1);
    if (count > most) {
      return DataLossError("{} tokens; wanted {}", count, most);
    }
    Widen(token, read, tokens);
    if (spec_.vocab_size) {
      for (uint64_t i = 0; i < count; ++i) {
        if (tokens[i] >= 0 && tokens[i] < *spec_.vocab_size) continue;
        return DataLossError("token {} of the sample is {}; vocab_size is {}",
                             i, tokens[i], *spec_.vocab_size);
      }
    }
    if (HasDocuments(spec_)) {
      std::fill(tokens + count, tokens + length_, 0);
      tokens[length_] = static_cast<int64_t>(count);
      *raw = {std::as_bytes(std::span(tokens, length_)),
              std::as_bytes(std::span(tokens + length_, 1))};
      return OkStatus();
    }
    const int64_t pad = spec_.pad.value_or(kMegatronPad);
    std::fill(tokens + count, tokens + length_ + 1, pad);
    raw->clear();
    for (const MegatronFeature each : spec_.features) {
      switch (each) {
        case MegatronFeature::kTokens:
          raw->push_back(std::as_bytes(std::span(tokens, length_)));
          break;
        case MegatronFeature::kLabels:
          raw->push_back(std::as_bytes(std::span(tokens + 1, length_)));
          break;
        case MegatronFeature::kLossMask:
          FillMask(tokens, pad, mask);
          raw->push_back(std::as_bytes(std::span(mask, length_)));
          break;
        case MegatronFeature::kPositionIds:
          FillPositions(tokens, positions);
          raw->push_back(std::as_bytes(std::span(positions, length_)));
          break;
        case MegatronFeature::kDatasetId:
          raw->push_back(std::as_bytes(std::span(dataset_id, 1)));
          break;
      }
    }
    // Last: the masks go by it. A model has no embedding of it.
    std::replace(tokens, tokens + length_ + 1, pad, int64_t{0});
    return OkStatus();
  }

 private:
  void FillMask(const int64_t* tokens, int64_t pad, float* mask) const {
    for (uint64_t i = 0; i < length_; ++i) {
      const bool masked =
          tokens[i + 1] == pad || tokens[i] == spec_.eod_mask_loss;
      mask[i] = masked ? 0.0f : 1.0f;
    }
  }
  void FillPositions(const int64_t* tokens, int64_t* positions) const {
    int64_t position = 0;
    for (uint64_t i = 0; i < length_; ++i) {
      positions[i] = position++;
      if (tokens[i] == spec_.reset_position_ids) position = 0;
    }
  }

  const MegatronSource spec_;
  const uint64_t length_;
};

// A part of a blend, or all there is.
struct MegatronPart {
  size_t index = 0;  // which of the files
  MegatronRange range;
  std::unique_ptr<MegatronSamples> samples;
  int16_t id = 0;
};

using MegatronIndices = std::vector<std::unique_ptr<MegatronIndex>>;

class Megatron final : public Source {
 public:
  Megatron(const MegatronSource& spec, MegatronIndices indices,
           std::vector<MegatronPart> parts, std::optional<MegatronBlend> blend,
           std::vector<DataFile> cache_files, uint64_t longest)
      : spec_(spec),
        row_(spec, longest),
        raw_spec_(RawSpecOf(row_.Features())),
        indices_(std::move(indices)),
        parts_(std::move(parts)),
        blend_(std::move(blend)),
        cache_files_(std::move(cache_files)) {}

  uint64_t record_count() const override {
    return blend_ ? blend_->size() : parts_[0].samples->size();
  }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  uint64_t memory_bytes() const override {
    uint64_t bytes = 0;
    for (const auto& each : indices_) bytes += each->memory_bytes();
    for (const MegatronPart& each : parts_) {
      bytes += each.samples->memory_bytes();
    }
    return bytes + (blend_ ? blend_->memory_bytes() : 0);
  }
  bool Changed() const override {
    return AnyFile([](const DataFile& file) { return file.Changed(); });
  }
  void AddTimes(Fingerprint* to) const override {
    AnyFile([to](const DataFile& file) {
      file.AddTime(to);
      return false;
    });
  }
  void ListFiles(const FileVisit& visit) const override {
    for (const auto& each : indices_) {
      for (const DataFile* file : {&each->idx(), &each->bin()}) {
        const std::string_view path = file->path();
        visit(path.substr(path.rfind('/') + 1), file->bytes());
      }
    }
  }
  std::string io() const override { return IoText(indices_[0]->bin().align()); }
  std::string fingerprint() const override {
    Fingerprint fingerprint("megatron");
    for (const auto& each : indices_) {
      const std::string& path = each->idx().path();
      fingerprint.Add(std::string_view(path).substr(path.rfind('/') + 1));
      fingerprint.Add(each->idx().bytes());
      fingerprint.Add(each->bin().bytes());
      fingerprint.Add(each->tokens());
    }
    for (const MegatronPart& each : parts_) {
      for (const uint64_t number : {uint64_t{each.index}, each.range.begin,
                                    each.range.end, each.samples->size()}) {
        fingerprint.Add(number);
      }
    }
    fingerprint.Add(record_count());
    const MegatronRules rules = RulesOf(spec_, std::nullopt);
    for (const uint64_t number :
         {static_cast<uint64_t>(spec_.order), rules.sample_tokens(),
          uint64_t{rules.sequence_length}, uint64_t{rules.seed}}) {
      fingerprint.Add(number);
    }
    for (const MegatronSource::Part& each : spec_.blend) {
      fingerprint.Add(std::bit_cast<uint64_t>(each.weight.value_or(0)));
    }
    return fingerprint.Hex();
  }

  void Locate(uint64_t record, ReadRequest* request) const override {
    PartAt(record).samples->Locate(SampleOf(record), request);
  }
  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    const MegatronPart& part = PartAt(record);
    const MegatronIndex& index = *indices_[part.index];
    const Status status = row_.Unpack(index.token(), index.token_bytes(),
                                      &part.id, read.bytes, scratch, raw);
    return status.ok() ? status : status.Prepend(Describe(record));
  }
  bool KnownNumber(uint64_t record, size_t feature,
                   std::byte* number) const override {
    if (HasDocuments(spec_)) {
      if (feature != 1) return false;
      const MegatronPart& part = parts_[0];
      const uint64_t length =
          indices_[part.index]->LengthOf(part.range.begin + record);
      std::memcpy(number, &length, sizeof(length));
      return true;
    }
    if (spec_.features[feature] != MegatronFeature::kDatasetId) return false;
    std::memcpy(number, &PartAt(record).id, sizeof(int16_t));
    return true;
  }

  std::string_view FileOf(uint64_t record) const override {
    return indices_[PartAt(record).index]->bin().path();
  }
  std::string Describe(uint64_t record) const override {
    const MegatronPart& part = PartAt(record);
    ReadRequest request;
    Locate(record, &request);
    return Format(
        "{}, {} {} (offset {})", FileOf(record),
        HasDocuments(spec_) ? "document" : "sample",
        SampleOf(record) + (HasDocuments(spec_) ? part.range.begin : 0),
        request.offset);
  }

 private:
  const MegatronPart& PartAt(uint64_t record) const {
    return parts_[blend_ ? blend_->PartOf(record) : 0];
  }
  uint64_t SampleOf(uint64_t record) const {
    return blend_ ? blend_->SampleOf(record) : record;
  }
  template <typename F>
  bool AnyFile(const F& is_such) const {
    return std::any_of(indices_.begin(), indices_.end(),
                       [&](const std::unique_ptr<MegatronIndex>& each) {
                         return is_such(each->idx()) || is_such(each->bin());
                       }) ||
           std::any_of(cache_files_.begin(), cache_files_.end(), is_such);
  }

  const MegatronSource spec_;
  const MegatronRow row_;
  const RawSpec raw_spec_;
  const MegatronIndices indices_;
  const std::vector<MegatronPart> parts_;
  const std::optional<MegatronBlend> blend_;
  const std::vector<DataFile> cache_files_;
};

// ---- opening

class MegatronOpening {
 public:
  MegatronOpening(const MegatronSource& spec, OpenProgress* progress)
      : spec_(spec), progress_(progress) {}

  OpenedSource Run() {
    PENSTOCK_RETURN_IF_ERROR(ListParts());
    PENSTOCK_RETURN_IF_ERROR(OpenIndices());
    if (!spec_.cache.empty()) {
      PENSTOCK_ASSIGN_OR_RETURN(MegatronCache opened,
                                MegatronCache::Open(spec_.cache, progress_));
      cache_.emplace(std::move(opened));
    }
    PENSTOCK_RETURN_IF_ERROR(FindRanges());
    PENSTOCK_RETURN_IF_ERROR(MakeSamples());
    std::optional<MegatronBlend> blend;
    if (is_blend_) {
      PENSTOCK_ASSIGN_OR_RETURN(MegatronBlend made, MakeBlend());
      blend.emplace(std::move(made));
    }
    PENSTOCK_RETURN_IF_ERROR(ChooseIo());
    return std::unique_ptr<Source>(new Megatron(
        spec_, std::move(indices_), std::move(parts_), std::move(blend),
        cache_ ? cache_->TakeFiles() : std::vector<DataFile>(), longest_));
  }

 private:
  // What is wanted of each part, and which files have it. Parts of one prefix
  // share them.
  Status ListParts() {
    std::vector<MegatronSource::Part> listed = spec_.blend;
    if (listed.empty()) listed.push_back({std::nullopt, spec_.prefix});
    is_weighted_ = listed[0].weight.has_value();
    // Megatron blends one dataset with a weight, unless each split has a list
    // of its own.
    is_blend_ = listed.size() > 1 || (is_weighted_ && spec_.split);
    std::vector<double> given;
    for (const MegatronSource::Part& each : listed) {
      given.push_back(each.weight.value_or(1));
    }
    weights_ = NormalizedAsMegatron(given);
    std::map<std::string, size_t> known;
    for (size_t i = 0; i < listed.size(); ++i) {
      const auto [at, added] = known.insert({listed[i].prefix, known.size()});
      if (added) prefixes_.push_back(listed[i].prefix);
      MegatronPart& part = parts_.emplace_back();
      part.index = at->second;
      part.id = static_cast<int16_t>(i);
      std::optional<uint64_t>& wanted = wanted_.emplace_back();
      if (!is_blend_) {
        wanted = spec_.samples;
      } else if (is_weighted_) {
        wanted = MegatronShare(weights_[i], *spec_.samples, Surplus());
      }
    }
    return OkStatus();
  }
  double Surplus() const {
    return spec_.surplus.value_or(MegatronSource::kSurplus);
  }

  Status OpenIndices() {
    indices_.resize(prefixes_.size());
    return InParallel(prefixes_.size(), [this](size_t i) -> Status {
      PENSTOCK_ASSIGN_OR_RETURN(MegatronIndex opened,
                                MegatronIndex::Open(prefixes_[i], progress_));
      indices_[i] = std::make_unique<MegatronIndex>(std::move(opened));
      return spec_.order == MegatronOrder::kPenstock && !HasDocuments(spec_)
                 ? OkStatus()
                 : indices_[i]->Keep(progress_);
    });
  }

  Status FindRanges() {
    std::pair<double, double> share = {0.0, 1.0};
    if (spec_.split) {
      PENSTOCK_ASSIGN_OR_RETURN(shares_.emplace(),
                                ParseMegatronSplit(*spec_.split));
      share = (*shares_)[static_cast<size_t>(spec_.use)].value_or(
          std::pair(0.0, 0.0));
    }
    for (MegatronPart& part : parts_) {
      const MegatronIndex& index = *indices_[part.index];
      part.range = MegatronRange::Of(share, index.documents());
      if (part.range.begin < part.range.end) continue;
      return InvalidArgumentError(
          "megatron: `split: {}` gives `use: {}` none of the {} sequences of "
          "{}",
          spec_.split.value_or(""), UseName(), index.documents(),
          index.idx().path());
    }
    return OkStatus();
  }
  std::string UseName() const {
    return std::string(kMegatronUses[static_cast<size_t>(spec_.use)].first);
  }

  MegatronDatasetFields FieldsOf(size_t part) const {
    return {.dataset_path = prefixes_[parts_[part].index],
            .num_samples = wanted_[part],
            .index_split = UseName(),
            .random_seed = spec_.seed.value_or(MegatronSource::kSeed),
            .sequence_length = spec_.sequence_length,
            .split_matrix = shares_};
  }

  Status TakeDocuments() {
    MegatronPart& part = parts_[0];
    const MegatronIndex& index = *indices_[part.index];
    for (uint64_t i = part.range.begin; i < part.range.end; ++i) {
      longest_ = std::max(longest_, index.LengthOf(i));
    }
    if (longest_ > kMegatronLengthMax) {
      return InvalidArgumentError("{}: a document has {} tokens; at most {}",
                                  index.idx().path(), longest_,
                                  kMegatronLengthMax);
    }
    part.samples = MegatronDocuments(&index, part.range);
    return OkStatus();
  }

  Status MakeSamples() {
    if (HasDocuments(spec_)) return TakeDocuments();
    if (cache_) {
      for (size_t i = 0; i < parts_.size(); ++i) {
        MegatronPart& part = parts_[i];
        const MegatronIndex& index = *indices_[part.index];
        const MegatronRules rules = RulesOf(spec_, wanted_[i]);
        PENSTOCK_ASSIGN_OR_RETURN(MegatronArrays arrays,
                                  cache_->Load(FieldsOf(i).Description(), index,
                                               part.range, rules, progress_));
        part.samples = MegatronSamplesOf(&index, rules, std::move(arrays));
      }
      return OkStatus();
    }
    return InParallel(parts_.size(), [this](size_t i) -> Status {
      MegatronPart& part = parts_[i];
      MegatronIndex* const index = indices_[part.index].get();
      const MegatronRules rules = RulesOf(spec_, wanted_[i]);
      if (spec_.order == MegatronOrder::kPenstock) {
        PENSTOCK_ASSIGN_OR_RETURN(
            part.samples, MegatronWindows(index, part.range, rules, progress_));
        return OkStatus();
      }
      PENSTOCK_ASSIGN_OR_RETURN(
          MegatronArrays arrays,
          BuildMegatronArrays(*index, part.range, rules, progress_));
      part.samples = MegatronSamplesOf(index, rules, std::move(arrays));
      return OkStatus();
    });
  }

  StatusOr<MegatronBlend> MakeBlend() {
    std::vector<uint64_t> sizes;
    uint64_t all = 0;
    for (const MegatronPart& each : parts_) {
      all += sizes.emplace_back(each.samples->size());
    }
    std::vector<double> weights = weights_;
    std::optional<uint64_t> size = spec_.samples;
    if (is_weighted_) {
      size = 0;
      for (const double weight : weights) {
        *size += MegatronShare(weight, *spec_.samples, 0);
      }
    } else {
      weights.assign(sizes.begin(), sizes.end());
      if (size) size = std::min(*size, all);
    }
    if (cache_) return LoadBlend(sizes, weights, size, size.value_or(all));
    StatusOr<MegatronBlend> blend =
        size ? MegatronBlend::InProportion(weights, *size, progress_)
             : MegatronBlend::OfAll(sizes, progress_);
    if (!blend.ok()) return blend.status().Prepend("megatron.blend");
    PENSTOCK_RETURN_IF_ERROR(CheckEnough(*blend, sizes));
    return blend;
  }

  StatusOr<MegatronBlend> LoadBlend(const std::vector<uint64_t>& sizes,
                                    const std::vector<double>& weights,
                                    std::optional<uint64_t> size,
                                    uint64_t count) {
    std::vector<MegatronDatasetFields> fields;
    for (size_t i = 0; i < parts_.size(); ++i) fields.push_back(FieldsOf(i));
    return cache_->LoadBlend(
        MegatronBlendDescription(fields, UseName(),
                                 size ? NormalizedAsMegatron(weights) : weights,
                                 size),
        count, sizes, progress_);
  }

  // A part may come more often than the surplus foresees.
  Status CheckEnough(const MegatronBlend& blend,
                     const std::vector<uint64_t>& sizes) const {
    const std::vector<uint64_t>& taken = blend.taken();
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (taken[i] <= sizes[i]) continue;
      return InvalidArgumentError(
          "megatron.blend[{}]: {} samples are taken, but {} has {}; a larger "
          "`surplus` ({:g}) makes more, as Megatron's "
          "mid_level_dataset_surplus",
          i, taken[i], prefixes_[parts_[i].index], sizes[i], Surplus());
    }
    return OkStatus();
  }

  Status ChooseIo() {
    uint64_t total = 0;
    for (const auto& each : indices_) total += each->bin().bytes();
    for (const auto& each : indices_) {
      // Pieces of documents are read where these come in another order.
      const uint64_t sample = (spec_.sequence_length + 1) * each->token_bytes();
      const uint64_t document = each->bin().bytes() / each->documents();
      if (HasDocuments(spec_)) {
        PENSTOCK_RETURN_IF_ERROR(
            each->mutable_bin()->ChooseIo(spec_.io, total, document));
        continue;
      }
      PENSTOCK_RETURN_IF_ERROR(
          each->mutable_bin()->ChooseIo(spec_.io, total,
                                        spec_.order == MegatronOrder::kPenstock
                                            ? sample
                                            : std::min(sample, document)));
    }
    return OkStatus();
  }

  const MegatronSource& spec_;
  OpenProgress* const progress_;
  bool is_weighted_ = false;
  bool is_blend_ = false;
  uint64_t longest_ = 1;  // of documents
  std::vector<double> weights_;
  std::vector<std::string> prefixes_;  // of the indices
  MegatronIndices indices_;
  std::vector<MegatronPart> parts_;
  std::vector<std::optional<uint64_t>> wanted_;  // of each part
  std::optional<MegatronShares> shares_;
  std::optional<MegatronCache> cache_;
};

// ---- the spec

ValueType<MegatronSource::Part> MegatronPartType() {
  const ValueType<std::string> path = PathOrAddress();
  const ValueType<double> weight = Number(0, 1e300);
  return {"a prefix, or [weight, prefix]",
          [path, weight](const YamlValue& value, std::string_view wanted,
                         MegatronSource::Part* out) {
            if (value.IsScalar()) return path.Read(value, &out->prefix);
            PENSTOCK_RETURN_IF_ERROR(value.CheckSequence(2, 2, wanted));
            PENSTOCK_RETURN_IF_ERROR(
                weight.Read(value.Item(0), &out->weight.emplace()));
            return path.Read(value.Item(1), &out->prefix);
          },
          [path, weight](const MegatronSource::Part& part, auto* out) {
            if (!part.weight) return path.write(part.prefix, out);
            WriteList(
                2,
                [&](size_t i, auto* each) {
                  i == 0 ? weight.write(*part.weight, each)
                         : path.write(part.prefix, each);
                },
                out);
          }};
}

Status CheckMegatronBlend(const YamlValue& value,
                          const MegatronSource& megatron) {
  const YamlValue blend = value.Required("blend");
  for (size_t i = 0; i < megatron.blend.size(); ++i) {
    const std::optional<double>& weight = megatron.blend[i].weight;
    if (weight.has_value() != megatron.blend[0].weight.has_value()) {
      return blend.Item(i).Error(
          "give each prefix a weight, or none: [[0.7, a], [0.3, b]] or [a, b]");
    }
    if (weight && *weight == 0) {
      return blend.Item(i).Error(
          "weight 0: leave the dataset out; Megatron refuses it, too");
    }
  }
  if (megatron.blend[0].weight && !megatron.samples) {
    return value.Required("samples").Error(
        "is missing: how many samples the weights divide (train_iters * "
        "global_batch_size)");
  }
  return OkStatus();
}

// Without sequence_length.
Status CheckMegatronDocuments(const YamlValue& value,
                              const MegatronSource& megatron) {
  const MegatronSource plain;
  for (const auto& [key, differs] :
       {std::pair("blend", !megatron.blend.empty()),
        std::pair("samples", megatron.samples.has_value()),
        std::pair("order", megatron.order != plain.order),
        std::pair("seed", megatron.seed.has_value()),
        std::pair("cache", !megatron.cache.empty()),
        std::pair("features", megatron.features != plain.features),
        std::pair("gpt_config", value.Optional("gpt_config").present())}) {
    if (!differs) continue;
    return value.Required(key).Error(
        "is of samples: give their `sequence_length`; without one, rows are "
        "documents");
  }
  return OkStatus();
}

Status CheckMegatron(const YamlValue& value, MegatronSource* megatron) {
  PENSTOCK_RETURN_IF_ERROR(value.OneOf({"prefix", "blend"}).status());
  if (HasDocuments(*megatron)) {
    PENSTOCK_RETURN_IF_ERROR(CheckMegatronDocuments(value, *megatron));
  }
  if (megatron->split) {
    const auto shares = ParseMegatronSplit(*megatron->split);
    if (!shares.ok()) {
      return value.Required("split").Error(shares.status().message());
    }
  }
  if (megatron->last_partial == MegatronSource::LastPartial::kPad &&
      megatron->order != MegatronOrder::kPenstock &&
      megatron->use != MegatronSource::Use::kValid) {
    return value.Required("gpt_config")
        .Required("last_partial")
        .Error("Megatron pads only that of `use: valid`");
  }
  if (megatron->order == MegatronOrder::kPenstock) {
    for (const char* const key : {"samples", "seed", "cache"}) {
      if (!value.Optional(key).present()) continue;
      return value.Required(key).Error(
          Format("`order: penstock` has one pass over the documents, for "
                 "`shuffle` and `epochs`: leave `{}` out",
                 key));
    }
    if (!megatron->blend.empty()) {
      return value.Required("blend").Error(
          "with `order: penstock`, make a `mix` of a megatron for each prefix");
    }
  }
  if (!megatron->blend.empty()) {
    PENSTOCK_RETURN_IF_ERROR(CheckMegatronBlend(value, *megatron));
  }
  const auto& features = megatron->features;
  for (size_t i = 0; i < features.size(); ++i) {
    if (std::count(features.begin(), features.end(), features[i]) == 1) {
      continue;
    }
    return value.Required("features").Error("a feature comes twice");
  }
  return OkStatus();
}

ValueType<std::optional<int64_t>> MegatronTokenType() {
  ValueType<int64_t> token = WholeNumber<int64_t>(0, INT32_MAX);
  token.wanted = "a token's number";
  return Maybe(std::move(token));
}

// The keys of a mapping in the source's, which few specs have.
const Declaration<MegatronSource>& MegatronConfig() {
  using LastPartial = MegatronSource::LastPartial;
  static const auto declared =
      Declaration<MegatronSource>(
          "gpt_config",
          "What Megatron's GPTDatasetConfig and tokenizer say besides.")
          .Example("{eod_mask_loss: 50256, pad: 50257}")
          .Optional(
              "extra_token", &MegatronSource::extra_token,
              LeftOutAt(true, Bool()),
              "add_extra_token_to_sequence: the last label is a token; by "
              "default true")
          .Optional("last_partial", &MegatronSource::last_partial,
                    LeftOutAt(LastPartial::kDrop,
                              Words<LastPartial>({{"drop", LastPartial::kDrop},
                                                  {"pad", LastPartial::kPad}})),
                    "by default drop, a last sample of fewer tokens; pad: of "
                    "valid, where "
                    "drop_last_partial_validation_sequence is False")
          .Optional("surplus", &MegatronSource::surplus, Maybe(Number(0, 1000)),
                    "mid_level_dataset_surplus, the share of samples that each "
                    "part of a blend has to spare; by default 0.005")
          .Optional("pad", &MegatronSource::pad, MegatronTokenType(),
                    "the tokenizer's; tokens and labels have 0 for it, and "
                    "such a label has no loss")
          .Optional("eod_mask_loss", &MegatronSource::eod_mask_loss,
                    MegatronTokenType(), "the token at which there is no loss")
          .Optional("reset_position_ids", &MegatronSource::reset_position_ids,
                    MegatronTokenType(),
                    "the token behind which positions begin again");
  return declared;
}

// They lie in the source's own struct.
DeclarationBase::Field MegatronConfigField() {
  const DeclarationBase& config = MegatronConfig();
  return {.key = config.name(),
          .text = "what is seldom said",
          .wanted = config.Wanted(),
          .type = {[&config](const YamlValue& value, void* out) {
                     return config.Read(value, config.Wanted(), out);
                   },
                   [&config](const void* value, nlohmann::ordered_json* out) {
                     nlohmann::ordered_json keys;
                     config.Write(value, &keys);
                     if (!keys.empty()) *out = std::move(keys);
                   }},
          .offset = 0,
          .parts = {&config}};
}

}  // namespace

const Declaration<MegatronSource>& MegatronSource::Declared() {
  static const auto declared =
      Declaration<MegatronSource>(
          "megatron",
          "Samples of Megatron's GPTDataset and BlendedDataset, from its .bin "
          "and .idx files.")
          .Gives(
              "tokens, labels int64 [sequence_length], or `features`; or "
              "documents")
          .Example(
              "{prefix: /data/c4_text, split: '969,30,1', "
              "sequence_length: 4096, samples: 1000000}")
          .Optional("prefix", &MegatronSource::prefix, MaybePathOrAddress(),
                    "of a .bin and an .idx file, without these")
          .Optional("blend", &MegatronSource::blend,
                    LeftOutAt({}, List(MegatronPartType(), 1,
                                       MegatronBlend::kPartsMax,
                                       "a list of prefixes, or of [weight, "
                                       "prefix]")),
                    "instead; without weights, by their samples")
          .Optional(
              "sequence_length", &MegatronSource::sequence_length,
              LeftOutAt(uint64_t{0},
                        WholeNumber<uint64_t>(1, kMegatronLengthMax)),
              "tokens of a row; absent: rows are documents, for batch.pack")
          .Optional(
              "samples", &MegatronSource::samples,
              Maybe(WholeNumber<uint64_t>(1, MegatronArrays::kSamplesMax)),
              "train_iters * global_batch_size; by default one pass")
          .Optional(
              "split", &MegatronSource::split,
              Maybe(Text("such as '969,30,1'",
                         [](std::string_view text) { return !text.empty(); })),
              "shares of train, valid, test; by default all is used")
          .Optional("use", &MegatronSource::use, WordsOf(kMegatronUses),
                    "which share")
          .Optional("order", &MegatronSource::order,
                    Words<Order>({{"megatron", Order::kMegatron},
                                  {"cyclic", Order::kCyclic},
                                  {"cyclic_unsharded", Order::kCyclicUnsharded},
                                  {"penstock", Order::kPenstock}}),
                    "row n is Megatron's sample n; its sampler `cyclic` (with "
                    "--no-data-sharding); or windows as they lie in the file, "
                    "of one pass, for `shuffle`: nothing is built")
          .Optional("seed", &MegatronSource::seed,
                    Maybe(WholeNumber<uint64_t>(0, UINT32_MAX)),
                    "Megatron's; by default 1234")
          .Optional("cache", &MegatronSource::cache, LeftOutAt({}, MaybePath()),
                    "Megatron's path_to_cache, for the indices that lie there")
          .Optional(
              "features", &MegatronSource::features,
              List(WordsOf(kMegatronFeatures), 1, std::size(kMegatronFeatures),
                   "a list of tokens, labels, loss_mask, position_ids, "
                   "dataset_id"),
              "of a row")
          .Optional("vocab_size", &MegatronSource::vocab_size,
                    Maybe(WholeNumber<int64_t>(1, INT32_MAX)),
                    "a token outside is an error of its sample")
          .Add(MegatronConfigField())
          .Optional("io", &MegatronSource::io, IoType(), kIoText)
          .Check(CheckMegatron);
  return declared;
}

OpenedSource MegatronSource::Open(OpenProgress* progress) const {
  return MegatronOpening(*this, progress).Run();
}

}  // namespace penstock
