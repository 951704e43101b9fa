#include "broker/index/inflated_files.h"

#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "broker/base/log.h"
#include "broker/base/text.h"
#include "broker/index/cache_file.h"
#include "broker/index/in_parallel.h"
#include "common/quantity.h"

namespace penstock {
namespace {

constexpr std::chrono::milliseconds kRound{50};

// What a copy depends on.
std::string CopyKeyOf(const CompressedBytes& wanted) {
  const DataFile& file = *wanted.file;
  return Format("inflated 1\n{}\n{}\n{}\n{}\n{}\n{}\n{}",
                NameOf(wanted.compression), file.real_path(), file.inode(),
                file.bytes(), file.mtime_ns(), wanted.offset, wanted.bytes);
}

// Waits until a change would show in the file's modification time.
Status AwaitSettled(const DataFile& file, const OpenProgress& progress) {
  const int64_t begin_ns = RealTimeNs();
  const int64_t settled_ns = std::min(file.mtime_ns(), begin_ns) + kSettledNs;
  while (RealTimeNs() < settled_ns) {
    PENSTOCK_RETURN_IF_ERROR(progress.CheckCancelled(file.path()));
    std::this_thread::sleep_for(kRound);
  }
  return OkStatus();
}

Status WrongContent(const CompressedBytes& wanted) {
  return DataLossError(
      "{}: inflates to other bytes than its archive says; it is damaged: copy "
      "it again",
      wanted.name);
}

StatusOr<LocalCopy> MakeCopy(const CompressedBytes& wanted,
                             const LocalCopies& copies, LocalCopies::New task,
                             const OpenProgress& progress) {
  const DataFile& file = *wanted.file;
  PENSTOCK_RETURN_IF_ERROR(AwaitSettled(file, progress));
  std::vector<std::byte> block(size_t{1} << 20);
  uint64_t at = 0;
  uint64_t counted = 0;
  const auto read = [&]() -> StatusOr<std::span<const std::byte>> {
    progress.CountDone(at - counted);
    counted = at;
    const auto into = std::span(block).first(
        std::min<uint64_t>(block.size(), wanted.bytes - at));
    if (into.empty()) return std::span<const std::byte>();
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t found,
                              file.Read(wanted.offset + at, into, &progress));
    at += found;
    return std::span<const std::byte>(into).first(found);
  };
  uint32_t crc = 0;
  const auto take = [&](std::span<const std::byte> bytes) -> Status {
    // Also between what is read: little may inflate to much.
    PENSTOCK_RETURN_IF_ERROR(progress.CheckCancelled(wanted.name));
    if (wanted.inflated && bytes.size() > *wanted.inflated - task.bytes()) {
      return WrongContent(wanted);
    }
    if (wanted.crc) {
      crc = static_cast<uint32_t>(
          crc32(crc, reinterpret_cast<const Bytef*>(bytes.data()),
                static_cast<uInt>(bytes.size())));
    }
    const Status kept = task.Append(bytes);
    if (kept.ok()) return kept;
    return FailedPreconditionError(
        "{}: inflates to more than {}: {}; or inflate it yourself ({})",
        wanted.name, BytesText(task.bytes()), kept.message(),
        ProgramOf(wanted.compression));
  };
  PENSTOCK_RETURN_IF_ERROR(
      Inflate(wanted.name, wanted.compression, read, take));
  if ((wanted.inflated && task.bytes() != *wanted.inflated) ||
      (wanted.crc && crc != *wanted.crc)) {
    return WrongContent(wanted);
  }
  if (file.Changed()) {
    return DataLossError(
        "{} changed while it was inflated; begin again when it is complete",
        file.path());
  }
  return copies.Finish(std::move(task));
}

// What it will take, in all likelihood.
StatusOr<uint64_t> Expected(const CompressedBytes& wanted,
                            const OpenProgress& progress) {
  if (wanted.inflated) return *wanted.inflated;
  std::vector<std::byte> head(
      std::min<uint64_t>(kCompressionHeadBytes, wanted.bytes));
  std::vector<std::byte> tail(
      std::min<uint64_t>(kCompressionTailBytes, wanted.bytes));
  PENSTOCK_RETURN_IF_ERROR(
      wanted.file->Read(wanted.offset, head, &progress).status());
  PENSTOCK_RETURN_IF_ERROR(
      wanted.file
          ->Read(wanted.offset + wanted.bytes - tail.size(), tail, &progress)
          .status());
  return EstimateInflated(wanted.compression, wanted.bytes, head, tail);
}

struct Task {
  size_t wanted;
  LocalCopies::New made;
  uint64_t expected = 0;
};

Status NoRoom(std::span<const CompressedBytes> wanted,
              const std::vector<Task>& tasks, uint64_t expected,
              const Status& why) {
  const CompressedBytes& first = wanted[tasks.front().wanted];
  const size_t others = tasks.size() - 1;
  return Status(
      why.code(),
      Format(
          "{}{} compressed as a whole ({}), and inflated {} about {}: {}; or "
          "inflate {} yourself ({})",
          first.name,
          others == 0 ? " is"
                      : Format(" and {} are", Counted(others, "other file")),
          NameOf(first.compression), others == 0 ? "it takes" : "they take",
          BytesText(expected), why.message(), others == 0 ? "it" : "them",
          ProgramOf(first.compression)));
}

}  // namespace

