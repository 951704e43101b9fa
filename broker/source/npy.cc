#include "broker/declare/declaration.h"
#include "broker/source/arrays.h"
#include "broker/source/kinds.h"

namespace penstock {

const Declaration<NpySource>& NpySource::Declared() {
  static const auto declared =
      Declaration<NpySource>("npy",
                             "Rows of NumPy's arrays, along their first axis.")
          .Gives("as in the files")
          .Example("{features: {image: [x0.npy, x1.npy], label: y.npy}}")
          .Required(
              "features", &NpySource::features, ValueOfEachFeature(Files()),
              "{NAME: files}, each as paths, globs, braces or a list: "
              "their arrays follow one another; all features have as "
              "many rows. The largest rows are read, others kept in memory "
              "while they have at most 64 MiB together")
          .Optional("io", &NpySource::io, IoType(), kIoText);
  return declared;
}

OpenedSource NpySource::Open(OpenProgress* progress) const {
  std::vector<DataFiles> opened;
  std::vector<ArrayFeature> arrays;
  for (const auto& [name, patterns] : features) {
    ArrayFeature& array = arrays.emplace_back();
    array.feature.name = name;
    array.files = opened.size();
    PENSTOCK_ASSIGN_OR_RETURN(DataFiles files,
                              DataFiles::Open(patterns, *progress));
    for (const DataFile& file : files) {
      PENSTOCK_ASSIGN_OR_RETURN(
          const NpyHeader header,
          ReadNpyHeader(file.path(), file, 0, file.bytes(), progress));
      PENSTOCK_RETURN_IF_ERROR(array.Append(file.path(), file, 0, header));
    }
    opened.push_back(std::move(files));
  }
  return OpenArrays(std::move(opened), std::move(arrays), io, progress);
}

}  // namespace penstock
