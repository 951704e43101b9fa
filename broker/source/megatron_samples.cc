#include "broker/source/megatron_samples.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "broker/index/values.h"
#include "common/exact_max.h"

namespace penstock {
namespace {

constexpr uint64_t kCheckEach = uint64_t{1} << 20;
// Reads of memory that are under way: a random one takes as long as so many
// steps.
constexpr uint64_t kAhead = 32;
// About so many documents lie between two samples whose beginning is kept.
constexpr uint64_t kDocumentsApart = 8;
// Rows of a block of a blend, at least, and for each part.
constexpr uint64_t kBlendBlock = 16;
constexpr uint64_t kBlendBlockOfPart = 4;

// Fills a request with pieces of a file; those that touch are one.
class PieceSink {
 public:
  PieceSink(const MegatronIndex& index, ReadRequest* request)
      : index_(index), request_(request) {
    index_.bin().Locate(0, 0, request_);
  }
  // Tokens of a document, from this one on.
  void Add(uint64_t document, uint64_t offset, uint64_t tokens) {
    AddBytes(index_.ByteOf(document) + offset * index_.token_bytes(),
             tokens * index_.token_bytes());
  }
  void AddBytes(uint64_t at, uint64_t bytes) {
    if (bytes == 0) return;
    ReadPart* const last =
        request_->more.empty() ? request_ : &request_->more.back();
    if (last->bytes == 0) {
      index_.bin().Locate(at, bytes, last);
    } else if (last->offset + last->bytes == at) {
      index_.bin().Locate(last->offset, last->bytes + bytes, last);
    } else {
      index_.bin().Locate(at, bytes, &request_->more.emplace_back());
    }
  }

 private:
  const MegatronIndex& index_;
  ReadRequest* const request_;
};

// ---- numpy.random.RandomState

// Its `shuffle` of an array: the draws do not depend on what lies in it, so
// they run ahead of the swaps, whose places are then in the caches.
template <typename T>
Status ShuffleAsNumpy(std::span<T> values, std::mt19937* random,
                      OpenProgress* progress) {
  std::array<uint64_t, kAhead> places;
  for (uint64_t i = values.size(); i-- > 1;) {
    if (i % kCheckEach < kAhead) {
      PENSTOCK_RETURN_IF_ERROR(progress->CheckCancelled("shuffling"));
    }
    const uint64_t count = std::min(kAhead, i);
    for (uint64_t k = 0; k < count; ++k) {
      // random_interval: of as many bits as the greatest, until one fits.
      const uint64_t greatest = i - k;
      const uint64_t mask =
          UINT64_MAX >>
          __builtin_clzll(static_cast<unsigned long long>(greatest));
      do {
        uint64_t drawn = (*random)();
        if (greatest > UINT32_MAX) drawn = drawn << 32 | (*random)();
        places[k] = drawn & mask;
      } while (places[k] > greatest);
      __builtin_prefetch(&values[places[k]], 1);
    }
    for (uint64_t k = 0; k < count; ++k) {
      std::swap(values[i - k], values[places[k]]);
    }
    i -= count - 1;
  }
  return OkStatus();
}

// The numbers from first on, shuffled.
Status FillShuffled(std::span<uint32_t> into, uint64_t first,
                    std::mt19937* random, OpenProgress* progress) {
  for (uint64_t i = 0; i < into.size(); ++i) {
    into[i] = static_cast<uint32_t>(first + i);
  }
  return ShuffleAsNumpy(into, random, progress);
}

// ---- the documents as they lie in the file

class StraightWindows : public MegatronSamples {
 public:
  StraightWindows(const MegatronIndex* index, const MegatronRules& rules,
                  uint64_t tokens, uint64_t size, uint64_t byte)
      : index_(*index), rules_(rules), tokens_(tokens), byte_(byte) {
    size_ = size;
  }
  void Locate(uint64_t sample, ReadRequest* request) const override {
    const uint64_t bytes = index_.token_bytes();
    const uint64_t begin = BeginOf(sample);
    PieceSink(index_, request)
        .AddBytes(byte_ + begin * bytes, (EndOf(begin) - begin) * bytes);
  }

 protected:
  uint64_t BeginOf(uint64_t sample) const {
    return std::min(sample * rules_.sequence_length, tokens_);
  }
  uint64_t EndOf(uint64_t begin) const {
    return std::min(begin + rules_.sample_tokens(), tokens_);
  }

