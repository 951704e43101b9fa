#include "broker/source/npy.h"

#include "broker/declare/declaration.h"
#include "broker/source/arrays.h"

namespace penstock {

const Declaration<NpySource>& NpySource::Declared() {
  static const auto declared =
      Declaration<NpySource>("npy",
                             "Rows of NumPy's arrays, along their first axis.")
          .Gives("as in the files")
          .Example("{features: {image: [x0.npy, x1.npy], label: y.npy}}")
          .Required("features", &NpySource::features,
                    ValueOfEachFeature(Files()),
                    "{NAME: a file or a list}: arrays of a list follow one "
                    "another; all features have as many rows. The feature with "
                    "the largest rows is read, the others are kept in memory")
          .Optional("io", &NpySource::io, IoType(), kIoText);
  return declared;
}

StatusOr<std::unique_ptr<Source>> NpySource::Open(
    OpenProgress* progress) const {
  std::vector<DataFile> opened;
  std::vector<ArrayFeature> arrays;
  for (const auto& [name, files] : features) {
    ArrayFeature& array = arrays.emplace_back();
    array.feature.name = name;
    for (const std::string& path : files) {
      PENSTOCK_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path));
      PENSTOCK_ASSIGN_OR_RETURN(
          const NpyHeader header,
          ReadNpyHeader(path, file, 0, file.bytes(), progress));
      PENSTOCK_RETURN_IF_ERROR(array.Append(path, opened.size(), 0, header));
      opened.push_back(std::move(file));
    }
  }
  return OpenArrays(std::move(opened), std::move(arrays), io, progress);
}

}  // namespace penstock
