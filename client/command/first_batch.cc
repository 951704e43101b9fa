#include "client/command/first_batch.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include "client/command/subcommand.h"
#include "client/private_broker/interrupt.h"
#include "client/private_broker/process.h"

namespace penstock {

ElementSpec FeaturesOf(const penstock_reader* reader,
                       const penstock_batch* batch) {
  ElementSpec features;
  for (uint32_t i = 0; i < penstock_feature_count(reader); ++i) {
    penstock_feature feature;
    if (batch == nullptr) {
      penstock_feature_at(reader, i, &feature);
    } else {
      penstock_batch_feature(batch, i, &feature);
    }
    features.push_back({feature.name,
                        static_cast<DType>(feature.dtype),
                        {feature.shape, feature.shape + feature.dimensions}});
  }
  return features;
}

Status LibraryError(int code) {
  return Status(static_cast<StatusCode>(-code), penstock_error());
}

StatusOr<penstock_reader*> AttachAlone(const std::string& socket,
                                       const JobToTake& job) {
  penstock_options options = PENSTOCK_OPTIONS_INIT;
  options.rank = 0;
  options.world_size = 1;
  options.local_world_size = 1;
  (job.spec.empty() ? options.dataset : options.spec) =
      (job.spec.empty() ? job.dataset : job.spec).c_str();
  options.job = job.name.c_str();
  options.socket = socket.c_str();
  if (!job.state.empty()) options.state = job.state.c_str();
  penstock_reader* reader = nullptr;
  const int code = penstock_attach(&options, &reader);
  if (code != PENSTOCK_OK) return LibraryError(code);
  return reader;
}

namespace {

StatusOr<std::string> Take(const std::string& socket, const JobToTake& job,
                           const UseBatch& use) {
  PENSTOCK_ASSIGN_OR_RETURN(penstock_reader* const reader,
                            AttachAlone(socket, job));
  penstock_batch* batch = nullptr;
  const int code = penstock_next(reader, &batch);
  StatusOr<std::string> result = NotFoundError(
      "the dataset has no batch: it has fewer records than one, and `last` is "
      "drop");
  if (code == PENSTOCK_OK) {
    // Read the memory by the library's description of the features, which is of
    // this mapping, not by the broker's earlier answer.
    result = use(FeaturesOf(reader, batch), batch);
    penstock_release(batch);
  } else if (code < 0) {
    result = LibraryError(code);
  }
  penstock_detach(reader);
  return result;
}

// A status code, and behind it the message or the result.
bool WriteResult(int fd, const StatusOr<std::string>& result) {
  std::string text(1, static_cast<char>(result.status().code()));
  text += result.ok() ? *result : result.status().message();
  return WriteWholly(fd, text);
}

StatusOr<std::string> ReadResult(int fd) {
  struct stat st = {};
  fstat(fd, &st);
  std::string text(static_cast<size_t>(st.st_size), '\0');
  if (text.empty() || !ReadWholly(fd, text.data(), text.size())) {
    return InternalError("the process that took the data failed");
  }
  const auto code = static_cast<StatusCode>(text[0]);
  text.erase(0, 1);
  if (code != StatusCode::kOk) return Status(code, text);
  return text;
}

}  // namespace

StatusOr<std::string> WithFirstBatch(PrivateBroker* broker,
                                     const JobToTake& job,
                                     const UseBatch& use) {
  return InTakingProcess(broker,
                         [&] { return Take(broker->socket(), job, use); });
}

StatusOr<std::string> InTakingProcess(
    PrivateBroker* broker, const std::function<StatusOr<std::string>()>& take) {
  const Fd result(memfd_create("result", MFD_CLOEXEC));
  if (!result) return ErrnoError(errno, "memfd_create");
  std::fflush(stdout);  // else both processes would write what is in it
  ProcessSpec spec;
  spec.body = [&] {
    broker->ForgetInFork();
    StatusOr<std::string> taken = take();
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
    return InternalError("the process that took the data {}",
                         ended->ToString());
  }
  return ReadResult(result.get());
}

}  // namespace penstock
