#include "broker/workers/row_maker.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "common/quantity.h"

namespace penstock {
namespace {

// on_error: substitute tries this many records after the bad one.
constexpr uint64_t kSubstituteTries = 16;

// The machine's lack of resources is not the sample's fault.
bool IsOfSample(const Status& status) {
  return status.code() != StatusCode::kResourceExhausted &&
         status.code() != StatusCode::kInvalidArgument &&
         status.code() != StatusCode::kCancelled;
}

}  // namespace

RowMaker::RowMaker(const Dataset& dataset, const DatasetSpec& spec,
                   const Cancelled& cancelled, const Watch& watch)
    : dataset_(dataset),
      name_(spec.name),
      seed_(spec.seed),
      on_error_(spec.on_error),
      // The last step of `map`, if several mix pairs.
      mixing_part_(static_cast<uint32_t>(kFirstStep + spec.map.size() - 1)),
      cancelled_(cancelled),
      watch_(watch),
      dataset_hash_(SampleQuarantine::DatasetHash(DatasetKey(spec))),
      wait_ns_(dataset.wait_ns()),
      runs_functions_(RunsFunctions(spec)),
      cache_(dataset.cache.get()),
      process_(dataset.source->MakeMaker(cancelled)) {
  for (const auto& program : dataset.programs) {
    scratch_.push_back(program->MakeScratch(cancelled, &clock_));
    takes_several_ |=
        program->SeveralIn(*scratch_.back()) != RowProgram::Several::kNever;
  }
  SetForm(dataset.element_spec());
  if (dataset.packed_rows == nullptr) return;
  for (const Feature& feature : dataset.packed_rows->document_spec()) {
    document_.emplace_back(feature.RowBytes());
    wide_out_.push_back(document_.back().data());
  }
}

void RowMaker::Expect(std::span<const Plan::Row> rows) {
  if (process_ == nullptr) return;
  wanted_.clear();
  for (const Plan::Row& row : rows) wanted_.push_back({row.record, row.pass});
  process_->Expect(seed_, wanted_);
}

// The program's allowed wait for other processes does not count as the sample's
// time.
SampleQuarantine::Mark RowMaker::MarkOf(uint64_t record) const {
  return {watch_.samples,
          watch_.thread_index,
          {dataset_hash_, record},
          watch_.job_number,
          // Relaxed: a clock; no other data depend on it.
          watch_.now_ns->load(std::memory_order_relaxed) + wait_ns_};
}

Status RowMaker::Make(const Plan::Row& row, const ReadBytes& read,
                      bool from_cache, Places out) {
  if (process_ != nullptr && process_->makes_batches()) {
    // No mark: its processes stand for their samples themselves.
    PENSTOCK_RETURN_IF_ERROR(MakeByProcess(row));
    return dataset_.programs[0]->Run(raw_, {seed_, row.pass, row.record},
                                     *scratch_[0], out);
  }
  MadeBy by = MadeBy::kSource;
  const Status status = MakeMarked(row, read, from_cache, Wide(out), &by);
  if (by == MadeBy::kHead) PutInCache(row.record);
  if (by != MadeBy::kNothing) return status.ok() ? FinishLists(out) : status;
  request_.more.clear();
  dataset_.source->Locate(row.record, &request_);
  cache_->NoteDamage(row.record, status,
                     request_.kind != ReadRequest::Kind::kNone);
  return ReadAndMake(row, out);
}

Status RowMaker::MakeMarked(const Plan::Row& row, const ReadBytes& read,
                            bool from_cache, Places out, MadeBy* by) {
  const AugmentationKey key{seed_, row.pass, row.record};
  const size_t of = dataset_.ProgramOf(row.record);
  const RowProgram& program = *dataset_.programs[of];
  const SampleQuarantine::Mark mark = MarkOf(row.record);
  PENSTOCK_RETURN_IF_ERROR(mark.status());
  PENSTOCK_RETURN_IF_ERROR(
      Begin(row, read, from_cache, out, cache_ != nullptr, by));
  return *by == MadeBy::kSource
             ? program.Run(raw_, key, *scratch_[of], out)
             : program.RunRest(head_, key, *scratch_[of], out);
}

Status RowMaker::Begin(const Plan::Row& row, const ReadBytes& read,
                       bool from_cache, Places out, bool runs_head,
                       MadeBy* by) {
  if (from_cache) {
    const StepClock::In in(&clock_, kUnpacking);
    const Status status =
        cache_->Unpack(row.record, read.bytes, &cache_scratch_, &head_);
    if (!status.ok()) {
      *by = MadeBy::kNothing;
      return status;
    }
  }
  const auto get = [&] {
    const StepClock::In in(&clock_, kUnpacking);
    return cache_->Get(row.record, &head_);
  };
  if (from_cache || (cache_ != nullptr && get())) {
    ++cache_use_.hits;
    *by = MadeBy::kCache;
    return OkStatus();
  }
  {
    const StepClock::In in(&clock_, kUnpacking);
    PENSTOCK_RETURN_IF_ERROR(
        process_ ? MakeByProcess(row)
                 : dataset_.source->Unpack(row.record, read, &unpack_scratch_,
                                           &raw_));
  }
  if (cache_ != nullptr) ++cache_use_.misses;
  if (!runs_head) return OkStatus();
  const size_t of = dataset_.ProgramOf(row.record);
  PENSTOCK_RETURN_IF_ERROR(dataset_.programs[of]->RunHead(
      raw_, {seed_, row.pass, row.record}, *scratch_[of], out, &head_));
  *by = MadeBy::kHead;
  return OkStatus();
}

// ---- several rows

StatusOr<RowMaker::Added> RowMaker::Add(const Plan::Row& row,
                                        const ReadBytes& read, bool from_cache,
                                        Places out) {
  const size_t of = dataset_.ProgramOf(row.record);
  const RowProgram& program = *dataset_.programs[of];
  RowProgram::Scratch& scratch = *scratch_[of];
  const RowProgram::Several several = program.SeveralIn(scratch);
  if (several == RowProgram::Several::kNever) return Added::kAlone;
  const bool in_head = several == RowProgram::Several::kInHead;
  const AugmentationKey key{seed_, row.pass, row.record};
  const Places wide = Wide(out);
  MadeBy by = MadeBy::kSource;
  Added added = Added::kAdded;
  Status status;
  {
    const SampleQuarantine::Mark mark = MarkOf(row.record);
    PENSTOCK_RETURN_IF_ERROR(mark.status());
    status = Begin(row, read, from_cache, wide, !in_head, &by);
    if (by == MadeBy::kNothing) return Added::kAlone;
    if (status.ok() && by == MadeBy::kCache && in_head) {
      added = Added::kMade;
      status = program.RunRest(head_, key, scratch, wide);
    } else if (status.ok()) {
      // The last row that was made alone is there still.
      if (added_.empty()) program.Forget(scratch);
      status = program.Add(by == MadeBy::kSource ? raw_ : head_, key, scratch);
    }
  }
  if (by == MadeBy::kHead && cache_ != nullptr) PutInCache(row.record);
  PENSTOCK_RETURN_IF_ERROR(status);
  if (added == Added::kMade) {
    PENSTOCK_RETURN_IF_ERROR(FinishLists(out));
  } else {
    added_.push_back(row);
  }
  return added;
}

bool RowMaker::IsFull(const Plan::Row& next) const {
  if (added_.empty()) return false;
  const size_t of = dataset_.ProgramOf(added_[0].record);
  return dataset_.ProgramOf(next.record) != of ||
         dataset_.programs[of]->IsFull(*scratch_[of]);
}

// If all fail, or none answers, the program calls with each alone.
void RowMaker::CallAdded() {
  const size_t of = dataset_.ProgramOf(added_[0].record);
  const SampleQuarantine::Mark mark = MarkOf(added_[0].record);
  dataset_.programs[of]->CallAdded(*scratch_[of]);
}

Status RowMaker::Finish(size_t i, Places out) {
  const Plan::Row& row = added_[i];
  const size_t of = dataset_.ProgramOf(row.record);
  const RowProgram& program = *dataset_.programs[of];
  RowProgram::Scratch& scratch = *scratch_[of];
  const AugmentationKey key{seed_, row.pass, row.record};
  const Places wide = Wide(out);
  bool is_kept = false;
  Status status;
  {
    const SampleQuarantine::Mark mark = MarkOf(row.record);
    PENSTOCK_RETURN_IF_ERROR(mark.status());
    if (program.SeveralIn(scratch) == RowProgram::Several::kInRest) {
      status = program.Finish(i, key, scratch, wide);
    } else {
      status = program.FinishHead(i, key, scratch, wide, &head_);
      is_kept = status.ok() && cache_ != nullptr;
      if (status.ok()) status = program.RunRest(head_, key, scratch, wide);
    }
  }
  if (is_kept) PutInCache(row.record);
  return status.ok() ? FinishLists(out) : status;
}

void RowMaker::ForgetAdded() {
  if (added_.empty()) return;
  const size_t of = dataset_.ProgramOf(added_[0].record);
  dataset_.programs[of]->Forget(*scratch_[of]);
  added_.clear();
}

void RowMaker::SetForm(const ElementSpec& form) {
  if (form_ == &form) return;
  form_ = &form;
  lists_.clear();
  any_narrow_ = false;
  // What programs make; parts that differ otherwise have programs of their own.
  const ElementSpec& row =
      dataset_.bucket_specs.empty() ? form : dataset_.element_spec();
  for (size_t i = 0; i < row.size(); ++i) {
    const std::optional<uint32_t> length = LengthOf(row, row[i]);
    if (!length) continue;
    const bool narrow = form[i] != row[i];
    if (!narrow && !runs_functions_) continue;
    lists_.push_back(
        {i, *length, std::vector<std::byte>(narrow ? row[i].RowBytes() : 0)});
    any_narrow_ |= narrow;
  }
}

RowMaker::Places RowMaker::Wide(Places out) {
  if (!document_.empty()) return wide_out_;
  if (!any_narrow_) return out;
  wide_out_.assign(out.begin(), out.end());
  for (List& each : lists_) {
    if (!each.wide.empty()) wide_out_[each.feature] = each.wide.data();
  }
  return wide_out_;
}

Status RowMaker::FinishLists(Places out) const {
  if (!document_.empty()) {
    return dataset_.packed_rows->Put(piece_, wide_out_, out);
  }
  for (const List& each : lists_) {
    const Feature& feature = (*form_)[each.feature];
    int64_t length = 0;
    std::memcpy(&length, out[each.length], sizeof(length));
    if (length < 0 || length > feature.shape[0]) {
      const std::string& column = (*form_)[each.length].name;
      if (each.wide.empty()) {
        return DataLossError(
            "'{}' is {}, and '{}' has room for {}: give it the number of "
            "items, or another name",
            column, length, feature.name, feature.shape[0]);
      }
      return DataLossError(
          "feature '{}' has a length of {} here and column '{}' at most {} in "
          "its bucket: `map` may make no list longer than batch.buckets goes "
          "by; give the longer one another name",
          feature.name, length, column, feature.shape[0]);
    }
    if (!each.wide.empty()) {
      std::memcpy(out[each.feature], each.wide.data(), feature.RowBytes());
    }
  }
  return OkStatus();
}

Status RowMaker::MakeByProcess(const Plan::Row& row) {
  for (;;) {
    const Status status = process_->Make(seed_, {row.record, row.pass}, &raw_);
    if (status.code() != StatusCode::kAborted) return status;
    on_process_end_(process_->begun());
  }
}

Status RowMaker::MakeOf(const RawRecord& raw, const Plan::Row& row,
                        Places out) {
  const size_t of = dataset_.ProgramOf(row.record);
  const SampleQuarantine::Mark mark = MarkOf(row.record);
  PENSTOCK_RETURN_IF_ERROR(mark.status());
  return dataset_.programs[of]->Run(raw, {seed_, row.pass, row.record},
                                    *scratch_[of], out);
}

Status RowMaker::MakeOfHead(RemoteRows* remote, const RemoteRows::Heads& heads,
                            const RemoteRows::Head& head, const Plan::Row& row,
                            Places out) {
  const RowProgram& program = *remote->steps()->program;
  const bool is_own = &program == dataset_.programs[0].get();
  if (!is_own && remote_scratch_ == nullptr) {
    remote_scratch_ = program.MakeScratch(cancelled_, &clock_);
  }
  RowProgram::Scratch& scratch = is_own ? *scratch_[0] : *remote_scratch_;
  if (!remote->Read(heads, head, row, &remote_bytes_, &head_).ok()) {
    return ReadAndMake(row, out);
  }
  Status status;
  {
    const SampleQuarantine::Mark mark = MarkOf(row.record);
    PENSTOCK_RETURN_IF_ERROR(mark.status());
    status = program.RunRest(head_, {seed_, row.pass, row.record}, scratch,
                             Wide(out));
  }
  if (status.ok()) status = FinishLists(out);
  if (!status.ok()) {
    if (!IsOfSample(status)) return status;
    remote->Differs(head, row.record);
    return ReadAndMake(row, out);
  }
  if (!head.checked) return OkStatus();
  compared_.resize(out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    compared_[i].assign(out[i], out[i] + (*form_)[i].RowBytes());
  }
  status = ReadAndMake(row, out);
  if (!status.ok() && !IsOfSample(status)) return status;
  bool same = status.ok();
  for (size_t i = 0; i < out.size() && same; ++i) {
    same = std::memcmp(compared_[i].data(), out[i], compared_[i].size()) == 0;
  }
  same ? remote->Agrees(head) : remote->Differs(head, row.record);
  return status;
}

// Outside of the mark: it may wait for a disk, for which no sample is to blame.
void RowMaker::PutInCache(uint64_t record) {
  const bool waits = cache_->is_read();
  if (waits) {
    watch_.in_flight->Start(watch_.entry, watch_.job_number, record,
                            watch_.now_ns->load(std::memory_order_relaxed));
  }
  cache_->Put(record, head_, &cache_scratch_);
  if (waits) watch_.in_flight->End(watch_.entry);
}

Status RowMaker::ReadAndMake(const Plan::Row& row, Places out) {
  request_.more.clear();
  dataset_.source->Locate(row.record, &request_);
  if (request_.kind == ReadRequest::Kind::kNone ||
      (cache_ != nullptr && !cache_->is_read() && cache_->Has(row.record))) {
    return Make(row, {}, false, out);
  }
  if (reader_ == nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(reader_,
                              MakeStorageReader(ReadBackend::kPread, 1));
    reader_->ReportBlocking(watch_.in_flight->blocked_on(), watch_.entry);
  }
  watch_.in_flight->Start(watch_.entry, watch_.job_number, row.record,
                          watch_.now_ns->load(std::memory_order_relaxed));
  reader_->Start(0, request_, {}, kNotPinned);
  reader_->Submit();
  StorageReader::Done done;
  const bool is_read = reader_->Next(kWaitForever, &done);
  watch_.in_flight->End(watch_.entry);
  if (!is_read) return InternalError("a read was lost");
  const Status status =
      done.status.ok() ? Make(row, done.read(), false, out) : done.status;
  reader_->Release(0);
  return status;
}

// ---- errors

Status RowMaker::ErrorOf(uint64_t record, const Status& status) const {
  // Read errors name the file, decoder errors do not.
  const std::string where = dataset_.source->Describe(record);
  std::string_view message = status.message();
  const bool told = message.starts_with(where);
  // Libraries end what they say with a full stop; a way out may follow it.
  if (message.ends_with('.') && !message.ends_with("..")) {
    message.remove_suffix(1);
  }
  return Status(status.code(),
                Format("dataset '{}': sample {}{}: {}", name_, record,
                       told ? "" : " in " + where, message));
}

// A substitute is the next record that can be made. The choice depends only on
// the data, so a resumed run substitutes the same.
StatusOr<RowMaker::Outcome> RowMaker::Recover(const Plan::Row& row,
                                              const Status& status,
                                              const Plan& plan,
                                              Shuffles* shuffles, Places out) {
  if (status.code() == StatusCode::kCancelled) return status;
  const Status error = ErrorOf(row.record, status);
  if (!IsOfSample(status)) return error;
  if (cache_ != nullptr) cache_->Fail(row.record);
  if (on_error_ == OnError::kFail) {
    return Status(error.code(),
                  Format("{}; set `on_error` to `skip` or `substitute` to go "
                         "on without such samples",
                         error.message()));
  }
  if (on_error_ == OnError::kSkip) return Outcome{std::nullopt, error};
  if (process_ != nullptr && process_->makes_batches()) {
    const std::optional<uint64_t> other = process_->Substitute();
    if (other) return Outcome{*other, error};
    return Status(status.code(), Format("{}; no other sample of its batch can "
                                        "be read either",
                                        error.message()));
  }
  const uint64_t tries = std::min(kSubstituteTries, plan.records() - 1);
  for (uint64_t i = 1; i <= tries; ++i) {
    const Plan::Row other = plan.Following(row, i, shuffles);
    const Status made = ReadAndMake(other, out);
    // A slow read may have failed the job.
    if (cancelled_ && cancelled_()) return CancelledError("nobody waits");
    if (made.ok()) return Outcome{other.record, error};
  }
  return Status(status.code(),
                Format("{}; {} after it cannot be read either", error.message(),
                       Counted(tries, "sample")));
}

StatusOr<RowMaker::Outcome> RowMaker::MakeAnyhow(const Plan::Row& row,
                                                 const Plan& plan,
                                                 Shuffles* shuffles,
                                                 Places out) {
  const Status status = ReadAndMake(row, out);
  if (!status.ok()) return Recover(row, status, plan, shuffles, out);
  return Outcome{row.record, OkStatus()};
}

// ---- pairs

void RowMaker::MixPair(const Plan::Row& row, const AugmentationKey& pair,
                       Places out, Places partner) {
  const StepClock::In in(&clock_, mixing_part_);
  dataset_.programs[dataset_.ProgramOf(row.record)]->MixPair(pair, out,
                                                             partner);
}

}  // namespace penstock
