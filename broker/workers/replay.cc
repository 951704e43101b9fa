#include "broker/workers/replay.h"

#include <zlib.h>

#include <algorithm>
#include <vector>

#include "broker/io/read.h"
#include "broker/job/dataset.h"
#include "broker/plan/plan.h"

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
        scratch_(dataset.program->MakeScratch({})),
        maker_(dataset.source->MakeMaker({})) {
    for (const Feature& feature : dataset.program->element_spec()) {
      features_.emplace_back(feature.RowBytes());
    }
    for (std::vector<std::byte>& feature : features_) {
      out_.push_back(feature.data());
    }
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
    return dataset_.program->Run(raw_, {seed_, pass, record}, *scratch_, out_);
  }

  const Dataset& dataset_;
  const uint64_t seed_;
  const std::unique_ptr<StorageReader> reader_;
  std::unique_ptr<RowProgram::Scratch> scratch_;
  std::unique_ptr<Source::Maker> maker_;
  std::vector<std::vector<std::byte>> features_;
  std::vector<std::byte*> out_;
  std::vector<std::byte> unpacked_;
  RawRecord raw_;
};

// The record delivered for a row; nullopt: left out.
StatusOr<std::optional<uint64_t>> MakeByPolicy(RowMaker& maker,
                                               const Plan::Row& row,
                                               uint64_t records,
                                               OnError policy) {
  const Status status = maker.Make(row.record, row.pass);
  if (status.ok()) return std::optional<uint64_t>(row.record);
  if (policy == OnError::kFail) return status;
  if (policy == OnError::kSkip) return std::optional<uint64_t>();
  for (uint64_t i = 1; i <= std::min(kSubstituteTries, records - 1); ++i) {
    const uint64_t record = (row.record + i) % records;
    if (maker.Make(record, row.pass).ok()) {
      return std::optional<uint64_t>(record);
    }
  }
  return status;
}

}  // namespace

Status Replay(const DatasetSpec& spec, const FunctionOptions& functions,
              const ReplayOptions& options, std::FILE* out) {
  OpenProgress progress;
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<const Dataset> dataset,
                            OpenDataset(spec, functions, &progress));
  DatasetSpec limited = spec;
  if (options.epochs) limited.epochs = options.epochs;
  PENSTOCK_ASSIGN_OR_RETURN(
      const Plan plan,
      Plan::Make(limited, dataset->source->record_count(), options.world_size));
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
  Plan::OrderCache order;
  for (uint64_t step = 0; step < steps; ++step) {
    for (uint32_t rank = 0; rank < options.world_size; ++rank) {
      const Plan::RankBatch share = plan.RankBatchOf(step, rank);
      rows.resize(share.rows);
      plan.Rows(share.epoch, share.first_row, share.rows, &order, rows.data());
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
      for (const Plan::Row& row : rows) {
        PENSTOCK_ASSIGN_OR_RETURN(
            const std::optional<uint64_t> made,
            MakeByPolicy(maker, row, plan.records(), spec.on_error));
        if (!made) continue;
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
