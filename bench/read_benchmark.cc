// Question: how close to the storage, and to the page cache, are the workers'
// reads (broker/io/read.h)?
//
// Method, four kinds of table:
//   many small files, warm   two threads, each half of the files, in a shuffled
//     and cold               order; beside it a plain pool (open, fstat, pread,
//                            close) and a bare io_uring loop (chains of open,
//                            read and close, nothing else), the latter at the
//                            reader's depth
//   records of one file,     one thread; CPU time beside memcpy of as many
//     warm                   bytes and beside a bare pread loop; into a buffer
//                            that wraps like a job's slots; the cache
//                            filled in order, or in the order of the reads
//   records of one file,     one thread against fio (io_uring, same depth, same
//     cold                   block, same file, direct or not); direct, also CPU
//                            time beside a bare io_uring loop, and one whose
//                            buffers are registered (IORING_REGISTER_BUFFERS)
// Cold reads need /proc/sys/vm/drop_caches and so root. It slows down
// everything else on the machine for a while. Isolation: no broker, no
// decoding; reads only.
//
//   build/dev/bench/read_benchmark --folder /data/somewhere
#include <fcntl.h>
#include <liburing.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "bench/side_by_side.h"
#include "broker/io/read.h"
#include "broker/io/read_backend.h"

namespace penstock {
namespace {

constexpr uint32_t kDepth = 32;
constexpr int kThreads = 2;
constexpr uint64_t kFileBytes = 16'000;

struct Options {
  SideBySideOptions side_by_side;
  std::filesystem::path folder;
  size_t files = 20000;
  uint64_t file_mib = 1024;
};

[[noreturn]] void Die(const std::string& message) {
  Print(stderr, "read_benchmark: {}\n", message);
  std::exit(1);
}
void Check(bool ok, const char* what) {
  if (!ok) Die(Format("{}: {}", what, strerror(errno)));
}

double WallUs() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
double CpuUs(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) * 1e6 +
         static_cast<double>(time.tv_nsec) * 1e-3;
}

bool DropCaches() {
  sync();
  std::ofstream file("/proc/sys/vm/drop_caches");
  return static_cast<bool>(file << "3" << std::flush);
}

// ---- many small files

using Paths = std::vector<std::string>;

Paths MakeFiles(const Options& options) {
  Paths paths;
  const std::string content(kFileBytes, 'p');
  for (size_t i = 0; i < options.files; ++i) {
    const auto folder = options.folder / Format("{:03}", i / 100);
    if (i % 100 == 0) std::filesystem::create_directories(folder);
    paths.push_back(folder / Format("{:06}", i));
    if (std::filesystem::exists(paths.back())) continue;
    std::ofstream(paths.back(), std::ios::binary) << content;
  }
  std::shuffle(paths.begin(), paths.end(), std::mt19937_64(1));
  return paths;
}

void PoolThread(std::span<const std::string> paths) {
  std::vector<char> buffer(256 << 10);
  for (const std::string& path : paths) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    Check(fd >= 0, "open");
    struct stat st;
    Check(fstat(fd, &st) == 0, "fstat");
    Check(pread(fd, buffer.data(), buffer.size(), 0) == st.st_size, "pread");
    close(fd);
  }
}

