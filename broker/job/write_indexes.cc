#include "broker/job/write_indexes.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "broker/index/cache_file.h"
#include "broker/index/index_cache.h"
#include "broker/io/stores.h"
#include "broker/job/dataset.h"

namespace penstock {
namespace {

struct Made {
  std::string path;  // of the file
  std::string suffix;
  std::filesystem::path made;
};

// The bytes before the names that differ: of folders.
size_t CommonFolder(const std::vector<Made>& all) {
  const std::string& first = all.front().path;
  size_t common = first.rfind('/') + 1;
  for (const Made& each : all) {
    while (each.path.compare(0, common, first, 0, common) != 0) {
      common = first.rfind('/', common - 2) + 1;
    }
  }
  return common;
}

Status Put(const std::filesystem::path& from, const std::string& to) {
  const auto access = FileAccess::OfBroker();
  if (IsAddress(to)) {
    PENSTOCK_ASSIGN_OR_RETURN(Stores* const stores, access->StoresOf(to));
    return stores->Put(from, to);
  }
  const std::string temporary = Format("{}.{}", to, getpid());
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(to).parent_path(),
                                      error);
  std::filesystem::copy_file(from, temporary,
                             std::filesystem::copy_options::overwrite_existing,
                             error);
  if (!error) {
    std::filesystem::permissions(temporary,
                                 std::filesystem::perms::group_read |
                                     std::filesystem::perms::others_read,
                                 std::filesystem::perm_options::add, error);
  }
  if (!error) std::filesystem::rename(temporary, to, error);
  if (!error) return OkStatus();
  unlink(temporary.c_str());
  return ErrnoError(error.value(), to);
}

}  // namespace

Status WriteIndexes(const DatasetSpec& spec, const FunctionOptions& functions,
                    const std::string& out, std::FILE* to) {
  std::string folder = CacheFolder() + "/indexes-XXXXXX";
  MakeFolderOf(folder);
  if (mkdtemp(folder.data()) == nullptr) return ErrnoError(errno, folder);
  std::vector<Made> all;
  uint64_t bytes = 0;
  OpenProgress progress;
  progress.on_index = [&](const DataFile& file, const RecordScanner& scanner,
                          const FileRecords& records) {
    all.push_back({file.path(), IndexSuffix(scanner),
                   Format("{}/{}", folder, all.size())});
    return WriteIndexFile(all.back().made, file, scanner, records);
  };
  const auto write = [&]() -> Status {
    PENSTOCK_ASSIGN_OR_RETURN(const auto dataset,
                              OpenDataset(spec, functions, &progress));
    if (all.empty()) {
      return InvalidArgumentError(
          "dataset '{}': its source needs no index beside its files, whose "
          "records have one size or an index of their own: leave --out out",
          spec.name);
    }
    const size_t common = CommonFolder(all);
    const std::string below = out.ends_with('/') ? out : out + "/";
    const auto path_of = [&](const Made& each) {
      return Format("{}{}{}", below, each.path.substr(common), each.suffix);
    };
    for (const Made& each : all) {
      bytes += std::filesystem::file_size(each.made);
      PENSTOCK_RETURN_IF_ERROR(Put(each.made, path_of(each)));
    }
    const nlohmann::json json = {{"files", all.size()},
                                 {"records", dataset->source->record_count()},
                                 {"bytes", bytes},
                                 {"at", path_of(all.front())}};
    std::fputs((json.dump() + "\n").c_str(), to);
    return std::fflush(to) == 0 ? OkStatus() : ErrnoError(errno, "write");
  };
  const Status status = write();
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  return status;
}

}  // namespace penstock
