#include "client/reader.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "client/launcher.h"
#include "common/ring.h"
#include "common/wake.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

// Counts forks: a forked child shares the cursor page with its parent and must
// not touch it (one writer per byte).
std::atomic<uint64_t> fork_generation{0};
void CountForks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); });
  (void)registered;
}

Deadline DeadlineAfter(double timeout_s) {
  if (timeout_s < 0) return std::nullopt;
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(
             std::chrono::duration<double>(std::min(timeout_s, 1e9)));
}

bool IsSpecFile(const std::string& dataset) {
  const auto ends = [&](const char* suffix) {
    return dataset.ends_with(suffix);
  };
  return dataset.find('/') != std::string::npos || ends(".yaml") ||
         ends(".yml") || ends(".json");
}

StatusOr<std::string> ReadSpecFile(const std::string& path) {
  constexpr size_t kSpecFileBytesMax = 64 * 1024;
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoError(errno, "read dataset spec '" + path + "'");
  std::string text(kSpecFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return ErrnoError(errno, "read dataset spec '" + path + "'");
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kSpecFileBytesMax) {
    return InvalidArgumentError("dataset spec '{}' is longer than {} bytes",
                                path, kSpecFileBytesMax);
  }
  return text;
}

// Puts dataset name or spec text into the request.
Status DescribeDataset(const AttachOptions& options, nlohmann::json* request) {
  std::error_code error;
  if (!options.spec.empty()) {
    (*request)["spec"] = options.spec;
    (*request)["file"] = "spec";
    (*request)["base"] = std::filesystem::current_path(error).string();
    return OkStatus();
  }
  std::string dataset = options.dataset;
  if (dataset.empty()) {
    dataset = ProcessEnvironment()("PENSTOCK_DATASET").value_or("");
  }
  if (dataset.empty()) {
    return InvalidArgumentError(
        "no dataset given: pass a spec file, a registered name, or set "
        "PENSTOCK_DATASET");
  }
  if (!IsSpecFile(dataset)) {
    (*request)["dataset"] = dataset;
    return OkStatus();
  }
  PENSTOCK_ASSIGN_OR_RETURN((*request)["spec"], ReadSpecFile(dataset));
  (*request)["file"] = dataset;
  (*request)["base"] =
      std::filesystem::absolute(dataset, error).parent_path().string();
  return OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<Reader>> Reader::Attach(AttachOptions options) {
  CountForks();
  const Environment environment = ProcessEnvironment();
  const Deadline deadline =
      DeadlineAfter(options.timeout_s > 0 ? options.timeout_s : -1);

  const bool all_given = options.rank >= 0 && options.world_size > 0;
  LaunchInfo launch;
  if (!all_given || options.local_world_size == 0 || options.job.empty()) {
    StatusOr<LaunchInfo> detected = DetectLaunch(environment);
    if (detected.ok()) {
      launch = *detected;
    } else if (!all_given) {
      return detected.status();
    }
  }
  std::unique_ptr<Reader> reader(new Reader());
  reader->rank_ = options.rank >= 0 ? options.rank : launch.rank;
  reader->world_size_ =
      options.world_size > 0 ? options.world_size : launch.world_size;
  if (reader->rank_ >= reader->world_size_) {
    return InvalidArgumentError(
        "rank {} of a world of {}: ranks count from 0 to {} (launcher: {})",
        reader->rank_, reader->world_size_, reader->world_size_ - 1,
        launch.launcher);
  }
  int64_t local_world_size = options.local_world_size;
  if (local_world_size == 0) {
    // The launcher's number is of the launcher's world.
    local_world_size = reader->world_size_ == launch.world_size
                           ? launch.local_world_size
                           : reader->world_size_;
  }
  std::string job = options.job;
  if (job.empty()) job = environment("PENSTOCK_JOB").value_or(launch.job);
  if (job.empty()) job = "default";

  reader->repeat_first_ =
      options.repeat_first ||
      environment("PENSTOCK_REPEAT_FIRST").value_or("0") != "0";
  reader->timeout_s_ = options.timeout_s;
  reader->fork_generation_ = fork_generation.load();
  reader->interrupt_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!reader->interrupt_) return ErrnoError(errno, "eventfd");

  nlohmann::json request = {{"op", "attach"},
                            {"job", job},
                            {"rank", reader->rank_},
                            {"world_size", reader->world_size_},
                            {"local_world_size", local_world_size},
                            {"repeat_first", reader->repeat_first_}};
  PENSTOCK_RETURN_IF_ERROR(DescribeDataset(options, &request));
  PENSTOCK_ASSIGN_OR_RETURN(reader->cursor_, CreateCursor());
  PENSTOCK_ASSIGN_OR_RETURN(reader->control_,
                            ConnectControl(SocketPath(options.socket)));
  PENSTOCK_ASSIGN_OR_RETURN(Message answer,
                            Request(reader->control_.get(), std::move(request),
                                    {reader->cursor_.fd.get()}, deadline));
  PENSTOCK_RETURN_IF_ERROR(reader->ReadAnswer(std::move(answer)));
  return reader;
}