  const MegatronIndex& index_;
  const MegatronRules rules_;
  const uint64_t tokens_;
  const uint64_t byte_;  // where they begin
};

// The same of documents that do not follow each other.
class ScatteredWindows final : public StraightWindows {
 public:
  // first: the tokens before them in the file.
  ScatteredWindows(const MegatronIndex* index, const MegatronRules& rules,
                   uint64_t tokens, uint64_t size, uint64_t first)
      : StraightWindows(index, rules, tokens, size, 0), first_(first) {}

  void Locate(uint64_t sample, ReadRequest* request) const override {
    const uint64_t begin = first_ + BeginOf(sample);
    const uint64_t end = first_ + EndOf(begin - first_);
    PieceSink sink(index_, request);
    if (begin == end) return;
    ForEachPiece(begin, end, [&](uint64_t document, uint64_t at, uint64_t to) {
      sink.Add(document, at - index_.BeginOf(document), to - at);
    });
  }

  Status CheckPieces(OpenProgress* progress) const {
    for (uint64_t sample = 0; sample < size_; ++sample) {
      if (sample % kCheckEach == 0) {
        PENSTOCK_RETURN_IF_ERROR(progress->CheckCancelled(index_.idx().path()));
      }
      const uint64_t begin = first_ + BeginOf(sample);
      const uint64_t end = first_ + EndOf(begin - first_);
      if (begin == end) continue;
      const uint64_t pieces =
          index_.DocumentAt(end - 1) - index_.DocumentAt(begin) + 1;
      if (pieces > kMegatronPiecesMax) {
        return InvalidArgumentError(
            "{}: sample {} lies in {} documents; at most {}",
            index_.idx().path(), sample, pieces, kMegatronPiecesMax);
      }
    }
    return OkStatus();
  }

 private:
  template <typename F>
  void ForEachPiece(uint64_t begin, uint64_t end, const F& each) const {
    for (uint64_t document = index_.DocumentAt(begin); begin < end;
         ++document) {
      const uint64_t to = std::min(index_.BeginOf(document + 1), end);
      each(document, begin, to);
      begin = to;
    }
  }

  const uint64_t first_;
};

class Documents final : public MegatronSamples {
 public:
  Documents(const MegatronIndex* index, MegatronRange range)
      : index_(*index), first_(range.begin) {
    size_ = range.end - range.begin;
  }

  void Locate(uint64_t sample, ReadRequest* request) const override {
    PieceSink sink(index_, request);
    sink.Add(first_ + sample, 0, index_.LengthOf(first_ + sample));
  }

 private:
  const MegatronIndex& index_;
  const uint64_t first_;
};

// ---- Megatron's

class ShuffledSamples final : public MegatronSamples {
 public:
  ShuffledSamples(const MegatronIndex* index, const MegatronRules& rules,
                  MegatronArrays arrays)
      : index_(*index), rules_(rules), arrays_(std::move(arrays)) {
    size_ = arrays_.shuffled.size();
  }

  uint64_t memory_bytes() const override {
    return arrays_.documents.memory_bytes() + arrays_.begins.memory_bytes() +
           arrays_.shuffled.memory_bytes();
  }

  void Locate(uint64_t sample, ReadRequest* request) const override {
    const uint64_t number = arrays_.shuffled[sample];
    const uint64_t kept = arrays_.begins[number / arrays_.apart];
    // Tokens from the beginning of the document on.
    uint64_t offset = (kept & INT32_MAX) + BeginOf(number) -
                      BeginOf(number - number % arrays_.apart);
    uint64_t left = rules_.sample_tokens();
    PieceSink sink(index_, request);
    for (uint64_t at = kept >> 31; left > 0 && at < arrays_.documents.size();
         ++at) {
      const uint32_t document = arrays_.documents[at];
      const uint64_t length = index_.LengthOf(document);
      if (offset >= length) {
        offset -= length;
        continue;
      }
      const uint64_t tokens = std::min(length - offset, left);
      sink.Add(document, offset, tokens);
      left -= tokens;
      offset = 0;
    }
  }

 private:
  // In all tokens. Single precision may count samples behind the last token.
  uint64_t BeginOf(uint64_t number) const {
    return std::min(number * rules_.sequence_length,
                    arrays_.tokens - (rules_.extra_token ? 1 : 0));
  }

