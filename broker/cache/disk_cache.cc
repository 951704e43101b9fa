#include "broker/cache/disk_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "broker/base/log.h"
#include "broker/index/data_file.h"
#include "broker/index/fingerprint.h"
#include "broker/io/file_error.h"
#include "common/crc32c.h"

namespace penstock {

struct DiskCache::Header {
  static constexpr uint64_t kMagic = 0x3153574f524e5350;  // "PSNROWS1"
  static constexpr uint64_t kBytes = 4096;  // the key begins there
  static constexpr uint64_t kKeyBytesMax = uint64_t{1} << 20;

  uint64_t magic = kMagic;
  uint64_t complete = 0;
  uint64_t records = 0;
  uint64_t key_bytes = 0;
  uint64_t entries_bytes = 0;        // complete: of the other file
  std::array<uint64_t, 2> places{};  // complete: their digest
  uint64_t crc = 0;                  // CRC-32C of all before it

  uint32_t Crc() const {
    return Crc32c(
        std::as_bytes(std::span(this, 1)).first(offsetof(Header, crc)));
  }
  uint64_t PlacesAt() const {
    return kBytes + (key_bytes + kBytes - 1) / kBytes * kBytes;
  }
};

struct DiskCache::Opened {
  Fd index;
  Fd entries;
  Header header;
  std::string key;
  uint64_t entries_bytes = 0;
  bool valid = false;  // it has a header, a key, and as many places as it says
  bool ours = true;    // it is empty, or has the mark of a cache
  bool writes = false;
};

namespace {

struct EntryHeader {
  uint32_t crc = 0;
  uint32_t stored = 0;
  uint32_t bytes = 0;
  uint32_t zero = 0;
  uint64_t record = 0;
};
static_assert(sizeof(EntryHeader) == 24);

constexpr size_t kPlacesAtOnce = 64 << 10;

bool ReadAll(int fd, uint64_t at, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = pread(fd, out.data(), out.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    out = out.subspan(static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
  }
  return true;
}

bool WriteAll(int fd, uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n =
        pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = ENOSPC;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
  }
  return true;
}

// A regular file, its bytes.
StatusOr<uint64_t> BytesOf(const Fd& fd, const std::string& path) {
  struct stat st;
  if (fstat(fd.get(), &st) != 0) return OpenError(errno, path);
  if (!S_ISREG(st.st_mode)) return NotRegularError(st.st_mode, path);
  return static_cast<uint64_t>(st.st_size);
}

// What others may write is nobody's cache.
Status CheckOwner(const Fd& fd, const std::string& path) {
  struct stat st;
  if (fstat(fd.get(), &st) != 0) return OpenError(errno, path);
  if (st.st_uid == geteuid() && (st.st_mode & (S_IWGRP | S_IWOTH)) == 0) {
    return OkStatus();
  }
  return PermissionDeniedError(
      "{}: belongs to another user, or others may write it: remove it, or give "
      "another path",
      path);
}

// What differs of two keys.
std::string DifferenceOf(const std::string& here, const std::string& there) {
  using Json = nlohmann::json;
  const Json a = Json::parse(here, nullptr, false);
  const Json b = Json::parse(there, nullptr, false);
  const auto differs = [&](const char* name) {
    const auto of = [name](const Json& json) {
      return json.is_object() ? json.value(name, Json()) : Json();
    };
    return of(a) != of(b);
  };
  if (differs("source")) return "another source";
  if (differs("data")) return "other files or records";
  if (differs("changed")) return "files that have changed since";
  if (differs("map") || differs("files")) return "other steps of `map`";
  if (differs("access")) return "the files of another user's access";
  return "rows of another version of Penstock";
}

// The context that a worker keeps, made when it is first wanted.
template <typename Context>
Context* ContextIn(std::shared_ptr<void>* kept, Context* (*make)(),
                   size_t (*free)(Context*)) {
  if (*kept == nullptr) *kept = std::shared_ptr<Context>(make(), free);
  return static_cast<Context*>(kept->get());
}

// Calls visit(first, words) for the places of all records; false: they end
// before.
template <typename Visit>
bool ForEachPlaces(int index, uint64_t places_at, uint64_t records,
                   const Visit& visit) {
  std::vector<uint64_t> words(std::min<uint64_t>(records, kPlacesAtOnce));
  for (uint64_t first = 0; first < records; first += words.size()) {
    words.resize(std::min<uint64_t>(words.size(), records - first));
    if (!ReadAll(index, places_at + RowCache::PlacesBytes(first),
                 std::as_writable_bytes(std::span(words)))) {
      return false;
    }
    visit(first, std::span<const uint64_t>(words));
  }
  return true;
}

}  // namespace

// ---- opening

namespace {

template <typename Opened>
Status ReadHeader(const std::string& path, Opened* opened) {
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t bytes, BytesOf(opened->index, path));
  auto& header = opened->header;
  opened->valid = false;
  opened->ours = bytes == 0;
  if (!ReadAll(opened->index.get(), 0,
               std::as_writable_bytes(std::span(&header, 1)))) {
    return OkStatus();
  }
  opened->ours = header.magic == header.kMagic;
  if (!opened->ours || header.crc != header.Crc() ||
      header.key_bytes > header.kKeyBytesMax || header.PlacesAt() > bytes ||
      header.records != (bytes - header.PlacesAt()) / sizeof(uint64_t)) {
    return OkStatus();
  }
  opened->key.resize(header.key_bytes);
  opened->valid = ReadAll(opened->index.get(), header.kBytes,
                          std::as_writable_bytes(std::span(opened->key)));
  return OkStatus();
}

}  // namespace

