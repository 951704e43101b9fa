// A step of `map` that runs a function on whole rows: of Python in a separate
// process (a user's, or tokenize.h), or of a shared library in the worker.
//
// Immutable once opened; every worker has its own Caller.
#ifndef BROKER_TRANSFORM_ROW_FUNCTION_H_
#define BROKER_TRANSFORM_ROW_FUNCTION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/source/source.h"
#include "broker/transform/augmentation.h"
#include "broker/transform/map_file.h"
#include "broker/user_code/trusted_code.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

template <typename T>
class Declaration;

// All input and output features of a function, for one row; a multiple of what
// each begins at.
inline constexpr uint64_t kFunctionBytesMax = uint64_t{512} << 20;
inline constexpr uint64_t kFunctionAlign = 64;
// Functions in one map: each has a process in each worker.
inline constexpr size_t kFunctionsMax = 4;

class SeveralRows;

class RowFunction {
 public:
  // A worker's memory, and its process if there is one. Not thread-safe.
  class Caller {
   public:
    virtual ~Caller() = default;
    // Destinations of the inputs, bytes[i] for input i, at kFunctionAlign.
    virtual StatusOr<std::span<std::byte* const>> Inputs(
        std::span<const uint64_t> bytes) = 0;
    // Calls the function; the outputs are valid until the next Inputs. step:
    // its number in the map. DataLoss: the function failed, with its message.
    // Unavailable: its process ended; a new one will be started, and the inputs
    // may have been modified: call Inputs again. DeadlineExceeded; Cancelled.
    virtual StatusOr<const RawRecord*> Call(const AugmentationKey& key,
                                            uint64_t step) = 0;
    // Not nullptr: it takes several rows a call, which draw no random numbers.
    virtual SeveralRows* several() { return nullptr; }
    // What the last call took the function itself, as its process says;
    // nullopt: all of the call, or not known.
    virtual std::optional<uint64_t> own_ns() const { return std::nullopt; }
  };

  virtual ~RowFunction() = default;
  virtual const RawSpec& outputs() const = 0;
  // What its values depend on beside the spec and the files that it names: the
  // versions of libraries. "": nothing.
  virtual std::string made_by() const { return ""; }
  virtual std::unique_ptr<Caller> MakeCaller(Cancelled cancelled) const = 0;
  // The longest time a call waits for another process, including the start of a
  // new one; 0: it runs on the worker's own thread.
  virtual uint64_t wait_ns() const = 0;
};

// The rows of a Caller's calls that take several. What becomes of a row does
// not depend on the others.
class SeveralRows {
 public:
  virtual ~SeveralRows() = default;
  // Forgets all rows, and what was made of them.
  virtual void Clear() = 0;
  // These are enough for a call.
  virtual bool IsFull() const = 0;
  // As Caller::Inputs, of one more row.
  virtual StatusOr<std::span<std::byte* const>> Add(
      std::span<const uint64_t> bytes) = 0;
  // Looks at the last row's. DataLoss: the function takes none such.
  virtual Status CheckInputs() = 0;
  virtual void DropLast() = 0;
  virtual size_t size() const = 0;
  // Calls the function with `count` rows from `first` on, whose inputs stay as
  // they are. Errors: as of Caller::Call, of all of them together.
  virtual Status CallOf(size_t first, size_t count) = 0;
  // What was made of a row; valid until the next MadeOf.
  virtual const RawRecord& MadeOf(size_t row) = 0;
};

// ---- for the kinds --------------------------------------------------------
// Their Open finds the function and tries to load it; inputs: its input
// features. Errors: FailedPrecondition (this broker allows none, with a
// remedy), NotFound, InvalidArgument (the import failed, with Python's
// message).

// For people: of the key features.
inline constexpr char kOutputsText[] =
    "what it returns, {NAME: {dtype, shape}, ...}, where a shape of [] is a "
    "single number; by default, what it is given";

// The output features: those of the spec, else the inputs. InvalidArgument: an
// input is encoded.
StatusOr<ElementSpec> OutputsOf(const std::optional<ElementSpec>& features,
                                const RawSpec& inputs);

// Offsets of a row's features in one block of memory.
struct RowLayout {
  std::vector<uint64_t> input_offsets;
  std::vector<uint64_t> output_offsets;
  uint64_t bytes = 0;
};
// ResourceExhausted: more than kFunctionBytesMax.
StatusOr<RowLayout> PlanRow(std::span<const uint64_t> input_bytes,
                            const ElementSpec& outputs);

// ---- functions of users

// map: python. A function of Python, in processes of its own.
struct PythonOp {
  std::string function;                 // "package.module:function"
  std::optional<ElementSpec> features;  // absent: as its input
  bool operator==(const PythonOp&) const = default;

  static const Declaration<PythonOp>& Declared();
  // python_function.py.
  static std::string_view Program();
  const std::string& Name() const { return function; }
  StatusOr<std::unique_ptr<RowFunction>> Open(const RawSpec& inputs,
                                              const FunctionOptions& options,
                                              MapOpening* opening) const;
};

// map: plugin. A function of a shared library (client/penstock_plugin.h),
// called on the worker's own thread.
struct PluginOp {
  std::string library;  // a file name
  std::string function;
  std::optional<ElementSpec> features;  // absent: as its input
  bool operator==(const PluginOp&) const = default;

  static const Declaration<PluginOp>& Declared();
  std::string Name() const { return Format("{} of {}", function, library); }
  StatusOr<std::unique_ptr<RowFunction>> Open(const RawSpec& inputs,
                                              const FunctionOptions& options,
                                              MapOpening* opening) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_ROW_FUNCTION_H_