  const MegatronIndex& index_;
  const MegatronRules rules_;
  const MegatronArrays arrays_;
};

// How many samples `tokens` are.
uint64_t CountSamples(uint64_t tokens, const MegatronRules& rules) {
  const uint64_t spent = tokens - (rules.extra_token ? 1 : 0);
  if (!rules.pads_last) return spent / rules.sequence_length;
  // In single precision, as there.
  return static_cast<uint64_t>(std::ceil(
      static_cast<float>(static_cast<int64_t>(spent)) /
      static_cast<float>(static_cast<int32_t>(rules.sequence_length))));
}

Status NoSampleError(const MegatronIndex& index, MegatronRange range,
                     uint64_t tokens, const MegatronRules& rules) {
  return InvalidArgumentError(
      "{}: sequences {} to {} have {} tokens together, fewer than a sample "
      "({}); take a shorter sequence_length, or another `split`",
      index.idx().path(), range.begin, range.end, tokens,
      rules.sample_tokens());
}

}  // namespace

// ---- splits

StatusOr<MegatronShares> ParseMegatronSplit(std::string_view split) {
  const Status wrong = InvalidArgumentError(
      "wanted one to three numbers for train, valid and test, such as "
      "'969,30,1'");
  std::array<double, 3> shares{};
  size_t count = 0;
  constexpr std::string_view kDigits = ".0123456789";
  for (size_t at = split.find_first_of(kDigits); at < split.size();) {
    const size_t end =
        std::min(split.find_first_not_of(kDigits, at), split.size());
    if (count == shares.size() ||
        !ParseNumber(split.substr(at, end - at), &shares[count++])) {
      return wrong;
    }
    at = split.find_first_of(kDigits, end);
  }
  const double sum = shares[0] + shares[1] + shares[2];
  if (!(sum > 0)) return wrong;
  MegatronShares result;
  double begin = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const double end = begin + shares[i] / sum;
    if (end > begin) result[i] = {begin, end};
    begin = end;
  }
  return result;
}

MegatronRange MegatronRange::Of(std::pair<double, double> share,
                                uint64_t documents) {
  const auto place = [documents](double at) {
    // Python's round: halves to the even number.
    const double rounded = std::nearbyint(at * static_cast<double>(documents));
    return std::min(documents, static_cast<uint64_t>(rounded));
  };
  return {place(share.first), place(share.second)};
}

// ---- one dataset

StatusOr<std::unique_ptr<MegatronSamples>> MegatronWindows(
    MegatronIndex* index, MegatronRange range, const MegatronRules& rules,
    OpenProgress* progress) {
  uint64_t first = 0;
  uint64_t tokens = 0;
  if (index->in_a_row()) {
    PENSTOCK_ASSIGN_OR_RETURN(first, index->FindByte(range.begin, progress));
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t end,
                              index->FindByte(range.end, progress));
    tokens = (std::max(first, end) - first) / index->token_bytes();
  } else {
    PENSTOCK_RETURN_IF_ERROR(index->Keep(progress));
    first = index->BeginOf(range.begin);
    tokens = index->BeginOf(range.end) - first;
  }
  const uint64_t spent = tokens - std::min(tokens, uint64_t{rules.extra_token});
  const uint64_t size = rules.pads_last ? (spent + rules.sequence_length - 1) /
                                              rules.sequence_length
                                        : spent / rules.sequence_length;
  if (size == 0) return NoSampleError(*index, range, tokens, rules);
  if (size > kExactMax) {
    return InvalidArgumentError("{}: more than {} samples", index->idx().path(),
                                kExactMax);
  }
  if (index->in_a_row()) {
    return std::unique_ptr<MegatronSamples>(
        new StraightWindows(index, rules, tokens, size, first));
  }
  auto windows =
      std::make_unique<ScatteredWindows>(index, rules, tokens, size, first);
  PENSTOCK_RETURN_IF_ERROR(windows->CheckPieces(progress));
  return std::unique_ptr<MegatronSamples>(std::move(windows));
}

std::unique_ptr<MegatronSamples> MegatronDocuments(const MegatronIndex* index,
                                                   MegatronRange range) {
  return std::make_unique<Documents>(index, range);
}

