// One process that calls a Python function (python_worker.py), and the memory
// that it shares with its worker.
//
// One thread at a time, and the same for all of its life: the kernel ends the
// process with the thread that started it.
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

// A memfd that only grows: nobody can cut off what is mapped.
class GrowingMemory {
 public:
  // Mapped anew if it is to be larger. Errors: what the kernel says.
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
  // The interpreter can be started, and does nothing when it has nothing to do.
  static Status CheckInterpreter(const std::string& python);

  // argument: the JSON that python_worker.py takes. Waits until the function is
  // imported. InvalidArgument: it cannot be, with what Python said;
  // DeadlineExceeded, Cancelled; Unavailable: it ended; NotFound: no such
  // interpreter.
  static StatusOr<std::unique_ptr<PythonProcess>> Start(
      const FunctionOptions& options, const std::string& argument,
      const GrowingMemory& memory, const RowFunction::Cancelled& cancelled);
  ~PythonProcess();  // kills it
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  // Asks for one row. DataLoss: the function failed, with what Python said.
  // After Unavailable (it ended; how), DeadlineExceeded and Cancelled the
  // process is of no more use.
  Status Call(std::span<const uint64_t> numbers, uint64_t timeout_ns,
              const RowFunction::Cancelled& cancelled);
  pid_t pid() const { return pid_; }

 private:
  PythonProcess() = default;
  // The text of the answer to the last call; *failed is what it begins with.
  StatusOr<std::string> Answer(uint64_t timeout_ns, const char* limit,
                               const RowFunction::Cancelled& cancelled,
                               bool* failed);
  Status Ended();  // how

  pid_t pid_ = -1;
  uint64_t calls_ = 0;  // each has its number; 0 is the import
  std::vector<char> answer_;
  Fd pidfd_;
  Fd link_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PYTHON_PROCESS_H_
