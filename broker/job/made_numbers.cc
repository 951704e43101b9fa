#include "broker/job/made_numbers.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "broker/transform/draws.h"
#include "broker/transform/row_program.h"

namespace penstock {
namespace {

class Maker final : public MadeNumbers::Maker {
 public:
  Maker(std::shared_ptr<const RowProgram> program,
        std::span<const size_t> numbers, const Cancelled& cancelled,
        MadeNumbers::Take take)
      : program_(std::move(program)),
        scratch_(program_->MakeScratch(cancelled)),
        take_(std::move(take)),
        several_(program_->SeveralIn(*scratch_) !=
                 RowProgram::Several::kNever) {
    for (const Feature& each : program_->element_spec()) {
      features_.emplace_back((each.RowBytes() / sizeof(std::max_align_t)) + 1);
      out_.push_back(reinterpret_cast<std::byte*>(features_.back().data()));
    }
    for (const size_t number : numbers) numbers_.push_back(out_[number]);
  }

  Status Add(uint64_t record, const RawRecord& raw) override {
    if (!several_) {
      return Take(record, program_->Run(raw, {}, *scratch_, out_));
    }
    const Status added = program_->Add(raw, {}, *scratch_);
    if (!added.ok()) return take_(record, added);
    records_.push_back(record);
    return program_->IsFull(*scratch_) ? Finish() : OkStatus();
  }

  Status Finish() override {
    if (records_.empty()) return OkStatus();
    program_->CallAdded(*scratch_);
    Status status;
    for (size_t i = 0; i < records_.size() && status.ok(); ++i) {
      status = Take(records_[i], program_->Finish(i, {}, *scratch_, out_));
    }
    program_->Forget(*scratch_);
    records_.clear();
    return status;
  }

 private:
  Status Take(uint64_t record, const Status& made) {
    if (!made.ok()) return take_(record, made);
    return take_(record, std::span<const std::byte* const>(numbers_));
  }

  const std::shared_ptr<const RowProgram> program_;
  const std::unique_ptr<RowProgram::Scratch> scratch_;
  const MadeNumbers::Take take_;
  const bool several_;
  std::vector<uint64_t> records_;  // that were added
  std::vector<std::vector<std::max_align_t>> features_;
  std::vector<std::byte*> out_;
  std::vector<const std::byte*> numbers_;
};

}  // namespace

MadeNumbers NumbersOfHead(const DatasetSpec& spec, const Source& source,
                          const FunctionOptions& functions,
                          OpenProgress* progress) {
  MadeNumbers made;
  if (!spec.map_by_part.empty() || !source.CheckAlike().ok()) return made;
  std::vector<MapStep> steps = MapOf(spec, 0);
  steps.erase(std::find_if(steps.begin(), steps.end(),
                           [](const MapStep& each) { return Draws(*each.op); }),
              steps.end());
  MapOpening opening = {progress};
  opening.fingerprint = [&] { return source.fingerprint(); };
  auto compiled =
      RowProgram::Compile(steps, source.RawSpecOfPart(0), functions, &opening);
  if (steps.empty() || !compiled.ok()) return made;
  const std::shared_ptr<const RowProgram> program = *std::move(compiled);
  const RawSpec row = RawSpecOf(program->element_spec());
  std::vector<size_t> numbers;
  for (size_t i = 0; i < row.size(); ++i) {
    if (!IsNumber(row[i])) continue;
    numbers.push_back(i);
    made.features.push_back(row[i].feature);
  }
  nlohmann::ordered_json key = DatasetSpecToJson(spec).at("map");
  key.erase(key.begin() + static_cast<ptrdiff_t>(steps.size()), key.end());
  for (const auto& file : opening.files) key.push_back(file->digest());
  if (const std::string made_by = program->made_by(); !made_by.empty()) {
    key.push_back(made_by);
  }
  made.key = key.dump();
  made.in_processes = program->wait_ns() > 0;
  made.begin = [program, numbers,
                cancelled = opening.cancelled()](MadeNumbers::Take take) {
    return std::make_unique<Maker>(program, numbers, cancelled,
                                   std::move(take));
  };
  return made;
}

}  // namespace penstock