StatusOr<MegatronSizes> FindMegatronSizes(const MegatronIndex& index,
                                          MegatronRange range,
                                          const MegatronRules& rules) {
  const std::string& path = index.idx().path();
  const uint64_t extra = rules.extra_token ? 1 : 0;
  const uint64_t length = rules.sequence_length;
  MegatronSizes sizes;
  sizes.tokens = index.BeginOf(range.end) - index.BeginOf(range.begin);
  if (sizes.tokens == 0) return NoSampleError(index, range, 0, rules);
  if (range.end > INT32_MAX) {
    return InvalidArgumentError(
        "{}: more than {} sequences, the most that Megatron's order can "
        "number; use `order: penstock`",
        path, INT32_MAX);
  }
  if (rules.samples) {
    // Both are below 2^60.
    const uint64_t wanted = *rules.samples * length + extra;
    sizes.passes = std::max<uint64_t>(
        1, wanted / sizes.tokens + (wanted % sizes.tokens > 0 ? 1 : 0));
  }
  const uint64_t documents = range.end - range.begin;
  if (sizes.passes > MegatronArrays::kDocumentsMax / documents) {
    return InvalidArgumentError(
        "{}: {} passes over {} sequences are more than {} places; give fewer "
        "`samples`, or use `order: penstock`",
        path, sizes.passes, documents, MegatronArrays::kDocumentsMax);
  }
  sizes.documents = sizes.passes * documents;
  sizes.samples = CountSamples(sizes.passes * sizes.tokens, rules);
  if (sizes.samples == 0) {
    return NoSampleError(index, range, sizes.tokens, rules);
  }
  if (sizes.samples > MegatronArrays::kSamplesMax) {
    return InvalidArgumentError(
        "{}: {} samples; at most {} can be in Megatron's order: use `order: "
        "penstock`",
        path, sizes.samples, MegatronArrays::kSamplesMax);
  }
  sizes.shuffled_first = sizes.samples;
  if (sizes.passes > 1) {
    const uint64_t before =
        ((sizes.passes - 1) * sizes.tokens - extra) / length;
    const uint64_t of_last = *rules.samples - before;
    const uint64_t of_one = (sizes.tokens - extra) / length;
    if (of_last < static_cast<uint64_t>(0.80 * static_cast<double>(of_one))) {
      sizes.shuffled_first = before;
    }
  }
  return sizes;
}

StatusOr<MegatronArrays> MakeMegatronArrays(const std::string& what,
                                            const MegatronSizes& sizes,
                                            OpenProgress* progress) {
  MegatronArrays arrays;
  arrays.apart =
      std::max<uint64_t>(1, kDocumentsApart * sizes.samples / sizes.documents);
  arrays.tokens = sizes.passes * sizes.tokens;
  PENSTOCK_ASSIGN_OR_RETURN(
      arrays.documents,
      NumberArray<uint32_t>::Make(what, sizes.documents, progress));
  PENSTOCK_ASSIGN_OR_RETURN(
      arrays.begins,
      NumberArray<uint64_t>::Make(what, (sizes.samples - 1) / arrays.apart + 1,
                                  progress));
  PENSTOCK_ASSIGN_OR_RETURN(
      arrays.shuffled,
      NumberArray<uint32_t>::Make(what, sizes.samples, progress));
  return arrays;
}

StatusOr<MegatronArrays> BuildMegatronArrays(const MegatronIndex& index,
                                             MegatronRange range,
                                             const MegatronRules& rules,
                                             OpenProgress* progress) {
  const std::string& path = index.idx().path();
  PENSTOCK_ASSIGN_OR_RETURN(const MegatronSizes sizes,
                            FindMegatronSizes(index, range, rules));
  PENSTOCK_ASSIGN_OR_RETURN(MegatronArrays arrays,
                            MakeMegatronArrays(path, sizes, progress));
  const uint64_t documents = range.end - range.begin;
  for (uint64_t pass = 0; pass < sizes.passes; ++pass) {
    PENSTOCK_RETURN_IF_ERROR(progress->CheckCancelled(path));
    for (uint64_t i = 0; i < documents; ++i) {
      arrays.documents[pass * documents + i] =
          static_cast<uint32_t>(range.begin + i);
    }
  }
  std::mt19937 random(rules.seed);
  const bool separate = sizes.shuffled_first < sizes.samples;
  const std::span<uint32_t> all = arrays.documents.span();
  const std::span<uint32_t> last =
      separate ? all.last(documents) : std::span<uint32_t>();
  PENSTOCK_RETURN_IF_ERROR(
      ShuffleAsNumpy(all.first(all.size() - last.size()), &random, progress));
  PENSTOCK_RETURN_IF_ERROR(ShuffleAsNumpy(last, &random, progress));
  MegatronWalk walk(&index, rules, &arrays);
  for (uint64_t sample = 0; sample < sizes.samples; ++sample) {
    if (sample % kCheckEach == 0) {
      PENSTOCK_RETURN_IF_ERROR(progress->CheckCancelled(path));
    }
    PENSTOCK_RETURN_IF_ERROR(walk.Next());
  }
  const std::span<uint32_t> shuffled = arrays.shuffled.span();
  PENSTOCK_RETURN_IF_ERROR(
      FillShuffled(shuffled.first(sizes.shuffled_first), 0, &random, progress));
  PENSTOCK_RETURN_IF_ERROR(FillShuffled(shuffled.subspan(sizes.shuffled_first),
                                        sizes.shuffled_first, &random,
                                        progress));
  return arrays;
}

