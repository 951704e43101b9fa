#include "broker/plan/plan_spec.h"

#include <algorithm>
#include <limits>

#include "broker/declare/declaration.h"

namespace penstock {
namespace {

constexpr uint32_t kWindowFilesMax = uint32_t{1} << 20;
constexpr uint64_t kBatchRowsMax = uint64_t{1} << 24;

// size and per_rank are two names of one number.
DeclarationBase::Field Rows(std::string key, bool per_rank, std::string text) {
  const auto rows = WholeNumber<uint64_t>(1, kBatchRowsMax);
  return {std::move(key),
          std::move(text),
          rows.wanted,
          false,
          true,
          {[=](const YamlValue& value, void* object) {
             BatchSpec& batch = *static_cast<BatchSpec*>(object);
             batch.per_rank = per_rank;
             return rows.Read(value, &batch.size);
           },
           [=](const void* object, nlohmann::ordered_json* out) {
             const BatchSpec& batch = *static_cast<const BatchSpec*>(object);
             if (batch.per_rank == per_rank && batch.by_part.empty()) {
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
              "the files in a random order, and records shuffled within "
              "windows of so many of them: for disks and storage that "
              "read one file to its end faster than many in turn; absent: "
              "all records are shuffled together");
  return declared;
}

const Declaration<BatchSpec>& BatchSpec::Declared() {
  static const auto declared =
      Declaration<BatchSpec>("batch", "The rows of a step.")
          .Example("{size: 2048, last: drop}")
          .Add(Rows("size", false, "of all ranks together"))
          .Add(Rows("per_rank", true, "of each rank"))
          .Add(RowsByPart())
          .Optional("last", &BatchSpec::last,
                    Words<LastBatch>({{"partial", LastBatch::kPartial},
                                      {"drop", LastBatch::kDrop},
                                      {"pad", LastBatch::kPad}}),
                    "the short last batch comes as it is, is left out, or is "
                    "filled with rows of zeros, whose sample id is −1, at the "
                    "end of each rank's");
  return declared;
}

}  // namespace penstock