Status DiskCache::Compare(const Options& options, uint64_t records,
                          const Opened& opened) {
  if (opened.key == options.key && opened.header.records == records) {
    return OkStatus();
  }
  return FailedPreconditionError(
      "{}: was made of {}: remove it to have it made anew, or give another "
      "path",
      options.files.index, DifferenceOf(options.key, opened.key));
}

StatusOr<DiskCache::Opened> DiskCache::OpenToRead(const Options& options,
                                                  uint64_t records) {
  Opened opened;
  const Files& files = options.files;
  PENSTOCK_ASSIGN_OR_RETURN(opened.index,
                            options.access->Open(files.index, O_NONBLOCK));
  PENSTOCK_RETURN_IF_ERROR(ReadHeader(files.index, &opened));
  if (!opened.valid || opened.header.complete == 0) {
    return FailedPreconditionError(
        "{}: is not complete: it has not every record of the source yet, and "
        "only a broker that may write it goes on with it",
        files.index);
  }
  PENSTOCK_RETURN_IF_ERROR(Compare(options, records, opened));
  PENSTOCK_ASSIGN_OR_RETURN(opened.entries,
                            options.access->Open(files.entries, O_NONBLOCK));
  PENSTOCK_ASSIGN_OR_RETURN(opened.entries_bytes,
                            BytesOf(opened.entries, files.entries));
  return opened;
}

StatusOr<DiskCache::Opened> DiskCache::OpenToWrite(const Options& options,
                                                   uint64_t records) {
  const Files& files = options.files;
  const mode_t mode = options.access->key().empty() ? 0644 : 0600;
  const auto open_one = [mode](const std::string& path) -> StatusOr<Fd> {
    Fd fd(open(path.c_str(),
               O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode));
    if (!fd) return OpenError(errno, path);
    PENSTOCK_RETURN_IF_ERROR(BytesOf(fd, path).status());
    PENSTOCK_RETURN_IF_ERROR(CheckOwner(fd, path));
    return fd;
  };
  const std::filesystem::path folder =
      std::filesystem::path(files.index).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return OpenError(error.value(), folder);
  Opened opened;
  PENSTOCK_ASSIGN_OR_RETURN(opened.index, open_one(files.index));
  PENSTOCK_RETURN_IF_ERROR(ReadHeader(files.index, &opened));
  if (!opened.valid || opened.header.complete == 0) {
    if (flock(opened.index.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return OpenError(errno, files.index);
      if (options.snapshot && opened.valid) {
        PENSTOCK_RETURN_IF_ERROR(Compare(options, records, opened));
      }
      return UnavailableError(
          "{}: another broker or job writes it: its rows are not used here",
          files.index);
    }
    // It may have been completed, or begun, before that.
    PENSTOCK_RETURN_IF_ERROR(ReadHeader(files.index, &opened));
  }
  if (!opened.ours) {
    return FailedPreconditionError(
        "{}: is no file of a cache: give another path", files.index);
  }
  const Status same = Compare(options, records, opened);
  PENSTOCK_ASSIGN_OR_RETURN(opened.entries, open_one(files.entries));
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t kept,
                            BytesOf(opened.entries, files.entries));
  // Also one that is not complete: somebody goes on with it.
  if (options.snapshot && opened.valid && kept > 0) {
    PENSTOCK_RETURN_IF_ERROR(same);
  }
  if (!opened.valid || !same.ok()) {
    PENSTOCK_RETURN_IF_ERROR(Begin(options, records, &opened));
  }
  opened.writes = opened.header.complete == 0;
  PENSTOCK_ASSIGN_OR_RETURN(opened.entries_bytes,
                            BytesOf(opened.entries, files.entries));
  return opened;
}