void UringThread(std::span<const std::string> paths) {
  io_uring ring;
  io_uring_params params = {};
  params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  Check(io_uring_queue_init_params(kDepth * 3, &ring, &params) == 0,
        "io_uring");
  OrderRingMemory();
  const std::vector<int> none(kDepth, -1);
  Check(io_uring_register_files(&ring, none.data(), kDepth) == 0, "files");
  std::vector<std::vector<char>> buffers(kDepth, std::vector<char>(256 << 10));
  std::vector<unsigned> left(kDepth);
  size_t next = 0;
  size_t ended = 0;
  const auto start = [&](uint32_t slot) {
    if (next == paths.size()) return;
    left[slot] = 3;
    io_uring_sqe* sqe = io_uring_get_sqe(&ring);
    io_uring_prep_openat_direct(sqe, AT_FDCWD, paths[next++].c_str(), O_RDONLY,
                                0, slot);
    sqe->flags |= IOSQE_IO_LINK;
    sqe->user_data = slot;
    sqe = io_uring_get_sqe(&ring);
    io_uring_prep_read(sqe, static_cast<int>(slot), buffers[slot].data(),
                       static_cast<unsigned>(buffers[slot].size()), 0);
    sqe->flags |= IOSQE_FIXED_FILE | IOSQE_IO_HARDLINK;
    sqe->user_data = slot;
    sqe = io_uring_get_sqe(&ring);
    io_uring_prep_close_direct(sqe, slot);
    sqe->user_data = slot;
  };
  for (uint32_t slot = 0; slot < kDepth; ++slot) start(slot);
  while (ended < paths.size()) {
    io_uring_submit_and_wait(&ring, 1);
    io_uring_cqe* cqe;
    while (io_uring_peek_cqe(&ring, &cqe) == 0) {
      const auto slot = static_cast<uint32_t>(cqe->user_data);
      if (cqe->res < 0) Die(strerror(-cqe->res));
      io_uring_cqe_seen(&ring, cqe);
      if (--left[slot] > 0) continue;
      ++ended;
      start(slot);
    }
  }
  OrderRingMemory();
  io_uring_queue_exit(&ring);
}

// Reads as a worker does: start(ticket, i) starts the i-th of count reads, up
// to the number of tickets, and returns whether to finish one first.
template <typename StartRead>
void ReadAll(StorageReader* reader, size_t count, StartRead start) {
  std::vector<uint32_t> free;
  for (uint32_t i = reader->depth(); i > 0; --i) free.push_back(i - 1);
  size_t started = 0;
  for (size_t ended = 0; ended < count; ++ended) {
    while (started < count && !free.empty()) {
      const uint32_t ticket = free.back();
      free.pop_back();
      if (start(ticket, started++)) break;
    }
    StorageReader::Done done;
    reader->Submit();
    reader->Next(kWaitForever, &done);
    if (!done.status.ok()) Die(done.status.message());
    reader->Release(done.ticket);
    free.push_back(done.ticket);
  }
}

void ReaderThread(std::span<const std::string> paths) {
  auto reader = MakeStorageReader(ReadBackend::kAuto, kDepth);
  if (!reader.ok()) Die(reader.status().message());
  ReadRequest request;
  request.kind = ReadRequest::Kind::kFile;
  ReadAll(reader->get(), paths.size(), [&](uint32_t ticket, size_t i) {
    request.path = paths[i];
    return (*reader)->Start(ticket, request, {}, kNotPinned);
  });
}

template <typename Thread>
void OnThreads(const Paths& paths, Thread thread) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    const size_t begin = paths.size() * i / kThreads;
    const size_t end = paths.size() * (i + 1) / kThreads;
    threads.emplace_back([&, begin, end] {
      thread(std::span(paths).subspan(begin, end - begin));
    });
  }
  for (std::thread& each : threads) each.join();
}

void AddFiles(const Paths& paths, bool cold, SideBySide* table) {
  const auto add = [&](const char* name, auto thread) {
    table->Add(name, [&paths, cold, thread] {
      if (cold) DropCaches();
      const double begin = cold ? WallUs() : CpuUs(CLOCK_PROCESS_CPUTIME_ID);
      OnThreads(paths, thread);
      const double end = cold ? WallUs() : CpuUs(CLOCK_PROCESS_CPUTIME_ID);
      return (end - begin) / static_cast<double>(paths.size());
    });
  };
  add("reader", &ReaderThread);
  add("plain pool", &PoolThread);
  add("bare io_uring", &UringThread);
}

// ---- records of one file

std::string MakeFile(const Options& options) {
  const std::string path = options.folder / "records";
  const uint64_t bytes = options.file_mib << 20;
  if (std::filesystem::exists(path) &&
      std::filesystem::file_size(path) == bytes) {
    return path;
  }
  std::ofstream file(path, std::ios::binary);
  std::vector<uint64_t> chunk((1 << 20) / sizeof(uint64_t));
  std::mt19937_64 random(1);
  for (uint64_t i = 0; i < options.file_mib; ++i) {
    for (uint64_t& word : chunk) word = random();
    file.write(reinterpret_cast<const char*>(chunk.data()), 1 << 20);
  }
  if (!file.flush()) Die("cannot write " + path);
  return path;
}

