#include "broker/workers/replay.h"

#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "broker/io/reads_in_flight.h"
#include "broker/job/dataset.h"
#include "broker/plan/plan.h"
#include "broker/transform/mixup.h"
#include "broker/workers/row_maker.h"
#include "broker/workers/sample_quarantine.h"

namespace penstock {
namespace {

// A row in memory of its own.
class Row {
 public:
  void SetShape(const ElementSpec& element) {
    features_.resize(element.size());
    places_.clear();
    for (size_t i = 0; i < element.size(); ++i) {
      features_[i].resize(element[i].RowBytes());
      places_.push_back(features_[i].data());
    }
  }
  RowMaker::Places places() const { return places_; }
  void Zero() {
    for (std::vector<std::byte>& feature : features_) {
      std::fill(feature.begin(), feature.end(), std::byte{0});
    }
  }
  uint32_t Crc32() const {
    uLong crc = crc32(0, nullptr, 0);
    for (const std::vector<std::byte>& feature : features_) {
      crc = crc32_z(crc, reinterpret_cast<const Bytef*>(feature.data()),
                    feature.size());
    }
    return static_cast<uint32_t>(crc);
  }

 private:
  std::vector<std::vector<std::byte>> features_;
  std::vector<std::byte*> places_;
};

Status MakePacked(const Dataset& dataset, const Plan& plan,
                  const Plan::Row& sequence, Shuffles* shuffles,
                  RowMaker* maker, RowMaker::Places out) {
  std::vector<Piece> pieces;
  dataset.packing->PiecesOf(sequence.record, sequence.pass, &pieces);
  dataset.packed_rows->Begin(pieces, out);
  for (const Piece& piece : pieces) {
    Plan::Row document = sequence;
    document.record = piece.record;
    maker->SetPiece(piece);
    PENSTOCK_ASSIGN_OR_RETURN(const RowMaker::Outcome made,
                              maker->MakeAnyhow(document, plan, shuffles, out));
    if (!made.record) dataset.packed_rows->LeaveOut(piece, out);
  }
  return OkStatus();
}

}  // namespace

Status Replay(const DatasetSpec& spec, const FunctionOptions& functions,
              const ReplayOptions& options, std::FILE* out) {
  OpenProgress progress;
  DatasetSpec limited = spec;
  // Rows of a cache are to be the same as these.
  limited.cache.reset();
  limited.snapshot.reset();
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<const Dataset> dataset,
                            OpenDataset(limited, functions, &progress));
  if (options.epochs) limited.epochs = options.epochs;
  const bool all_to_all = spec.shard == ShardPolicy::kOff;
  if (all_to_all) {
    limited.batch.size = GlobalBatchOf(spec, options.world_size);
    limited.batch.per_rank = true;
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      Plan plan, PlanOf(limited, *dataset, all_to_all ? 1 : options.world_size,
                        options.world_size));
  for (const WeightsChange& change : options.weights) {
    PENSTOCK_ASSIGN_OR_RETURN(plan, plan.WithWeights(change, {}));
  }
  const uint64_t steps = std::min(plan.total_steps().value_or(UINT64_MAX),
                                  options.steps.value_or(UINT64_MAX));
  if (steps == UINT64_MAX) {
    return InvalidArgumentError(
        "the dataset never ends (epochs: forever): give a number of epochs or "
        "steps");
  }
  // Nobody watches this thread.
  PENSTOCK_ASSIGN_OR_RETURN(const auto samples, SampleQuarantine::Open(""));
  const std::atomic<uint64_t> now_ns{1};
  ReadsInFlight in_flight(1);
  RowMaker maker(*dataset, limited, {},
                 {samples.get(), 0, 0, &now_ns, &in_flight, 0});
  Row row;
  Row partner_row;
  std::vector<Plan::Row> rows;
  Shuffles shuffles;
  for (uint64_t step = 0; step < steps; ++step) {
    for (uint32_t rank = 0; rank < options.world_size; ++rank) {
      const Plan::RankBatch share =
          plan.RankBatchOf(step, all_to_all ? 0 : rank);
      maker.SetPart(share.part);
      row.SetShape(dataset->element_spec(share.part));
      partner_row.SetShape(dataset->element_spec(share.part));
      rows.resize(share.rows);
      plan.Rows(share.epoch, share.first_row, share.rows, &shuffles,
                rows.data());
      ReplayRecord record;
      record.epoch = share.epoch;
      record.step = share.step_in_epoch;
      record.rank = rank;
      const auto write = [&](int64_t sample_id) {
        record.sample_id = sample_id;
        record.crc32 = row.Crc32();
        const bool written = std::fwrite(&record, sizeof(record), 1, out) == 1;
        ++record.row;
        return written ? OkStatus() : ErrnoError(errno, "write a record");
      };
      for (uint64_t i = 0; i < share.rows; ++i) {
        if (dataset->packing != nullptr) {
          PENSTOCK_RETURN_IF_ERROR(MakePacked(*dataset, plan, rows[i],
                                              &shuffles, &maker, row.places()));
          PENSTOCK_RETURN_IF_ERROR(write(static_cast<int64_t>(rows[i].record)));
          continue;
        }
        const uint64_t place = share.first_row + i;
        std::optional<uint64_t> partner;
        if (dataset->mixes_pairs()) {
          partner =
              PartnerOf(place, plan.rows_per_epoch(), spec.seed, share.epoch);
        }
        bool mixes = false;
        if (partner) {
          Plan::Row planned;
          plan.Rows(share.epoch, *partner, 1, &shuffles, &planned);
          PENSTOCK_ASSIGN_OR_RETURN(
              const RowMaker::Outcome made,
              maker.MakeAnyhow(planned, plan, &shuffles, partner_row.places()));
          mixes = made.record.has_value();
        }
        PENSTOCK_ASSIGN_OR_RETURN(
            const RowMaker::Outcome made,
            maker.MakeAnyhow(rows[i], plan, &shuffles, row.places()));
        if (!made.record) continue;
        if (mixes) {
          maker.MixPair(rows[i],
                        {spec.seed, share.epoch, std::min(place, *partner)},
                        row.places(), partner_row.places());
        }
        PENSTOCK_RETURN_IF_ERROR(write(static_cast<int64_t>(*made.record)));
      }
      if (spec.batch.last == LastBatch::kPad) {
        row.Zero();
        while (record.row < share.shape_rows) {
          PENSTOCK_RETURN_IF_ERROR(write(-1));
        }
      }
    }
  }
  return std::fflush(out) == 0 ? OkStatus() : ErrnoError(errno, "write");
}

}  // namespace penstock
