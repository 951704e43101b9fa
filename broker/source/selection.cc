#include "broker/source/selection.h"

namespace penstock {

StatusOr<Selection> Selection::Open(const std::vector<SelectSpec>& steps,
                                    const SourceSpec& spec,
                                    const Source& source,
                                    OpenProgress* progress,
                                    std::vector<ColumnUse> uses) {
  for (size_t i = 0; i < steps.size(); ++i) {
    for (std::string& name : ColumnsOf(steps[i])) {
      uses.push_back({Format("select[{}]", i), std::move(name)});
    }
  }
  Selection opened;
  PENSTOCK_ASSIGN_OR_RETURN(opened.files_,
                            RecordFiles::Open(steps, spec, source, progress));
  PENSTOCK_ASSIGN_OR_RETURN(opened.read_,
                            ReadColumns::Open(uses, spec, source, progress));
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
