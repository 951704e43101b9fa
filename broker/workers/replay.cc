#include "broker/workers/replay.h"

#include <zlib.h>

#include <algorithm>
#include <vector>

#include "broker/io/read.h"
#include "broker/job/dataset.h"
#include "broker/plan/plan.h"
#include "broker/transform/mixup.h"

namespace penstock {
namespace {

// Same as the workers' limit (row_maker.cc): part of what `substitute` means.
constexpr uint64_t kSubstituteTries = 16;

// Makes one dataset's rows serially.
class RowMaker {
 public:
  RowMaker(const Dataset& dataset, uint64_t seed,
           std::unique_ptr<StorageReader> reader)
      : dataset_(dataset),
        seed_(seed),
        reader_(std::move(reader)),
        maker_(dataset.source->MakeMaker({})) {
    for (const auto& program : dataset.programs) {
      scratch_.push_back(program->MakeScratch({}));
    }
  }

  // The rows that follow are of batches of this part of the source.
  void SetPart(std::optional<uint32_t> part) {
    element_ = &dataset_.element_spec(part);
    for (auto* const row : {&features_, &partner_}) {
      row->resize(element_->size());
      for (size_t i = 0; i < element_->size(); ++i) {
        (*row)[i].resize((*element_)[i].RowBytes());
      }
    }
    Aim();
  }

  Status Make(uint64_t record, uint64_t pass) {
    ReadRequest request;
    dataset_.source->Locate(record, &request);
    if (request.kind == ReadRequest::Kind::kNone) {
      return MakeOf({}, record, pass);
    }
    // Plain reads, with the same rules for readable files.
    reader_->Start(0, request, {}, kNotPinned);
    reader_->Submit();
    StorageReader::Done done;
    if (!reader_->Next(kWaitForever, &done))
      return InternalError("a read was lost");
    const Status status =
        done.status.ok() ? MakeOf(done.read(), record, pass) : done.status;
    reader_->Release(0);
    return status;
  }

  // The row made last is the partner of the next.
  void KeepAsPartner() {
    features_.swap(partner_);
    Aim();
  }
  void MixWithPartner(const AugmentationKey& pair) {
    std::vector<std::byte*> partner;
    for (std::vector<std::byte>& each : partner_)
      partner.push_back(each.data());
    dataset_.programs[program_]->MixPair(pair, out_, partner);
  }

  uint32_t Crc32() const {
    uLong crc = crc32(0, nullptr, 0);
    for (const std::vector<std::byte>& feature : features_) {
      crc = crc32_z(crc, reinterpret_cast<const Bytef*>(feature.data()),
                    feature.size());
    }
    return static_cast<uint32_t>(crc);
  }

  void Zero() {
    for (std::vector<std::byte>& feature : features_) {
      std::fill(feature.begin(), feature.end(), std::byte{0});
    }
  }

 private:
  Status MakeOf(const ReadBytes& read, uint64_t record, uint64_t pass) {
    PENSTOCK_RETURN_IF_ERROR(
        maker_ ? maker_->Make(seed_, {record, pass}, &raw_)
               : dataset_.source->Unpack(record, read, &unpacked_, &raw_));
    program_ = dataset_.ProgramOf(record);
    return dataset_.programs[program_]->Run(raw_, {seed_, pass, record},
                                            *scratch_[program_], out_);
  }

  void Aim() {
    out_.clear();
    for (std::vector<std::byte>& each : features_) out_.push_back(each.data());
  }

  const Dataset& dataset_;
  const uint64_t seed_;
  const std::unique_ptr<StorageReader> reader_;
  std::vector<std::unique_ptr<RowProgram::Scratch>> scratch_;  // by program
  std::unique_ptr<Source::Maker> maker_;
  size_t program_ = 0;  // of the row made last
  const ElementSpec* element_ = nullptr;
  std::vector<std::vector<std::byte>> features_;
  std::vector<std::vector<std::byte>> partner_;
  std::vector<std::byte*> out_;  // to features_
  std::vector<std::byte> unpacked_;
  RawRecord raw_;
};

// The record delivered for a row; nullopt: left out.
StatusOr<std::optional<uint64_t>> MakeByPolicy(RowMaker& maker,
                                               const Plan::Row& row,
                                               const Plan& plan,
                                               Shuffles* shuffles,
                                               OnError policy) {
  const Status status = maker.Make(row.record, row.pass);
  if (status.ok()) return std::optional<uint64_t>(row.record);
  if (policy == OnError::kFail) return status;
  if (policy == OnError::kSkip) return std::optional<uint64_t>();
  for (uint64_t i = 1; i <= std::min(kSubstituteTries, plan.records() - 1);
       ++i) {
    const Plan::Row other = plan.Following(row, i, shuffles);
    if (maker.Make(other.record, other.pass).ok()) {
      return std::optional<uint64_t>(other.record);
    }
  }
  return status;
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
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<StorageReader> reader,
                            MakeStorageReader(ReadBackend::kPread, 1));
  RowMaker maker(*dataset, spec.seed, std::move(reader));
  std::vector<Plan::Row> rows;
  Shuffles shuffles;
  for (uint64_t step = 0; step < steps; ++step) {
    for (uint32_t rank = 0; rank < options.world_size; ++rank) {
      const Plan::RankBatch share =
          plan.RankBatchOf(step, all_to_all ? 0 : rank);
      maker.SetPart(share.part);
      rows.resize(share.rows);
      plan.Rows(share.epoch, share.first_row, share.rows, &shuffles,
                rows.data());
      ReplayRecord record;
      record.epoch = share.epoch;
      record.step = share.step_in_epoch;
      record.rank = rank;
      const auto write = [&](int64_t sample_id) {
        record.sample_id = sample_id;
        record.crc32 = maker.Crc32();
        const bool written = std::fwrite(&record, sizeof(record), 1, out) == 1;
        ++record.row;
        return written ? OkStatus() : ErrnoError(errno, "write a record");
      };
      for (uint64_t i = 0; i < share.rows; ++i) {
        const uint64_t place = share.first_row + i;
        std::optional<uint64_t> partner;
        if (dataset->mixes_pairs()) {
          partner =
              PartnerOf(place, plan.rows_per_epoch(), spec.seed, share.epoch);
        }
        bool mixes = false;
        if (partner) {
          Plan::Row row;
          plan.Rows(share.epoch, *partner, 1, &shuffles, &row);
          PENSTOCK_ASSIGN_OR_RETURN(
              const std::optional<uint64_t> made,
              MakeByPolicy(maker, row, plan, &shuffles, spec.on_error));
          mixes = made.has_value();
          maker.KeepAsPartner();
        }
        PENSTOCK_ASSIGN_OR_RETURN(
            const std::optional<uint64_t> made,
            MakeByPolicy(maker, rows[i], plan, &shuffles, spec.on_error));
        if (!made) continue;
        if (mixes) {
          maker.MixWithPartner(
              {spec.seed, share.epoch, std::min(place, *partner)});
        }
        PENSTOCK_RETURN_IF_ERROR(write(static_cast<int64_t>(*made)));
      }
      if (spec.batch.last == LastBatch::kPad) {
        maker.Zero();
        while (record.row < share.shape_rows) {
          PENSTOCK_RETURN_IF_ERROR(write(-1));
        }
      }
    }
  }
  return std::fflush(out) == 0 ? OkStatus() : ErrnoError(errno, "write");
}

}  // namespace penstock
