// Question: what does it cost to open an image folder, or a file of many
// records, the first time and from the cache of its index?
//
// Method: FILES empty files (sparse: no data is looked at) in a class folder
// for each thousand. "scan" is the source's walk, sorted into its index; beside
// it a bare walk by as many threads that reads the same directories (readdir)
// and keeps nothing. "from the cache" opens the whole source from its cache
// file, which asks every folder for its time.
// Records: RECORDS lines of 10 bytes in one file, beside a bare read of that
// file by blocks.
// Isolation: files and directories warm in the kernel's caches; no broker.
// Limit: getdents of the file system, and for the scan sorting the names; for
// records memory bandwidth, 12 bytes each.
//
//   build/dev/bench/index_benchmark --folder /tmp/many --files 1000000
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "bench/side_by_side.h"
#include "broker/index/cache_file.h"
#include "broker/source/image_folder_index.h"
#include "broker/source/kinds.h"

namespace penstock {
namespace {

constexpr uint64_t kFilesPerClass = 1000;
constexpr int kWalkThreads = 4;  // as many as the scan takes on two cores

[[noreturn]] void Die(const std::string& message) {
  Print(stderr, "index_benchmark: {}\n", message);
  std::exit(1);
}

double WallMs() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::vector<std::string> MakeFolders(const std::string& root, uint64_t files) {
  std::vector<std::string> folders;
  for (uint64_t first = 0; first < files; first += kFilesPerClass) {
    const std::string folder =
        Format("{}/n{:08}", root, first / kFilesPerClass);
    folders.push_back(folder);
    const uint64_t count = std::min(kFilesPerClass, files - first);
    // The last file marks the folder as complete.
    const auto name = [&](uint64_t i) {
      return Format("{}/n{:08}_{}.JPEG", folder, first / kFilesPerClass,
                    (i * 7919) % kFilesPerClass);
    };
    if (std::filesystem::exists(name(count - 1))) continue;
    std::filesystem::create_directories(folder);
    for (uint64_t i = 0; i < count; ++i) {
      const int fd =
          open(name(i).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
      if (fd < 0) Die("cannot create " + name(i));
      close(fd);
    }
  }
  return folders;
}

uint64_t BareWalk(const std::vector<std::string>& folders) {
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> entries{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kWalkThreads; ++t) {
    threads.emplace_back([&] {
      uint64_t mine = 0;
      for (size_t i; (i = next.fetch_add(1)) < folders.size();) {
        DIR* const dir = opendir(folders[i].c_str());
        if (dir == nullptr) Die("cannot open " + folders[i]);
        while (readdir(dir) != nullptr) ++mine;
        closedir(dir);
      }
      entries += mine;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return entries;
}

std::string MakeLines(const std::string& folder, uint64_t records) {
  const std::string path = Format("{}/lines-{}", folder, records);
  if (std::filesystem::exists(path)) return path;
  std::string text;
  for (uint64_t i = 0; i < records; ++i) text += Format("{:09}\n", i);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

void BareRead(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::vector<char> block(1 << 20);
  while (read(fd, block.data(), block.size()) > 0) continue;
  close(fd);
}

int Main(int argc, char** argv) {
  CommandLine line("index_benchmark", "Opening an image folder of many files");
  SideBySideOptions options;
  std::string folder;
  uint64_t files = 1'000'000;
  uint64_t records = 10'000'000;
  line.AddOption("--folder", &folder, "Folder for files, which are kept")
      .Required();
  line.AddOption("--files", &files, "").ShowDefault();
  line.AddOption("--records", &records, "").ShowDefault();
  AddSideBySideOptions(line, &options);
  line.ParseOrExit(argc, argv);
  if (options.tiny) files = records = 1500;
  std::filesystem::create_directories(folder + "/cache");
  setenv("PENSTOCK_CACHE_DIR", (folder + "/cache").c_str(), 1);
  const std::string root =
      std::filesystem::absolute(folder) / Format("files-{}", files);
  const std::vector<std::string> folders = MakeFolders(root, files);
  const std::string lines =
      MakeLines(std::filesystem::absolute(folder).string(), records);
  // A cache is written only for folders without very recent changes.
  std::this_thread::sleep_for(std::chrono::nanoseconds(kSettledNs));

  const auto open = [&] {
    auto source = OpenSource(ImageFolderSource{root}, nullptr);
    if (!source.ok()) Die(source.status().message());
    if ((*source)->record_count() != files) Die("files are missing");
  };
  open();  // writes the cache
  if (!std::filesystem::exists(FolderCacheFile(root, true)))
    Die("no cache written");

  const auto cost = [](auto run) {
    return [run] {
      const double begin = WallMs();
      run();
      return WallMs() - begin;
    };
  };
  SideBySide table(Format("{} files in {} folders", files, folders.size()),
                   "ms");
  table.Add("bare walk", cost([&] {
              if (BareWalk(folders) < files) Die("files are missing");
            }));
  table.Add("scan", cost([&] {
              auto index = ScanFolder(root, true,
                                      std::make_unique<OpenProgress>().get());
              if (!index.ok()) Die(index.status().message());
            }));
  table.Add("from the cache", cost(open));

  TextLinesSource spec;
  spec.files.patterns = {lines};
  spec.max_bytes = 16;
  const auto open_lines = [&spec, records] {
    auto source = OpenSource(spec, nullptr);
    if (!source.ok()) Die(source.status().message());
    if ((*source)->record_count() != records) Die("records are missing");
  };
  open_lines();  // writes the cache
  SideBySide of_records(Format("{} lines in a file", records), "ms");
  of_records.Add("bare read", cost([&lines] { BareRead(lines); }));
  of_records.Add("scan", cost([&open_lines] {
                   setenv("PENSTOCK_CACHE_DIR", "/nowhere/to/write", 1);
                   open_lines();
                 }));
  of_records.Add("from the cache", cost([&open_lines, &folder] {
                   setenv("PENSTOCK_CACHE_DIR", (folder + "/cache").c_str(), 1);
                   open_lines();
                 }));
  RunSideBySide({&table, &of_records}, options);
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