// The destination of records: as large as a few batches, so that no cache holds
// it.
class Slots {
 public:
  Slots(uint64_t record_bytes, uint64_t total_bytes)
      : record_bytes_(record_bytes),
        rows_(std::max<uint64_t>(1, total_bytes / record_bytes)),
        memory_(static_cast<std::byte*>(
            std::aligned_alloc(4096, rows_ * record_bytes))) {
    std::memset(memory_.get(), 1, rows_ * record_bytes);
  }
  std::span<std::byte> Row(uint64_t i) {
    return {memory_.get() + i % rows_ * record_bytes_, record_bytes_};
  }
  std::span<std::byte> All() { return {memory_.get(), rows_ * record_bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const uint64_t record_bytes_;
  const uint64_t rows_;
  std::unique_ptr<std::byte[], Free> memory_;
};

std::vector<uint64_t> ShuffledOffsets(uint64_t file_bytes,
                                      uint64_t record_bytes) {
  std::vector<uint64_t> offsets;
  for (uint64_t at = 0; at + record_bytes <= file_bytes; at += record_bytes) {
    offsets.push_back(at);
  }
  std::shuffle(offsets.begin(), offsets.end(), std::mt19937_64(2));
  return offsets;
}

// Every record once into the slots, kDepth at a time.
struct Records {
  Records(const std::string& path, uint64_t record_bytes, uint64_t limit_bytes,
          bool direct = false)
      : path(path),
        record_bytes(record_bytes),
        direct(direct),
        fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0))),
        offsets(ShuffledOffsets(
            std::min<uint64_t>(limit_bytes, std::filesystem::file_size(path)),
            record_bytes)),
        slots(record_bytes, 64 << 20) {
    Check(fd >= 0, "open");
    auto made = MakeStorageReader(ReadBackend::kAuto, kDepth);
    if (!made.ok()) Die(made.status().message());
    reader = *std::move(made);
    if (direct) pinned = reader->Pin(slots.All());
  }
  ~Records() {
    reader.reset();
    close(fd);
  }
  double per_record(double us) const {
    return us / static_cast<double>(offsets.size());
  }

  const std::string path;
  const uint64_t record_bytes;
  const bool direct;
  const int fd;
  const std::vector<uint64_t> offsets;
  Slots slots;
  std::unique_ptr<StorageReader> reader;
  uint32_t pinned = kNotPinned;
};

// Every record once into the slots, kDepth at a time.
void ReadRecords(Records* records) {
  ReadRequest request;
  request.kind = ReadRequest::Kind::kRange;
  request.fd = records->fd;
  request.bytes = records->record_bytes;
  request.align = records->direct ? kReadBufferAlign : 0;
  ReadAll(records->reader.get(), records->offsets.size(),
          [&](uint32_t ticket, size_t i) {
            request.offset = records->offsets[i];
            return records->reader->Start(
                ticket, request, records->slots.Row(i), records->pinned);
          });
}

// The same with nothing but the ring, made once like the reader.
class BareRing {
 public:
  explicit BareRing(Records* records) : records_(records) {
    io_uring_params params = {};
    params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    const int made = io_uring_queue_init_params(kDepth, &ring_, &params);
    if (made < 0) Die(strerror(-made));
    OrderRingMemory();
  }
  // Reads go to registered buffers from now on; else why not, an errno.
  int Register() {
    const std::span<std::byte> all = records_->slots.All();
    const iovec memory = {all.data(), all.size()};
    const int result = io_uring_register_buffers(&ring_, &memory, 1);
    registered_ = result == 0;
    return -result;
  }
  ~BareRing() {
    OrderRingMemory();
    io_uring_queue_exit(&ring_);
  }
  BareRing(const BareRing&) = delete;
  BareRing& operator=(const BareRing&) = delete;

