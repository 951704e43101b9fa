#include <algorithm>

#include "broker/declare/declaration.h"
#include "broker/source/arrays.h"
#include "broker/source/kinds.h"
#include "broker/source/zip_directory.h"

namespace penstock {
namespace {

// The array of this name, as numpy.load names it: without ".npy".
StatusOr<ZipMember> FindArray(const std::string& path,
                              const std::vector<ZipMember>& members,
                              const std::string& array) {
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const ZipMember& each) {
        return each.name == array || each.name == array + ".npy";
      });
  if (found != members.end()) return *found;
  constexpr size_t kNamesToldMax = 8;
  std::vector<std::string> names;
  for (const ZipMember& each : members) {
    if (names.size() == kNamesToldMax) {
      names.push_back("...");
      break;
    }
    names.push_back(Quoted(each.name));
  }
  return NotFoundError("{}: no array {}; it has {}", path, Quoted(array),
                       JoinText(names, ", "));
}

Status CheckStored(const std::string& name, const ZipMember& member) {
  if (member.is_encrypted) {
    return InvalidArgumentError("{} is encrypted; decrypt it on disk", name);
  }
  if (member.method != ZipMember::kStored) {
    return InvalidArgumentError(
        "{} is compressed (method {}), so that its rows have no places in the "
        "file; write it with np.savez instead of np.savez_compressed",
        name, member.method);
  }
  return OkStatus();
}

}  // namespace

const Declaration<NpzSource>& NpzSource::Declared() {
  static const auto declared =
      Declaration<NpzSource>("npz",
                             "Rows of the arrays in a file of numpy.savez, "
                             "along their first axis.")
          .Gives("as in the file")
          .Example("{file: train.npz, features: {image: x, label: y}}")
          .Required("file", &NpzSource::file, Path(),
                    "where it is; not of savez_compressed")
          .Required(
              "features", &NpzSource::features,
              ValueOfEachFeature(
                  Text("the name of an array",
                       [](std::string_view text) { return !text.empty(); })),
              "{NAME: an array}; all have as many rows. The largest rows "
              "are read, others kept in memory while they have at most 64 MiB "
              "together")
          .Optional("io", &NpzSource::io, IoType(), kIoText);
  return declared;
}

OpenedSource NpzSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(DataFile only,
                            DataFile::Open(file, *progress->access));
  std::vector<DataFiles> files;
  const DataFile& opened = files.emplace_back(std::move(only))[0];
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<ZipMember> members,
                            ReadZipDirectory(opened, progress));
  std::vector<ArrayFeature> arrays;
  for (const auto& [feature, array_name] : features) {
    ArrayFeature& array = arrays.emplace_back();
    array.feature.name = feature;
    PENSTOCK_ASSIGN_OR_RETURN(const ZipMember member,
                              FindArray(file, members, array_name));
    const std::string name = Format("{}, array {}", file, Quoted(array_name));
    PENSTOCK_RETURN_IF_ERROR(CheckStored(name, member));
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t data_at,
                              FindZipData(opened, member, progress));
    PENSTOCK_ASSIGN_OR_RETURN(
        const NpyHeader header,
        ReadNpyHeader(name, opened, data_at, member.bytes, progress));
    PENSTOCK_RETURN_IF_ERROR(array.Append(name, opened, data_at, header));
  }
  return OpenArrays(std::move(files), std::move(arrays), io, progress);
}

}  // namespace penstock