Status DiskCache::Begin(const Options& options, uint64_t records,
                        Opened* opened) {
  opened->header = {};
  Header& header = opened->header;
  header.records = records;
  header.key_bytes = options.key.size();
  header.crc = header.Crc();
  if (options.key.size() > Header::kKeyBytesMax) {
    return InvalidArgumentError(
        "its source and steps are too long to be named");
  }
  const int index = opened->index.get();
  const auto end = static_cast<off_t>(header.PlacesAt() + PlacesBytes(records));
  // The mark first: whoever finds a part of it knows whose it is.
  if (ftruncate(index, 0) != 0 || ftruncate(opened->entries.get(), 0) != 0 ||
      !WriteAll(index, 0, std::as_bytes(std::span(&header, 1))) ||
      !WriteAll(index, Header::kBytes, std::as_bytes(std::span(options.key))) ||
      ftruncate(index, end) != 0) {
    return OpenError(errno, options.files.index);
  }
  opened->valid = true;
  return OkStatus();
}

StatusOr<std::shared_ptr<DiskCache>> DiskCache::Open(const Options& options,
                                                     uint64_t records,
                                                     const RawSpec& features) {
  StatusOr<Opened> opened = options.writes ? OpenToWrite(options, records)
                                           : OpenToRead(options, records);
  if (!opened.ok() && options.writes && options.snapshot &&
      opened.status().code() == StatusCode::kPermissionDenied) {
    // One that is complete is of use to those who may only read it.
    StatusOr<Opened> read = OpenToRead(options, records);
    if (read.ok()) opened = std::move(read);
  }
  if (!opened.ok()) return opened.status();
  const uint64_t bytes = opened->entries_bytes;
  std::shared_ptr<DiskCache> cache(
      new DiskCache(*std::move(opened), options, records, features));
  PENSTOCK_RETURN_IF_ERROR(cache->LoadPlaces(bytes));
  return cache;
}

DiskCache::DiskCache(Opened opened, const Options& options, uint64_t records,
                     const RawSpec& features)
    : RowCache(records, features),
      held_(options.held),
      path_(std::filesystem::path(options.files.index).parent_path()),
      bytes_max_(std::min(options.bytes, kBytesMax)),
      zstd_(options.zstd),
      snapshot_(options.snapshot),
      index_(std::move(opened.index)),
      entries_file_(std::move(opened.entries)),
      places_at_(opened.header.PlacesAt()),
      writes_(opened.writes),
      nowait_(SupportsNowait(entries_file_.get())),
      left_(records),
      complete_(opened.header.complete != 0),
      header_(std::make_unique<Header>(opened.header)) {}

DiskCache::~DiskCache() = default;

