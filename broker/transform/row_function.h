// A step of `map` that sees whole rows and is not ours: a Python function, in a
// process of its own, or one of a shared library, in the worker.
//
// Which of them may be used is the configuration's: code comes from folders
// that others cannot write, and from nowhere else.
//
// Immutable once opened; every worker has its own Caller.
#ifndef BROKER_TRANSFORM_ROW_FUNCTION_H_
#define BROKER_TRANSFORM_ROW_FUNCTION_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "broker/source/source.h"
#include "broker/transform/augmentation.h"
#include "common/dataset_spec.h"
#include "common/status.h"

namespace penstock {

// Of all input and all output features of a function, for one row.
inline constexpr uint64_t kFunctionBytesMax = uint64_t{512} << 20;
// Functions of one map: each has its process in each worker.
inline constexpr size_t kFunctionsMax = 4;

struct FunctionOptions {
  // Folders whose modules may be named; empty: no Python function.
  std::vector<std::string> python_path;
  std::string python = "python3";  // the interpreter, by PATH
  // What a call may take, and the start of a process, its imports included.
  uint64_t call_timeout_ns = uint64_t{60} * 1'000'000'000;
  uint64_t start_timeout_ns = uint64_t{300} * 1'000'000'000;
  // The folder of shared libraries; "": none.
  std::string plugin_dir;
  // Mode bits that a file or folder of code may not have.
  mode_t writable_by = 0022;
};

class RowFunction {
 public:
  // Nobody waits for the row any more.
  using Cancelled = std::function<bool()>;

  // A worker's: its memory, and its process if it has one. One thread at a
  // time.
  class Caller {
   public:
    virtual ~Caller() = default;
    // Where input i goes, bytes[i] of it, aligned to 64.
    virtual StatusOr<std::span<std::byte* const>> Inputs(
        std::span<const uint64_t> bytes) = 0;
    // Calls the function; the outputs are valid until the next Inputs. step:
    // its number in the map. DataLoss: it failed, with what it said;
    // Unavailable: its process ended, another will be started, and the inputs
    // may have been changed: Inputs again. DeadlineExceeded; Cancelled.
    virtual StatusOr<const RawRecord*> Call(const AugmentationKey& key,
                                            uint64_t step) = 0;
  };

  virtual ~RowFunction() = default;
  virtual const ElementSpec& outputs() const = 0;
  virtual std::unique_ptr<Caller> MakeCaller(Cancelled cancelled) const = 0;
  // The longest that a call takes because of another process, with a new one if
  // that has to be started; 0: it runs on the worker's own thread.
  virtual uint64_t wait_ns() const = 0;
};

// Finds the function and tries whether it can be had; inputs: what it is given.
// Errors: FailedPrecondition (this broker allows none, with the way out),
// NotFound, InvalidArgument (it cannot be imported, with what Python said).
// cancelled: nobody waits for it any more.
StatusOr<std::unique_ptr<RowFunction>> OpenRowFunction(
    const FunctionOp& op, const RawSpec& inputs, const FunctionOptions& options,
    const RowFunction::Cancelled& cancelled);

// Nothing that others write: folder and the way to it are root's or this user's
// and have no mode bit of writable_by. FailedPrecondition names what is not so.
// Without symbolic links: the folder that was looked at.
StatusOr<std::string> CheckTrusted(const std::string& folder,
                                   mode_t writable_by);
// The same of a file in it.
Status CheckTrustedFile(const std::string& path, const struct stat& st,
                        mode_t writable_by);

// ---- the two kinds, for OpenRowFunction
// -------------------------------------

StatusOr<std::unique_ptr<RowFunction>> OpenPythonFunction(
    const std::string& function, const RawSpec& inputs, ElementSpec outputs,
    const FunctionOptions& options, const RowFunction::Cancelled& cancelled);
StatusOr<std::unique_ptr<RowFunction>> OpenPluginFunction(
    const std::string& library, const std::string& function,
    const RawSpec& inputs, ElementSpec outputs, const FunctionOptions& options);

// Where the features of a row lie in one piece of memory.
struct RowLayout {
  std::vector<uint64_t> input_offsets;
  std::vector<uint64_t> output_offsets;
  uint64_t bytes = 0;
};
// ResourceExhausted: more than kFunctionBytesMax.
StatusOr<RowLayout> PlanRow(std::span<const uint64_t> input_bytes,
                            const ElementSpec& outputs);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_ROW_FUNCTION_H_
