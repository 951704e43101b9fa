// A process that runs a user's Python code (python_process.py), and the memory
// it shares with its worker.
//
// Use from one thread for its whole life: the kernel kills the process when the
// thread that started it ends.
#ifndef BROKER_USER_CODE_PYTHON_PROCESS_H_
#define BROKER_USER_CODE_PYTHON_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "broker/sandbox/program_launcher.h"
#include "broker/user_code/trusted_code.h"
#include "common/fd.h"
#include "common/segment.h"
#include "common/status.h"

namespace penstock {

// A memfd that only grows: nobody can truncate mapped memory.
class GrowingMemory {
 public:
  // Remaps the memory if it must grow. Errors: the kernel's.
  Status Reserve(uint64_t bytes);
  // The other process says that it has made the memory this large. Unavailable:
  // it has not.
  Status Follow(uint64_t bytes);
  int fd() const { return fd_.get(); }
  std::byte* data() const { return mapping_.data(); }
  uint64_t bytes() const { return bytes_; }

 private:
  Fd fd_;
  Mapping mapping_;
  uint64_t bytes_ = 0;
};

class PythonTemplate;

class PythonProcess {
 public:
  // Checks that the interpreter starts and exits.
  static Status CheckInterpreter(const std::string& python);

  // From now on the launcher (sandbox/program_launcher.h) starts the processes.
  // It runs these programs alone, with these options; reload changes the
  // options. It removes this socket when asked, and this folder at its end if
  // that is empty ("": none).
  static Status StartLauncher(FunctionOptions options,
                              std::vector<std::string_view> programs,
                              std::string socket, std::string folder,
                              std::function<Status(FunctionOptions*)> reload);

  // program: what follows python_process.py; argument: its JSON. Waits until
  // the user's code is imported. InvalidArgument: that failed, with Python's
  // message; DeadlineExceeded, Cancelled; Unavailable: the process ended;
  // NotFound: no such interpreter.
  static StatusOr<std::unique_ptr<PythonProcess>> Start(
      const FunctionOptions& options, std::string_view program,
      const std::string& argument, const GrowingMemory& memory,
      const Cancelled& cancelled);
  // The same by a fork of the template, which has loaded the user's code.
  static StatusOr<std::unique_ptr<PythonProcess>> Fork(
      const FunctionOptions& options,
      const std::shared_ptr<PythonTemplate>& parent,
      const std::string& argument, const GrowingMemory& memory,
      const Cancelled& cancelled);
  ~PythonProcess();  // kills it, and waits for its end
  // Kills a forked one, whose memory nobody uses any more, without waiting:
  // 10 to 20 ms of a process that has loaded PyTorch.
  void Drop();
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  // What the program answered to its start.
  const std::string& greeting() const { return greeting_; }
  // The descriptor beside that, if there was one.
  Fd TakeGreetingFd() { return std::move(greeting_fd_); }

  // An answer to a call.
  struct Answer {
    enum class Kind : uint8_t {
      kDone,
      kFailed,  // body: Python's message
      kMore,    // another answer follows
      kLast,    // done; the process wants to be replaced
    };
    Kind kind = Kind::kDone;
    std::string body;
    Fd fd;  // of a template
  };
  // Begins a call. After Unavailable (the process ended; says how),
  // DeadlineExceeded and Cancelled the process is unusable.
  Status Send(std::span<const uint64_t> numbers, const Cancelled& cancelled) {
    return Send(std::as_bytes(numbers), {}, cancelled);
  }
  // Waits for the call's next answer. Errors as of Send.
  StatusOr<Answer> Receive(uint64_t timeout_ns, const Cancelled& cancelled) {
    return Receive(timeout_ns, "(python_timeout, PENSTOCK_PYTHON_TIMEOUT)",
                   cancelled);
  }
  // A call with one answer, done or failed.
  StatusOr<Answer> Call(std::span<const uint64_t> numbers, uint64_t timeout_ns,
                        const Cancelled& cancelled) {
    PENSTOCK_RETURN_IF_ERROR(Send(numbers, cancelled));
    return Receive(timeout_ns, cancelled);
  }
  pid_t pid() const { return pid_; }
  // For a program with packets of its own.
  int link() const { return link_.get(); }

 private:
  PythonProcess() = default;
  friend class PythonTemplate;
  // start: makes the process, which is given its end of the link, and the
  // memory.
  static StatusOr<std::unique_ptr<PythonProcess>> Linked(
      const std::function<StatusOr<Child>(const std::vector<int>& fds)>& start,
      std::shared_ptr<PythonTemplate> parent, const FunctionOptions& options,
      const GrowingMemory& memory, const Cancelled& cancelled);
  Status Send(std::span<const std::byte> asked, std::span<const int> fds,
              const Cancelled& cancelled);
  StatusOr<Answer> Receive(uint64_t timeout_ns, const char* limit,
                           const Cancelled& cancelled);
  // How it ended, which it must have; nullopt: nobody knows.
  std::optional<int> Reap();
  Status Ended();  // says how it ended

  std::shared_ptr<PythonTemplate> parent_;  // nullptr: this process
  pid_t pid_ = -1;
  uint64_t calls_ = 0;  // numbers the calls; 0 is the import
  std::string greeting_;
  Fd greeting_fd_;
  std::vector<char> answer_;
  Fd pidfd_;
  Fd link_;
  // An answer to a call that was given up may still come, and is dropped.
  bool drops_late_answers_ = false;
};

// A process that has loaded the user's code, and from which others are forked:
// they share its memory until they write there. It ends with this object or
// with this process, whatever thread started it. Thread-safe.
class PythonTemplate {
 public:
  explicit PythonTemplate(std::unique_ptr<PythonProcess> process)
      : process_(std::move(process)) {
    process_->drops_late_answers_ = true;
  }
  // The one that a program of this user has forked of itself, and that listens
  // in options.object_dir (penstock/template.py). Unavailable: there is none.
  static StatusOr<std::shared_ptr<PythonTemplate>> Connect(
      const FunctionOptions& options, std::string_view program,
      const std::string& socket);

  // Errors: as of PythonProcess::Receive.
  StatusOr<Child> Fork(const std::string& argument, std::span<const int> fds,
                       uint64_t timeout_ns, const Cancelled& cancelled);
  // Kills a child with its group, and says how it ended (waitpid), if it does
  // soon.
  std::optional<int> Reap(pid_t pid);
  void Kill(pid_t pid);

 private:
  StatusOr<PythonProcess::Answer> Ask(const std::string& asked,
                                      std::span<const int> fds,
                                      uint64_t timeout_ns,
                                      const Cancelled& cancelled);

  std::mutex mutex_;
  const std::unique_ptr<PythonProcess> process_;  // guarded by mutex_
};

}  // namespace penstock
#endif  // BROKER_USER_CODE_PYTHON_PROCESS_H_