MegatronWalk::MegatronWalk(const MegatronIndex* index,
                           const MegatronRules& rules, MegatronArrays* arrays)
    : index_(*index),
      extra_(rules.extra_token ? 1 : 0),
      sample_tokens_(static_cast<int64_t>(rules.sample_tokens())),
      arrays_(arrays) {
  arrays_->begins[0] = 0;
}

Status MegatronWalk::Next() {
  const NumberArray<uint32_t>& documents = arrays_->documents;
  const uint64_t first = document_;
  int64_t left = sample_tokens_;
  for (;;) {
    if (document_ + kAhead < documents.size()) {
      index_.Expect(documents[document_ + kAhead]);
    }
    const auto length =
        static_cast<int64_t>(index_.LengthOf(documents[document_]));
    left -= length - offset_;
    if (left <= 0) {
      // The token that a sample ends with begins the next one, too.
      offset_ = length + left - extra_;
      break;
    }
    if (document_ + 1 == documents.size()) {
      offset_ = length - extra_;
      break;
    }
    ++document_;
    offset_ = 0;
  }
  if (offset_ < 0) {
    return InvalidArgumentError(
        "{}: the document that comes last, {}, has no token, where Megatron "
        "fails, too; `last_partial: drop` goes on",
        index_.idx().path(), documents[document_]);
  }
  if (document_ - first >= kMegatronPiecesMax) {
    return InvalidArgumentError(
        "{}: sample {} lies in {} documents; at most {}", index_.idx().path(),
        sample_, document_ - first + 1, kMegatronPiecesMax);
  }
  ++sample_;
  const uint64_t kept = sample_ / arrays_->apart;
  if (sample_ % arrays_->apart == 0 && kept < arrays_->begins.size()) {
    arrays_->begins[kept] = document_ << 31 | offset();
  }
  return OkStatus();
}

std::unique_ptr<MegatronSamples> MegatronSamplesOf(const MegatronIndex* index,
                                                   const MegatronRules& rules,
                                                   MegatronArrays arrays) {
  return std::make_unique<ShuffledSamples>(index, rules, std::move(arrays));
}

// ---- blends

namespace {

// As numpy.sum adds doubles: in halves, of eight sums each.
double PairwiseSum(std::span<const double> values) {
  const size_t count = values.size();
  if (count < 8) {
    double sum = 0;
    for (const double each : values) sum += each;
    return sum;
  }
  if (count > 128) {
    const size_t half = count / 2 - count / 2 % 8;
    return PairwiseSum(values.first(half)) + PairwiseSum(values.subspan(half));
  }
  std::array<double, 8> sums;
  std::copy_n(values.begin(), 8, sums.begin());
  size_t i = 8;
  for (; i < count - count % 8; i += 8) {
    for (size_t k = 0; k < 8; ++k) sums[k] += values[i + k];
  }
  double sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
               ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  for (; i < count; ++i) sum += values[i];
  return sum;
}

// Where each part stands in a blend: the one that is furthest behind its weight
// comes next, the first of several.
class Behind {
 public:
  explicit Behind(std::vector<double> weights)
      : weights_(std::move(weights)), taken_(weights_.size()) {
    for (size_t i = 0; i < weights_.size(); ++i) parts_.push_back(i);
  }
  bool empty() const { return parts_.empty(); }
  size_t Next(uint64_t row) const {
    const double rows = std::max(static_cast<double>(row), 1.0);
    double most = std::numeric_limits<double>::lowest();
    size_t next = parts_.front();
    for (const size_t part : parts_) {
      const double behind = weights_[part] * rows - taken_[part];
      if (behind > most) {
        most = behind;
        next = part;
      }
    }
    return next;
  }
  void Take(size_t part) { taken_[part] += 1; }
  void Drop(size_t part) { std::erase(parts_, part); }

