#include "broker/plan/plan_spec.h"

#include <algorithm>
#include <limits>

#include "broker/declare/declaration.h"
#include "broker/plan/select_fields.h"
#include "common/exact_max.h"

namespace penstock {
namespace {

constexpr uint32_t kWindowFilesMax = uint32_t{1} << 20;
constexpr uint64_t kBatchRowsMax = uint64_t{1} << 24;
constexpr uint64_t kBatchTokensMax = uint64_t{1} << 40;
constexpr uint64_t kBucketsMax = 64;
constexpr uint64_t kPackLengthMax = uint64_t{1} << 22;
constexpr uint64_t kPackWindowMax = uint64_t{1} << 20;
constexpr uint32_t kPackDocumentsMax = 1 << 20;

using Output = PackSpec::Output;
using OutputWords = std::vector<std::pair<std::string_view, Output>>;
const OutputWords& Outputs() {
  static const OutputWords words = {{"position_ids", Output::kPositionIds},
                                    {"document_ids", Output::kDocumentIds},
                                    {"seq_lens", Output::kSeqLens},
                                    {"cu_seqlens", Output::kCuSeqlens},
                                    {"loss_mask", Output::kLossMask},
                                    {"records", Output::kRecords}};
  return words;
}

// size, per_rank, tokens and tokens_per_rank are names of one number.
DeclarationBase::Field Rows(std::string key, bool per_rank, bool tokens,
                            std::string text) {
  const auto rows =
      WholeNumber<uint64_t>(1, tokens ? kBatchTokensMax : kBatchRowsMax);
  return {std::move(key),
          std::move(text),
          rows.wanted,
          false,
          true,
          {[=](const YamlValue& value, void* object) {
             BatchSpec& batch = *static_cast<BatchSpec*>(object);
             batch.per_rank = per_rank;
             batch.tokens = tokens;
             return rows.Read(value, &batch.size);
           },
           [=](const void* object, nlohmann::ordered_json* out) {
             const BatchSpec& batch = *static_cast<const BatchSpec*>(object);
             if (batch.per_rank == per_rank && batch.tokens == tokens &&
                 batch.by_part.empty()) {
               rows.write(batch.size, out);
             }
           }}};
}

DeclarationBase::Field RowsByPart() {
  const auto rows = List(
      WholeNumber<uint64_t>(1, kBatchRowsMax), 1, kSourcePartsMax,
      Format("a list of 1 to {} sizes, one for each part", kSourcePartsMax));
  return {"by_part",
          "of all ranks together, for each part of a mix: each batch has rows "
          "of one part, and the weights are shares of the batches; rows that "
          "fill no batch are left out of a pass over their part",
          rows.wanted,
          false,
          true,
          {[=](const YamlValue& value, void* object) {
             BatchSpec& batch = *static_cast<BatchSpec*>(object);
             PENSTOCK_RETURN_IF_ERROR(rows.Read(value, &batch.by_part));
             batch.size =
                 *std::max_element(batch.by_part.begin(), batch.by_part.end());
             return OkStatus();
           },
           [=](const void* object, nlohmann::ordered_json* out) {
             const BatchSpec& batch = *static_cast<const BatchSpec*>(object);
             if (!batch.by_part.empty()) rows.write(batch.by_part, out);
           }}};
}

Status CheckBuckets(const YamlValue& value, BucketsSpec* buckets) {
  const YamlValue boundaries = value.Optional("boundaries");
  if (!buckets->boundaries.empty() && buckets->count) {
    return boundaries.Error("there is a count too: leave one of them out");
  }
  for (size_t i = 1; i < buckets->boundaries.size(); ++i) {
    if (buckets->boundaries[i] > buckets->boundaries[i - 1]) continue;
    return boundaries.Item(i).Error(
        Format("{} after {}: wanted them in ascending order",
               buckets->boundaries[i], buckets->boundaries[i - 1]));
  }
  return OkStatus();
}

Status CheckBatch(const YamlValue& value, BatchSpec* batch) {
  if (batch->tokens && !batch->buckets) {
    return value.Required(batch->per_rank ? "tokens_per_rank" : "tokens")
        .Error(
            "wanted `buckets: {by: COLUMN}` too, the column that says how "
            "many tokens a row has");
  }
  if (batch->buckets && !batch->by_part.empty()) {
    return value.Required("buckets").Error(
        "batches of one part each (by_part) are not sorted by length: leave "
        "one of them out");
  }
  if (!batch->pack) return OkStatus();
  const YamlValue pack = value.Required("pack");
  if (batch->buckets) {
    return pack.Error(
        "packed rows all have one length: leave out `buckets`, or this");
  }
  if (!batch->by_part.empty()) {
    return pack.Error(
        "packed rows all have one shape: leave out `by_part`, or this; `block` "
        "of a mix makes batches of one part each");
  }
  return OkStatus();
}

Status CheckPack(const YamlValue& value, PackSpec* pack) {
  const auto has = [pack](Output output) {
    return std::count(pack->with.begin(), pack->with.end(), output);
  };
  for (size_t i = 0; i < pack->with.size(); ++i) {
    if (has(pack->with[i]) == 1) continue;
    return value.Required("with").Item(i).Error("is named twice");
  }
  if (pack->method == PackSpec::Method::kSplit &&
      pack->longer != PackSpec::Longer::kSplit) {
    return value.Required("longer").Error(
        "with `method: split` all documents are cut where a sequence ends: "
        "leave this out");
  }
  if (pack->mask_first && has(Output::kLossMask) == 0) {
    return value.Required("mask_first")
        .Error("is about loss_mask: add it to `with`, or leave this out");
  }
  if (pack->documents && *pack->documents > pack->length) {
    return value.Required("documents")
        .Error(Format("a sequence of {} items has no room for {}: give at most "
                      "as many as `length`",
                      pack->length, *pack->documents));
  }
  return OkStatus();
}

}  // namespace

const Declaration<ShuffleSpec>& ShuffleSpec::Declared() {
  static const auto declared =
      Declaration<ShuffleSpec>("shuffle",
                               "A global order, without a buffer; resumes at "
                               "any sample.")
          .Example("{seed: 42}")
          .Required(
              "seed", &ShuffleSpec::seed,
              WholeNumber<uint64_t>(0, std::numeric_limits<uint64_t>::max()),
              "the order is a function of it")
          .Optional("each_epoch", &ShuffleSpec::each_epoch, Bool(),
                    "a new order every epoch, or the same for all")
          .Optional(
              "window_files", &ShuffleSpec::window_files,
              Maybe(WholeNumber<uint32_t>(1, kWindowFilesMax)),
              "the files, or row groups of Parquet, in a random order, and "
              "records shuffled within "
              "windows of so many of them: for disks and storage that "
              "read one file to its end faster than many in turn; with "
              "`shard: file`, of the files of each rank; absent: "
              "all records are shuffled together");
  return declared;
}

const Declaration<BatchSpec>& BatchSpec::Declared() {
  static const auto declared =
      Declaration<BatchSpec>("batch", "The rows of a step.")
          .Example("{size: 2048, last: drop}")
          .Add(Rows("size", false, false, "of all ranks together"))
          .Add(Rows("per_rank", true, false, "of each rank"))
          .Add(Rows("tokens", false, true,
                    "with buckets: as many rows as make at most so many "
                    "tokens, padded to the longest row of their bucket; of all "
                    "ranks together"))
          .Add(Rows("tokens_per_rank", true, true,
                    "the same of each rank; all ranks get equally many rows"))
          .Add(RowsByPart())
          .Optional("buckets", &BatchSpec::buckets,
                    Maybe(MappingOf(BucketsSpec::Declared())),
                    "each batch has rows of like length; the last of each "
                    "bucket may be short")
          .Optional("pack", &BatchSpec::pack,
                    Maybe(MappingOf(PackSpec::Declared())),
                    "each row is a sequence of several documents")
          .Optional("last", &BatchSpec::last,
                    Words<LastBatch>({{"partial", LastBatch::kPartial},
                                      {"drop", LastBatch::kDrop},
                                      {"pad", LastBatch::kPad}}),
                    "the short last batch comes as it is, is left out, or is "
                    "filled with rows of zeros, whose sample id is −1, at the "
                    "end of each rank's")
          .Check(CheckBatch);
  return declared;
}

const Declaration<BucketsSpec>& BucketsSpec::Declared() {
  static const auto declared =
      Declaration<BucketsSpec>(
          "buckets",
          "Rows sorted by a number, as a rule the length of a list: a batch "
          "has rows of one bucket and is as wide as the longest of them, so "
          "little of it is padding.")
          .Example("{by: tokens.length}")
          .Required("by", &BucketsSpec::by, ColumnName(),
                    "the column (see filter), such as the length of a list")
          .Optional(
              "count", &BucketsSpec::count,
              Maybe(WholeNumber<uint32_t>(1, kBucketsMax)),
              "at most so many buckets, by default 8, whose widths make the "
              "fewest tokens of all rows; none has less than a quarter "
              "of an equal share of the rows")
          .Optional(
              "boundaries", &BucketsSpec::boundaries,
              List(WholeNumber<uint64_t>(1, kExactMax), 0, kBucketsMax - 1,
                   Format("a list of up to {} lengths in ascending order",
                          kBucketsMax - 1)),
              "instead of count: the longest row of each bucket, which "
              "is its width; longer rows have a bucket of their own")
          .Check(CheckBuckets);
  return declared;
}

std::string_view NameOf(PackSpec::Output output) {
  return std::find_if(
             Outputs().begin(), Outputs().end(),
             [output](const auto& each) { return each.second == output; })
      ->first;
}

const Declaration<PackSpec>& PackSpec::Declared() {
  static const auto declared =
      Declaration<PackSpec>(
          "pack",
          "Lists of several records, the documents, one after the other in "
          "rows of one length, the sequences.")
          .Example("{length: 4096, with: [position_ids, cu_seqlens]}")
          .Required("length", &PackSpec::length,
                    WholeNumber<uint64_t>(1, kPackLengthMax),
                    "items of a sequence")
          .Optional("feature", &PackSpec::feature,
                    LeftOutAt({}, Text("the name of a feature",
                                       [](std::string_view text) {
                                         return !text.empty();
                                       })),
                    "the list that is packed; absent: the only one. Other "
                    "lists of the same lengths are packed as it is")
          .Optional("by", &PackSpec::by, LeftOutAt({}, ColumnName()),
                    "the column (see filter) of the lengths; absent: "
                    "FEATURE.length, of text FEATURE_bytes")
          .Optional("method", &PackSpec::method,
                    Words<Method>({{"best_fit", Method::kBestFit},
                                   {"first_fit", Method::kFirstFit},
                                   {"split", Method::kSplit}}),
                    "the longest documents first, each into the fullest "
                    "sequence that has room, or into the first; or all one "
                    "after the other, cut where a sequence is full")
          .Optional("longer", &PackSpec::longer,
                    Words<Longer>({{"split", Longer::kSplit},
                                   {"cut", Longer::kCut},
                                   {"drop", Longer::kDrop},
                                   {"fail", Longer::kFail}}),
                    "a document longer than a sequence comes in pieces, loses "
                    "its end, is left out, or is an error; others are never "
                    "cut, but by `method: split`")
          .Optional("window", &PackSpec::window,
                    WholeNumber<uint64_t>(1, kPackWindowMax),
                    "so many documents are packed together")
          .Optional("across_parts", &PackSpec::across_parts, Bool(),
                    "of a mix: documents of several parts share sequences, and "
                    "weights are shares of the documents; else of the "
                    "sequences, and each has documents of one part")
          .Optional("documents", &PackSpec::documents,
                    Maybe(WholeNumber<uint32_t>(1, kPackDocumentsMax)),
                    "at most so many are in a sequence, and outputs have room "
                    "for so many; absent: for as many as there are in any")
          .Optional(
              "pad", &PackSpec::pad,
              LeftOutAt({},
                        ValueOfEach(WholeNumber<int64_t>(INT64_MIN, INT64_MAX),
                                    "{NAME: a whole number, ...}", CheckNames)),
              "by list, what fills a sequence after its last document; "
              "0 for those that are not named")
          .Optional("with", &PackSpec::with,
                    List(Words<Output>(Outputs()), 0, Outputs().size(),
                         "a list of position_ids, document_ids, seq_lens, "
                         "cu_seqlens, loss_mask, records"),
                    "further features of a sequence")
          .Optional("mask_first", &PackSpec::mask_first, Bool(),
                    "loss_mask is 0 at the first item of each document too")
          .Check(CheckPack);
  return declared;
}

}  // namespace penstock