Status Reader::ReadAnswer(Message answer) {
  if (answer.fds.size() != 2) {
    return InternalError("the broker's answer has {} descriptors, wanted 2",
                         answer.fds.size());
  }
  // The broker is trusted more than a rank is, but a wrong build of it must end
  // in a message, not in a crash of the trainer.
  uint32_t seat = 0;
  try {
    const nlohmann::json& json = answer.json;
    PENSTOCK_ASSIGN_OR_RETURN(element_spec_,
                              ElementSpecFromJson(json.at("element_spec")));
    job_ = json.at("job").get<std::string>();
    dataset_ = json.at("dataset").get<std::string>();
    seat = json.at("seat").get<uint32_t>();
    hold_ = json.at("hold").get<uint32_t>();
    records_ = json.at("records").get<uint64_t>();
    steps_per_epoch_ = json.at("steps_per_epoch").get<uint64_t>();
    epochs_ = json.at("epochs").get<uint64_t>();
    spin_ = std::chrono::nanoseconds(json.at("spin_ns").get<int64_t>());
  } catch (const nlohmann::json::exception& error) {
    return InternalError("the broker's answer is not of this protocol: {}",
                         error.what());
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      view_, SegmentView::Open(answer.fds[0].get(),
                               static_cast<uint32_t>(element_spec_.size())));
  if (seat >= view_->seats()) {
    return InternalError("the broker gave seat {} of {}", seat, view_->seats());
  }
  ring_ = &view_->ring(seat);
  wake_ = std::move(answer.fds[1]);
  return OkStatus();
}

Reader::~Reader() {
  // The broker sees it and takes everything back. Shut down and not only
  // closed: a child that was forked meanwhile holds the same socket.
  if (control_ && fork_generation.load() == fork_generation_) {
    shutdown(control_.get(), SHUT_RDWR);
  }
}

Reader::Batch* Reader::Lease(const Cell& cell) {
  Batch* batch = &batches_[cell.lease];
  batch->reader = this;
  batch->cell = cell;
  // Relaxed: the pointer reaches another thread by the caller's own means.
  batch->held.store(true, std::memory_order_relaxed);
  held_.fetch_add(1, std::memory_order_relaxed);
  return batch;
}

StatusOr<bool> Reader::TakeReady(Batch** batch) {
  Cell cell;
  switch (TryTake(*ring_, cursor_.page(), &cell)) {
    case TakeResult::kEmpty:
      return false;
    case TakeResult::kClosed: {
      PENSTOCK_RETURN_IF_ERROR(ClosedStatus());
      ended_ = true;
      return true;
    }
    case TakeResult::kTaken:
      break;
  }
  if (!view_->Valid(cell) ||
      batches_[cell.lease].held.load(std::memory_order_relaxed)) {
    return InternalError(
        "the broker published a batch that cannot be: a bug "
        "of the broker");
  }
  end_of_epoch_next_ = (cell.flags & kLastOfEpoch) != 0;
  end_of_data_next_ = (cell.flags & kLastOfData) != 0;
  ++stats_.batches;
  stats_.rows += cell.valid_rows;
  if (repeat_first_) repeated_ = cell;
  *batch = Lease(cell);
  return true;
}

Status Reader::ClosedStatus() const {
  // Acquire: who sees closed sees reason (ring.h, E7).
  const uint32_t closed = ring_->closed.load(std::memory_order_acquire);
  char reason[sizeof(Ring::reason)];
  std::memcpy(reason, ring_->reason, sizeof(reason));
  reason[sizeof(reason) - 1] = '\0';
  switch (static_cast<Closed>(closed)) {
    case Closed::kOpen:
    case Closed::kFinished:
      return OkStatus();
    case Closed::kRecalled:
      return AbortedError("rank {} of job '{}' was taken off: {}", rank_, job_,
                          reason);
    case Closed::kFailed: {
      // "code text": the job's own status.
      char* text = nullptr;
      const long code = std::strtol(reason, &text, 10);
      return Status(static_cast<StatusCode>(code), text + (*text == ' '));
    }
    case Closed::kShutdown:
      return UnavailableError("the broker was stopped while job '{}' ran",
                              job_);
  }
  return InternalError("the broker closed the ring with code {}", closed);
}