  void Read() {
    started_ = 0;
    for (uint32_t i = 0; i < kDepth; ++i) Start();
    for (size_t ended = 0; ended < records_->offsets.size();) {
      io_uring_submit_and_wait(&ring_, 1);
      io_uring_cqe* cqe;
      while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
        if (cqe->res != static_cast<int>(records_->record_bytes)) {
          Die("a short read");
        }
        io_uring_cqe_seen(&ring_, cqe);
        ++ended;
        Start();
      }
    }
  }

 private:
  void Start() {
    if (started_ == records_->offsets.size()) return;
    const auto row = records_->slots.Row(started_);
    const uint64_t offset = records_->offsets[started_++];
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    const auto bytes = static_cast<unsigned>(row.size());
    if (registered_) {
      io_uring_prep_read_fixed(sqe, records_->fd, row.data(), bytes, offset, 0);
    } else {
      io_uring_prep_read(sqe, records_->fd, row.data(), bytes, offset);
    }
  }

  Records* const records_;
  bool registered_ = false;
  io_uring ring_;
  size_t started_ = 0;
};

// The page cache keeps what was read in order in large pieces, and what was
// read at random page by page, which is slower to copy.
void FillCache(const Records& records, bool in_order) {
  Check(posix_fadvise(records.fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "fadvise");
  std::vector<uint64_t> offsets = records.offsets;
  if (in_order) std::sort(offsets.begin(), offsets.end());
  std::vector<char> buffer(records.record_bytes);
  for (const uint64_t offset : offsets) {
    Check(pread(records.fd, buffer.data(), buffer.size(),
                static_cast<off_t>(offset)) > 0,
          "pread");
  }
}

void AddWarm(const std::shared_ptr<Records>& records, bool in_order,
             SideBySide* table) {
  auto filled = std::make_shared<bool>(false);
  const auto add = [&](const char* name, auto run) {
    table->Add(name, [records, in_order, filled, run] {
      if (!*filled) FillCache(*records, in_order);
      *filled = true;
      const double begin = CpuUs(CLOCK_THREAD_CPUTIME_ID);
      run(records.get());
      return records->per_record(CpuUs(CLOCK_THREAD_CPUTIME_ID) - begin);
    });
  };
  add("reader", [](Records* r) { ReadRecords(r); });
  add("pread loop", [](Records* r) {
    for (size_t i = 0; i < r->offsets.size(); ++i) {
      const auto row = r->slots.Row(i);
      Check(pread(r->fd, row.data(), row.size(),
                  static_cast<off_t>(r->offsets[i])) ==
                static_cast<ssize_t>(row.size()),
            "pread");
    }
  });
  // From memory of the file's size, like the page cache.
  const uint64_t bytes = records->offsets.size() * records->record_bytes;
  auto source = std::make_shared<std::vector<std::byte>>(bytes, std::byte{7});
  add("memcpy", [source](Records* r) {
    for (size_t i = 0; i < r->offsets.size(); ++i) {
      std::memcpy(r->slots.Row(i).data(), source->data() + r->offsets[i],
                  r->record_bytes);
    }
  });
}

// fio's us per record, or an error message.
double RunFio(const Records& records) {
  const std::string command = Format(
      "fio --name=r --filename={} --readonly --rw=randread --ioengine=io_uring "
      "--fadvise_hint=0 "
      "--direct={} --iodepth={} --bs={} --size={} --invalidate=0 "
      "--output-format=json 2>/dev/null",
      records.path, records.direct ? 1 : 0, kDepth, records.record_bytes,
      records.offsets.size() * records.record_bytes);
  FILE* pipe = popen(command.c_str(), "r");
  Check(pipe != nullptr, "popen");
  std::string text;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    text.append(buffer, n);
  }
  if (pclose(pipe) != 0) Die("fio failed: " + text);
  const auto read = nlohmann::json::parse(text).at("jobs").at(0).at("read");
  return read.at("runtime").get<double>() * 1e3 /
         read.at("total_ios").get<double>();
}

void AddCold(const std::shared_ptr<Records>& records, SideBySide* table) {
  table->Add("fio", [records] {
    DropCaches();
    return RunFio(*records);
  });
  table->Add("reader", [records] {
    DropCaches();
    const double begin = WallUs();
    ReadRecords(records.get());
    return records->per_record(WallUs() - begin);
  });
}