StatusOr<std::optional<CompressedBytes>> FindCompressed(
    const DataFile& file, InflateBy by, const OpenProgress& progress) {
  std::optional<CompressedBytes> found;
  if (by == InflateBy::kNever) return found;
  // A look at each object would be a request, and a unit of each fetched.
  if ((by == InflateBy::kName || file.remote() != nullptr) &&
      !IsNamedCompressed(file.path())) {
    return found;
  }
  std::byte bytes[kCompressionHeadBytes];
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t had, file.Read(0, bytes, &progress));
  const auto head = std::span<const std::byte>(bytes).first(had);
  std::optional<Compression> compression = CompressionOf(file.path(), head);
  if (by == InflateBy::kMark && !compression) compression = CompressionOf(head);
  if (compression) {
    found.emplace();
    found->file = &file;
    found->name = file.path();
    found->bytes = file.bytes();
    found->compression = *compression;
  }
  return found;
}

StatusOr<std::vector<LocalCopy>> CopiesOf(
    std::span<const CompressedBytes> wanted, const OpenProgress& progress) {
  std::vector<LocalCopy> made(wanted.size());
  if (wanted.empty()) return made;
  StatusOr<LocalCopies> copies = LocalCopies::Open();
  if (!copies.ok()) {
    return InvalidArgumentError(
        "{} is compressed as a whole ({}), and there is no folder to inflate "
        "it into: {}; inflate it yourself ({})",
        wanted[0].name, NameOf(wanted[0].compression),
        copies.status().message(), ProgramOf(wanted[0].compression));
  }
  std::vector<std::optional<Task>> claimed(wanted.size());
  const auto claim = [&](size_t i) -> StatusOr<bool> {
    PENSTOCK_RETURN_IF_ERROR(progress.CheckCancelled(wanted[i].name));
    PENSTOCK_ASSIGN_OR_RETURN(LocalCopies::Claimed found,
                              copies->Claim(CopyKeyOf(wanted[i]), progress));
    if (found.copy) {
      made[i] = *std::move(found.copy);
    } else if (found.task) {
      claimed[i].emplace(Task{i, *std::move(found.task), 0});
      PENSTOCK_ASSIGN_OR_RETURN(claimed[i]->expected,
                                Expected(wanted[i], progress));
    }
    return found.copy || found.task;
  };
  PENSTOCK_RETURN_IF_ERROR(
      InParallel(wanted.size(), [&](size_t i) { return claim(i).status(); }));

  // All that this opening makes, with room for it.
  std::vector<Task> tasks;
  std::vector<size_t> awaited;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (claimed[i]) {
      tasks.push_back(*std::move(claimed[i]));
    } else if (!made[i].fd) {
      awaited.push_back(i);
    }
  }
  const auto make = [&](std::vector<Task>* all) -> Status {
    if (all->empty()) return OkStatus();
    uint64_t compressed = 0;
    uint64_t expected = 0;
    std::vector<std::pair<LocalCopies::New*, uint64_t>> room;
    for (Task& each : *all) {
      compressed += wanted[each.wanted].bytes;
      expected += std::min(each.expected, UINT64_MAX - expected);
      room.emplace_back(&each.made, each.expected);
    }
    const StatusOr<uint64_t> allowed = copies->Promise(room);
    if (!allowed.ok()) return NoRoom(wanted, *all, expected, allowed.status());
    Log<"inflating">(Counted(all->size(), "compressed file"),
                     BytesText(expected), BytesText(*allowed),
                     copies->folder());
    progress.total.fetch_add(compressed, std::memory_order_relaxed);
    return InParallel(all->size(), [&](size_t i) -> Status {
      Task& task = (*all)[i];
      PENSTOCK_ASSIGN_OR_RETURN(made[task.wanted],
                                MakeCopy(wanted[task.wanted], *copies,
                                         std::move(task.made), progress));
      return OkStatus();
    });
  };
  const uint64_t done = progress.done.load(std::memory_order_relaxed);
  const uint64_t total = progress.total.load(std::memory_order_relaxed);
  Status status = make(&tasks);
  // Those of another opening: it may end before it has made them.
  if (status.ok()) {
    status = InParallel(awaited.size(), [&](size_t i) -> Status {
      for (;;) {
        PENSTOCK_ASSIGN_OR_RETURN(const bool found, claim(awaited[i]));
        if (found) break;
        std::this_thread::sleep_for(kRound);
      }
      std::vector<Task> left;
      if (std::optional<Task>& task = claimed[awaited[i]]) {
        left.push_back(*std::move(task));
      }
      return make(&left);
    });
  }
  // What follows counts its own.
  progress.done.store(done, std::memory_order_relaxed);
  progress.total.store(total, std::memory_order_relaxed);
  if (!status.ok()) return status;
  return made;
}

}  // namespace penstock