StatusOr<Reader::Result> Reader::Next(double timeout_s, Batch** batch) {
  *batch = nullptr;
  if (fork_generation.load() != fork_generation_) {
    return FailedPreconditionError(
        "this reader belongs to the parent process: attach again after fork");
  }
  if (repeated_) {
    // The one batch, for ever; its lease is never given back.
    Batch* first = &batches_[repeated_->lease];
    if (first->held.load(std::memory_order_relaxed)) {
      return ResourceExhaustedError(
          "repeat_first holds one batch: release it before the next");
    }
    ++stats_.batches;
    stats_.rows += repeated_->valid_rows;
    *batch = Lease(*repeated_);
    return Result::kBatch;
  }
  if (end_of_epoch_next_) {
    end_of_epoch_next_ = false;
    ended_ = end_of_data_next_;
    return Result::kEndOfEpoch;
  }
  if (ended_) return Result::kEndOfData;
  if (held() >= hold_) {
    return ResourceExhaustedError(
        "rank {} holds {} batches, all it may hold at once: release one before "
        "the next, or set `hold:` in the dataset's spec higher",
        rank_, hold_);
  }

  const Clock::time_point begin = Clock::now();
  const Deadline deadline = DeadlineAfter(timeout_s);
  CursorPage& cursor = cursor_.page();
  bool stalled = false;
  Clock::time_point spin_end = begin + spin_;
  for (;;) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool something, TakeReady(batch));
    if (something) break;
    stalled = true;
    if (Clock::now() < spin_end) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      continue;
    }
    if (!ArmWait(*ring_, cursor)) {
      DisarmWait(cursor);
      continue;
    }
    // Left armed on a time-out: fileno() then tells of the next batch.
    PENSTOCK_ASSIGN_OR_RETURN(const bool woken, Sleep(deadline));
    if (!woken) {
      return DeadlineExceededError(
          "no batch for rank {} of job '{}' within {} s; `penstock status` "
          "says what the job waits for",
          rank_, job_, timeout_s);
    }
    DisarmWait(cursor);
  }
  if (stalled) {
    ++stats_.waits;
    stats_.wait_ns += static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() -
                                                             begin)
            .count());
    // Relaxed: shown by `penstock status`, nothing depends on it.
    cursor.waits.store(stats_.waits, std::memory_order_relaxed);
    cursor.wait_ns.store(stats_.wait_ns, std::memory_order_relaxed);
  }
  return ended_ ? Result::kEndOfData : Result::kBatch;
}

StatusOr<bool> Reader::Sleep(Deadline deadline) {
  pollfd entries[2] = {{wake_.get(), POLLIN, 0}, {interrupt_.get(), POLLIN, 0}};
  for (;;) {
    timespec timeout{};
    if (deadline) {
      const auto left = std::max(*deadline - Clock::now(), Clock::duration(0));
      const auto seconds =
          std::chrono::duration_cast<std::chrono::seconds>(left);
      timeout.tv_sec = seconds.count();
      timeout.tv_nsec =
          std::chrono::duration_cast<std::chrono::nanoseconds>(left - seconds)
              .count();
    }
    const int ready = ppoll(entries, 2, deadline ? &timeout : nullptr, nullptr);
    if (ready < 0 && errno != EINTR) return ErrnoError(errno, "poll");
    if (ready > 0) break;
    if (ready == 0) return false;
  }
  if ((entries[1].revents & POLLIN) != 0) {
    uint64_t count;
    (void)!read(interrupt_.get(), &count, sizeof(count));
    if (interrupted_.exchange(false)) {
      DisarmWait(cursor_.page());
      return CancelledError("interrupted");
    }
  }
  if (entries[0].revents != 0 && !DrainWakes(wake_.get())) {
    // The broker is gone. What it published before stays readable.
    if (ring_->published.load(std::memory_order_acquire) !=
            cursor_.page().taken.load(std::memory_order_relaxed) ||
        ring_->closed.load(std::memory_order_acquire) !=
            static_cast<uint32_t>(Closed::kOpen)) {
      return true;
    }
    return UnavailableError(
        "the broker is gone: its process died or was killed while job '{}' ran "
        "(see its log, or journalctl -u penstockd)",
        job_);
  }
  return true;
}

void Reader::Release(Batch* batch) {
  Reader* reader = batch->reader;
  if (!batch->held.exchange(false)) return;  // given back before
  reader->held_.fetch_sub(1, std::memory_order_relaxed);
  if (fork_generation.load() != reader->fork_generation_) return;
  if (reader->repeat_first_) return;
  if (penstock::Release(*reader->ring_, reader->cursor_.page(),
                        batch->cell.lease, batch->cell.generation)) {
    SendWake(reader->wake_.get());
  }
}

void Reader::Interrupt() {
  interrupted_.store(true);
  const uint64_t one = 1;
  (void)!write(interrupt_.get(), &one, sizeof(one));
}

}  // namespace penstock
