// A process that calls a Python function (python_worker.py), and the memory it
// shares with its worker.
//
// Use from one thread for its whole life: the kernel kills the process when the
// thread that started it ends.
#ifndef BROKER_TRANSFORM_PYTHON_PROCESS_H_
#define BROKER_TRANSFORM_PYTHON_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "broker/transform/row_function.h"
#include "common/fd.h"
#include "common/segment.h"
#include "common/status.h"

namespace penstock {

// A memfd that only grows: nobody can truncate mapped memory.
class GrowingMemory {
 public:
  // Remaps the memory if it must grow. Errors: the kernel's.
  Status Reserve(uint64_t bytes);
  int fd() const { return fd_.get(); }
  std::byte* data() const { return mapping_.data(); }
  uint64_t bytes() const { return bytes_; }

 private:
  Fd fd_;
  Mapping mapping_;
  uint64_t bytes_ = 0;
};

class PythonProcess {
 public:
  // Checks that the interpreter starts and exits.
  static Status CheckInterpreter(const std::string& python);

  // argument: the JSON for python_worker.py. Waits until the function is
  // imported. InvalidArgument: the import failed, with Python's message;
  // DeadlineExceeded, Cancelled; Unavailable: the process ended; NotFound: no
  // such interpreter.
  static StatusOr<std::unique_ptr<PythonProcess>> Start(
      const FunctionOptions& options, const std::string& argument,
      const GrowingMemory& memory, const RowFunction::Cancelled& cancelled);
  ~PythonProcess();  // kills it
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  // Requests one row. DataLoss: the function failed, with Python's message.
  // After Unavailable (the process ended; says how), DeadlineExceeded and
  // Cancelled the process is unusable.
  Status Call(std::span<const uint64_t> numbers, uint64_t timeout_ns,
              const RowFunction::Cancelled& cancelled);
  pid_t pid() const { return pid_; }

 private:
  PythonProcess() = default;
  // The text of the last call's answer; it begins with *failed.
  StatusOr<std::string> Answer(uint64_t timeout_ns, const char* limit,
                               const RowFunction::Cancelled& cancelled,
                               bool* failed);
  Status Ended();  // says how it ended

  pid_t pid_ = -1;
  uint64_t calls_ = 0;  // numbers the calls; 0 is the import
  std::vector<char> answer_;
  Fd pidfd_;
  Fd link_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PYTHON_PROCESS_H_
