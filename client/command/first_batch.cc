#include "client/command/first_batch.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "client/command/interrupt.h"
#include "client/command/process.h"
#include "client/command/subcommand.h"

namespace penstock {
namespace {

constexpr size_t kResultBytesMax = size_t{1} << 20;

StatusOr<std::string> Take(const std::string& socket, const FirstBatchJob& job,
                           const UseBatch& use) {
  penstock_options options = PENSTOCK_OPTIONS_INIT;
  options.rank = 0;
  options.world_size = 1;
  options.local_world_size = 1;
  (job.spec.empty() ? options.dataset : options.spec) =
      (job.spec.empty() ? job.dataset : job.spec).c_str();
  options.job = job.name.c_str();
  options.socket = socket.c_str();
  if (!job.state.empty()) options.state = job.state.c_str();
  const auto error = [](int code) {
    return Status(static_cast<StatusCode>(-code), penstock_error());
  };
  penstock_reader* reader = nullptr;
  if (const int code = penstock_attach(&options, &reader);
      code != PENSTOCK_OK) {
    return error(code);
  }
  penstock_batch* batch = nullptr;
  const int code = penstock_next(reader, &batch);
  StatusOr<std::string> result = NotFoundError(
      "the dataset has no batch: it has fewer records than one, and `last` is "
      "drop");
  if (code == PENSTOCK_OK) {
    // Read the memory by the library's description of the features, which is of
    // this mapping, not by the broker's earlier answer.
    ElementSpec features;
    for (uint32_t i = 0; i < penstock_feature_count(reader); ++i) {
      penstock_feature feature;
      penstock_feature_at(reader, i, &feature);
      features.push_back({feature.name,
                          static_cast<DType>(feature.dtype),
                          {feature.shape, feature.shape + feature.dimensions}});
    }
    result = use(features, batch);
    penstock_release(batch);
  } else if (code < 0) {
    result = error(code);
  }
  penstock_detach(reader);
  return result;
}

// A status code, and behind it the message or the result.
bool WriteResult(int fd, const StatusOr<std::string>& result) {
  std::string text(1, static_cast<char>(result.status().code()));
  text += result.ok() ? *result : result.status().message();
  text.resize(std::min(text.size(), kResultBytesMax));
  return write(fd, text.data(), text.size()) ==
         static_cast<ssize_t>(text.size());
}

StatusOr<std::string> ReadResult(int fd) {
  std::string text(kResultBytesMax, '\0');
  const ssize_t bytes = pread(fd, text.data(), text.size(), 0);
  if (bytes < 1) return InternalError("the process that took the batch failed");
  text.resize(static_cast<size_t>(bytes));
  const auto code = static_cast<StatusCode>(text[0]);
  text.erase(0, 1);
  if (code != StatusCode::kOk) return Status(code, text);
  return text;
}

}  // namespace

StatusOr<std::string> WithFirstBatch(PrivateBroker* broker,
                                     const FirstBatchJob& job,
                                     const UseBatch& use) {
  const Fd result(memfd_create("result", MFD_CLOEXEC));
  if (!result) return ErrnoError(errno, "memfd_create");
  std::fflush(stdout);  // else both processes would write what is in it
  ProcessSpec spec;
  spec.body = [&] {
    broker->ForgetInFork();
    StatusOr<std::string> taken = Take(broker->socket(), job, use);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      taken = InternalError("cannot write to standard output");
    }
    return WriteResult(result.get(), taken) ? 0 : kExitFailure;
  };
  PENSTOCK_ASSIGN_OR_RETURN(Process process, Process::Start(spec));
  std::optional<ProcessExit> ended;
  Status tended;
  while (!(ended = process.Ended()) && InterruptSignal() == 0) {
    tended = broker->Tend(PrintError);
    if (!tended.ok()) break;
    std::vector<pollfd> entries = {{process.pidfd(), POLLIN, 0},
                                   {InterruptFd(), POLLIN, 0}};
    broker->AddTo(&entries);
    constexpr int kRound_ms = 100;  // for a restart that is due
    poll(entries.data(), entries.size(), kRound_ms);
  }
  process.Reap();
  PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
  PENSTOCK_RETURN_IF_ERROR(tended);
  if (ended->signaled) {
    return InternalError("the process that took the batch {}",
                         ended->ToString());
  }
  return ReadResult(result.get());
}

}  // namespace penstock