Status DiskCache::LoadPlaces(uint64_t entries_bytes) {
  const uint64_t granules = entries_bytes / kGranule;
  Fingerprint digest("places");
  uint64_t loaded = 0;
  uint64_t placed = 0;
  const auto load = [&](uint64_t first, std::span<const uint64_t> words) {
    digest.Add(std::as_bytes(words));
    for (size_t i = 0; i < words.size(); ++i) {
      uint64_t word = words[i];
      if (word > kFailed) {
        const Place place = PlaceOf(word);
        if (place.count == 0 || place.count > granules ||
            place.first > granules - place.count) {
          word = kNone;  // a machine died before it was written
        } else {
          CountEntry(place);
        }
      } else if (word != kFailed || !snapshot_) {
        word = kNone;
      }
      placed += word != kNone;
      // Relaxed: no worker has the cache yet.
      places()[first + i].store(word, std::memory_order_relaxed);
    }
    loaded = first + words.size();
  };
  if (!ForEachPlaces(index_.get(), places_at_, records(), load)) {
    return DataLossError("{}: its index ends at record {}: remove it", path_,
                         loaded);
  }
  left_.store(records() - placed, std::memory_order_relaxed);
  used_.store((entries_bytes + kGranule - 1) / kGranule,
              std::memory_order_relaxed);
  if (complete()) {
    if (header_->places != digest.digest() ||
        header_->entries_bytes > entries_bytes || placed < records()) {
      return DataLossError(
          "{}: is damaged, its places or sizes are not those that were "
          "written: remove it to have it made anew",
          path_);
    }
  } else if (snapshot_ && placed == records()) {
    StartSealing();
  }
  return OkStatus();
}

// ---- entries

bool DiskCache::Locate(uint64_t record, ReadRequest* request) const {
  const std::optional<Place> place = Find(record);
  if (!place) return false;
  request->kind = ReadPart::Kind::kRange;
  request->remote = nullptr;
  request->access = nullptr;
  request->nowait = nowait_;
  request->align = 0;
  request->fd = entries_file_.get();
  request->map = {};
  request->offset = place->first * kGranule;
  request->bytes = place->count * kGranule;
  return true;
}

Status DiskCache::Unpack(uint64_t record, std::span<const std::byte> bytes,
                         CacheScratch* scratch, RawRecord* made) const {
  const auto damaged = [&](const std::string& what) {
    const std::optional<Place> place = Find(record);
    return DataLossError("{} at offset {}: {}", path_,
                         place ? place->first * kGranule : 0, what);
  };
  EntryHeader header;
  if (bytes.size() < sizeof(header)) return damaged("it could not be read");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.stored > bytes.size() - sizeof(header)) {
    return damaged(Format("an entry of {} bytes where {} were read",
                          header.stored, bytes.size()));
  }
  const auto payload = bytes.subspan(sizeof(header), header.stored);
  if (header.crc != Crc32c(bytes.subspan(
                        sizeof(header.crc),
                        sizeof(header) - sizeof(header.crc) + header.stored))) {
    return damaged("its checksum is wrong");
  }
  if (header.record != record) {
    return damaged(Format("has the entry of record {}", header.record));
  }
  if (header.bytes > EntryFormat::kBytesMax || header.stored > header.bytes ||
      format().fixed_bytes().value_or(header.bytes) != header.bytes) {
    return damaged(Format("an entry of {} bytes", header.bytes));
  }
  std::span<const std::byte> entry = payload;
  if (header.stored < header.bytes) {
    if (ZSTD_getFrameContentSize(payload.data(), payload.size()) !=
        header.bytes) {
      return damaged("its compressed bytes have another size");
    }
    if (scratch->entry.size() < header.bytes) {
      scratch->entry.resize(header.bytes);
    }
    const size_t unpacked = ZSTD_decompressDCtx(
        ContextIn(&scratch->unpacker, ZSTD_createDCtx, ZSTD_freeDCtx),
        scratch->entry.data(), header.bytes, payload.data(), payload.size());
    if (unpacked != header.bytes) return damaged("it cannot be decompressed");
    entry = std::span(scratch->entry).first(header.bytes);
  }
  return format().Read(entry, made) ? OkStatus()
                                    : damaged("its features have other sizes");
}