// The CPU cost of a record, without the time of the storage.
void AddDirectCpu(const std::shared_ptr<Records>& records, SideBySide* table) {
  const auto add = [&](const char* name, auto run) {
    table->Add(name, [records, run] {
      const double begin = CpuUs(CLOCK_THREAD_CPUTIME_ID);
      run(records.get());
      return records->per_record(CpuUs(CLOCK_THREAD_CPUTIME_ID) - begin);
    });
  };
  add("reader", [](Records* r) { ReadRecords(r); });
  auto bare = std::make_shared<BareRing>(records.get());
  add("bare io_uring", [bare](Records*) { bare->Read(); });
  auto registered = std::make_shared<BareRing>(records.get());
  if (const int error = registered->Register(); error != 0) {
    Print(stderr, "no registered buffers beside it: {}{}\n", strerror(error),
          error == ENOMEM ? " (ulimit -l)" : "");
    return;
  }
  add("registered buffers", [registered](Records*) { registered->Read(); });
}

bool HasDirectReads(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

std::string BytesName(uint64_t bytes) {
  return bytes < (1 << 20) ? Format("{} KiB", bytes >> 10)
                           : Format("{} MiB", bytes >> 20);
}

int Main(int argc, char** argv) {
  CommandLine line(
      "read_benchmark",
      "The cost of reads, compared with the bare storage and the page cache");
  Options options;
  line.AddOption("--folder", &options.folder,
                 "Folder for files (1.5 GiB), which are kept")
      .Required();
  line.AddOption("--files", &options.files, "").ShowDefault();
  line.AddOption("--file-mib", &options.file_mib, "").ShowDefault();
  AddSideBySideOptions(line, &options.side_by_side);
  line.ParseOrExit(argc, argv);
  if (options.side_by_side.tiny) {
    options.files = 50;
    options.file_mib = 2;
  }
  std::filesystem::create_directories(options.folder);
  const Paths paths = MakeFiles(options);
  const std::string file = MakeFile(options);
  // A tiny run must not disturb the machine.
  const bool cold = !options.side_by_side.tiny && DropCaches();
  const bool fio = std::system("fio --version >/dev/null 2>&1") == 0;

  std::vector<SideBySide> tables;
  tables.emplace_back(Format("{} files of {} bytes, warm, {} threads",
                             paths.size(), kFileBytes, kThreads),
                      "us of CPU a file");
  AddFiles(paths, false, &tables.back());
  if (cold) {
    tables.emplace_back(Format("{} files of {} bytes, cold, {} threads",
                               paths.size(), kFileBytes, kThreads),
                        "us a file");
    AddFiles(paths, true, &tables.back());
  } else {
    Print(stderr, "not root, or tiny: nothing is read cold\n");
  }
  for (const bool in_order : {true, false}) {
    for (const uint64_t kib : {4, 16, 128, 1024}) {
      auto records = std::make_shared<Records>(
          file, kib << 10, std::min<uint64_t>(options.file_mib, 256) << 20);
      tables.emplace_back(
          Format("records of {}, warm, cache filled {}", BytesName(kib << 10),
                 in_order ? "in order" : "at random"),
          "us of CPU a record");
      AddWarm(records, in_order, &tables.back());
    }
  }
  for (const uint64_t kib : {128, 1024}) {
    for (const bool direct : {false, true}) {
      if (direct && !HasDirectReads(file)) {
        Print(stderr, "{}: its file system has no O_DIRECT\n", file);
        continue;
      }
      auto records = std::make_shared<Records>(file, kib << 10,
                                               options.file_mib << 20, direct);
      const std::string name =
          Format("records of {}, {}, depth {}", BytesName(kib << 10),
                 direct ? "direct" : "buffered", kDepth);
      if (cold) {
        tables.emplace_back(name + ", cold", "us a record");
        if (fio) {
          AddCold(records, &tables.back());
        } else {
          tables.back().Absent("fio", "not installed (apt install fio)");
        }
      }
      if (direct) {
        tables.emplace_back(name, "us of CPU a record");
        AddDirectCpu(records, &tables.back());
      }
    }
  }
  std::vector<SideBySide*> pointers;
  for (SideBySide& table : tables) pointers.push_back(&table);
  RunSideBySide(pointers, options.side_by_side);
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
