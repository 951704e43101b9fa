#include "broker/source/selection.h"

#include <algorithm>

namespace penstock {

StatusOr<Selection> Selection::Open(const std::vector<SelectSpec>& steps,
                                    const SourceSpec& spec,
                                    const Source& source,
                                    OpenProgress* progress,
                                    std::vector<ColumnUse> uses,
                                    const MadeNumbers& made, bool bad_ones) {
  for (size_t i = 0; i < steps.size(); ++i) {
    for (std::string& name : ColumnsOf(steps[i])) {
      uses.push_back({Format("select[{}]", i), std::move(name)});
    }
  }
  Selection opened;
  PENSTOCK_ASSIGN_OR_RETURN(opened.files_,
                            RecordFiles::Open(steps, spec, source, progress));
  // Records that are excluded before anything else need not be readable.
  const auto has = opened.files_.Lookup(0);
  std::vector<std::string> lists;
  for (const SelectSpec& step : steps) {
    const auto* exclude = std::get_if<ExcludeStep>(&step);
    if (exclude == nullptr) break;
    lists.push_back(exclude->records);
  }
  FileDigests excluded;
  if (!lists.empty()) opened.files_.AddDigests(&excluded);
  PENSTOCK_ASSIGN_OR_RETURN(
      opened.read_, ReadColumns::Open(uses, spec, source,
                                      {[&](uint64_t record) {
                                         return std::any_of(
                                             lists.begin(), lists.end(),
                                             [&](const std::string& list) {
                                               return has(list, record);
                                             });
                                       },
                                       std::move(excluded), bad_ones},
                                      made, progress));
  return opened;
}

SelectContext Selection::Context(const Source& source, uint64_t first,
                                 const OrderBudget& budget) const {
  SelectContext context = {.columns = source.columns(first),
                           .budget = budget,
                           .file_has = files_.Lookup(first)};
  read_.AddTo(first, &context.columns);
  context.readable = ReadColumns::NamesOf(source);
  return context;
}

uint64_t Selection::memory_bytes() const {
  return files_.memory_bytes() + read_.memory_bytes();
}

void Selection::AddDigests(FileDigests* digests) const {
  files_.AddDigests(digests);
  read_.AddDigests(digests);
}

}  // namespace penstock