std::optional<RowCache::Place> DiskCache::Write(uint64_t record,
                                                const RawRecord& made,
                                                CacheScratch* scratch) {
  const std::optional<uint64_t> bytes = format().Bytes(made);
  if (!bytes || !writes_ || stopped_.load(std::memory_order_relaxed)) {
    return std::nullopt;
  }
  EntryHeader header;
  header.record = record;
  header.bytes = header.stored = static_cast<uint32_t>(*bytes);
  std::vector<std::byte>* entry = &scratch->entry;
  entry->resize(
      std::max<size_t>(entry->size(), sizeof(header) + *bytes + kGranule));
  format().Write(made, entry->data() + sizeof(header));
  if (zstd_ && *bytes > 0) {
    const size_t bound = ZSTD_compressBound(*bytes);
    scratch->packed.resize(std::max<size_t>(scratch->packed.size(),
                                            sizeof(header) + bound + kGranule));
    const size_t packed = ZSTD_compressCCtx(
        ContextIn(&scratch->packer, ZSTD_createCCtx, ZSTD_freeCCtx),
        scratch->packed.data() + sizeof(header), bound,
        entry->data() + sizeof(header), *bytes, static_cast<int>(*zstd_));
    if (ZSTD_isError(packed) == 0 && packed < *bytes) {
      header.stored = static_cast<uint32_t>(packed);
      entry = &scratch->packed;
    }
  }
  const uint64_t all = sizeof(header) + header.stored;
  const uint64_t granules = GranulesOf(all);
  std::memcpy(entry->data(), &header, sizeof(header));
  std::memset(entry->data() + all, 0, granules * kGranule - all);
  header.crc = Crc32c(
      std::span(*entry).subspan(sizeof(header.crc), all - sizeof(header.crc)));
  std::memcpy(entry->data(), &header.crc, sizeof(header.crc));
  uint64_t first = used_.load(std::memory_order_relaxed);
  do {
    if (first > bytes_max_ / kGranule ||
        granules > bytes_max_ / kGranule - first) {
      full_.store(true, std::memory_order_relaxed);
      return std::nullopt;
    }
  } while (!used_.compare_exchange_weak(first, first + granules,
                                        std::memory_order_relaxed));
  if (!WriteAll(entries_file_.get(), first * kGranule,
                std::span(*entry).first(granules * kGranule))) {
    Stop();
    return std::nullopt;
  }
  return Place{first, granules};
}

void DiskCache::Stop() {
  const int error = errno;
  if (stopped_.exchange(true, std::memory_order_relaxed)) return;
  Log<"cache-stopped">(where(), std::strerror(error));
}

void DiskCache::Placed(uint64_t record, uint64_t word) {
  if (!WriteAll(index_.get(), places_at_ + PlacesBytes(record),
                std::as_bytes(std::span(&word, 1)))) {
    return Stop();
  }
  // Whoever finds none left sees all that were written before.
  if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1 && snapshot_) {
    StartSealing();
  }
}

void DiskCache::Fail(uint64_t record) {
  if (!snapshot_ || !writes_) return;
  uint64_t expected = kNone;
  if (places()[record].compare_exchange_strong(expected, kFailed,
                                               std::memory_order_relaxed)) {
    Placed(record, kFailed);
  }
}

std::string DiskCache::state() const {
  if (complete()) return "complete";
  if (stopped_.load(std::memory_order_relaxed)) {
    return "keeps no more: it could not be written, see the log";
  }
  return full_.load(std::memory_order_relaxed) ? "full" : "filling";
}

// A disk may take minutes for it. Nothing waits: should the process end before,
// the next one that opens it does it again. The cache stays until then, so that
// the next job of this process finds it instead of the lock of its files.
void DiskCache::StartSealing() {
  try {
    std::thread([self = shared_from_this()] { self->Seal(); }).detach();
  } catch (const std::system_error& error) {
    Log<"cache-stopped">(where(), error.what());
  }
}

void DiskCache::Seal() {
  Header header = *header_;
  struct stat st;
  Fingerprint digest("places");
  bool sealed =
      fdatasync(entries_file_.get()) == 0 &&
      fstat(entries_file_.get(), &st) == 0 &&
      ForEachPlaces(index_.get(), places_at_, header.records,
                    [&digest](uint64_t, std::span<const uint64_t> words) {
                      digest.Add(std::as_bytes(words));
                    });
  // The places first: the header vouches for them.
  if (sealed && fsync(index_.get()) == 0) {
    header.complete = 1;
    header.entries_bytes = static_cast<uint64_t>(st.st_size);
    header.places = digest.digest();
    header.crc = header.Crc();
    sealed = WriteAll(index_.get(), 0, std::as_bytes(std::span(&header, 1))) &&
             fsync(index_.get()) == 0;
  }
  if (!sealed) {
    Log<"cache-stopped">(where(), std::strerror(errno));
    return;
  }
  flock(index_.get(), LOCK_UN);  // nobody writes what is complete
  complete_.store(true, std::memory_order_release);
  Log<"snapshot-complete">(path_, header.records);
}

}  // namespace penstock