 private:
  const std::vector<double> weights_;
  std::vector<double> taken_;  // exact: samples are below 2^32
  std::vector<size_t> parts_;
};

}  // namespace

StatusOr<MegatronBlend> MegatronBlend::Make(uint64_t size, size_t parts,
                                            OpenProgress* progress) {
  if (size > MegatronArrays::kSamplesMax) {
    return InvalidArgumentError("a blend of {} samples; at most {}", size,
                                MegatronArrays::kSamplesMax);
  }
  MegatronBlend blend;
  blend.taken_.resize(parts);
  blend.block_ = std::max(kBlendBlock, kBlendBlockOfPart * parts);
  PENSTOCK_ASSIGN_OR_RETURN(
      blend.parts_, NumberArray<uint16_t>::Make("blend", size, progress));
  PENSTOCK_ASSIGN_OR_RETURN(
      blend.before_,
      NumberArray<uint32_t>::Make(
          "blend", (size + blend.block_ - 1) / blend.block_ * parts, progress));
  return blend;
}

uint64_t MegatronBlend::Add(size_t part) {
  if (filled_ % block_ == 0) {
    std::copy(taken_.begin(), taken_.end(),
              &before_[filled_ / block_ * taken_.size()]);
  }
  parts_[filled_++] = static_cast<uint16_t>(part);
  return taken_[part]++;
}

uint64_t MegatronBlend::SampleOf(uint64_t row) const {
  const uint64_t block = row / block_;
  const uint16_t part = parts_[row];
  const auto since =
      parts_.span().subspan(block * block_, row - block * block_);
  return before_[block * taken_.size() + part] +
         static_cast<uint64_t>(std::count(since.begin(), since.end(), part));
}

std::vector<double> NormalizedAsMegatron(std::span<const double> weights) {
  const double sum = PairwiseSum(weights);
  std::vector<double> normalized(weights.begin(), weights.end());
  for (double& each : normalized) each /= sum;
  return normalized;
}

uint64_t MegatronShare(double weight, uint64_t samples, double surplus) {
  const double share = std::ceil(static_cast<double>(samples) * weight);
  return static_cast<uint64_t>(std::ceil(share * (1 + surplus)));
}

StatusOr<MegatronBlend> MegatronBlend::InProportion(
    std::span<const double> weights, uint64_t size, OpenProgress* progress) {
  PENSTOCK_ASSIGN_OR_RETURN(MegatronBlend blend,
                            Make(size, weights.size(), progress));
  Behind behind(NormalizedAsMegatron(weights));
  for (uint64_t row = 0; row < size; ++row) {
    if (row % kCheckEach == 0) {
      PENSTOCK_RETURN_IF_ERROR(progress->CheckCancelled("blend"));
    }
    const size_t part = behind.Next(row);
    behind.Take(part);
    blend.Add(part);
  }
  return blend;
}

StatusOr<MegatronBlend> MegatronBlend::OfAll(std::span<const uint64_t> sizes,
                                             OpenProgress* progress) {
  uint64_t size = 0;
  for (const uint64_t each : sizes) size += each;
  PENSTOCK_ASSIGN_OR_RETURN(MegatronBlend blend,
                            Make(size, sizes.size(), progress));
  std::vector<double> weights;
  for (const uint64_t each : sizes) {
    weights.push_back(static_cast<double>(each) / static_cast<double>(size));
  }
  Behind behind(std::move(weights));
  for (uint64_t row = 0; row < size; ++row) {
    if (row % kCheckEach == 0) {
      PENSTOCK_RETURN_IF_ERROR(progress->CheckCancelled("blend"));
    }
    const size_t part = behind.Next(row);
    behind.Take(part);
    if (blend.Add(part) + 1 == sizes[part]) behind.Drop(part);
  }
  return blend;
}

}  // namespace penstock
