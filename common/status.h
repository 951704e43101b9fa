// The result of every call that can fail, in every process.
//
// Same codes, numbers and spelling as absl::Status, but header-only and our
// own: Debian's libabsl_status cannot be linked statically into a shared object
// (local-exec TLS in its cord code), and libpenstock.so must carry no Abseil
// symbol next to TensorFlow's and PyTorch's own copies.
#ifndef COMMON_STATUS_H_
#define COMMON_STATUS_H_

#include <cassert>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include "common/format.h"

namespace penstock {

// Numbers are part of the C ABI (penstock.h) and of the control protocol.
enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,           // asked to stop; nothing is wrong
  kInvalidArgument = 3,     // wrong in any state: correct the input
  kDeadlineExceeded = 4,    // a stated time limit passed
  kNotFound = 5,            // the named thing does not exist
  kAlreadyExists = 6,       // the named thing exists, held by another
  kPermissionDenied = 7,    // it exists, but this user may not access it
  kResourceExhausted = 8,   // a limit was reached: memory, leases, quota
  kFailedPrecondition = 9,  // right input, wrong state: change the state
  kAborted = 10,            // fenced: another incarnation took over
  kUnimplemented = 12,      // not supported by the kernel or this build
  kInternal = 13,           // a bug, or a peer broke the protocol
  kUnavailable = 14,        // no answer: a retry may help
  kDataLoss = 15,           // a record is truncated or corrupt
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same code, with "context: " in front of the message.
  Status Prepend(const std::string& context) const {
    return ok() ? *this : Status(code_, context + ": " + message_);
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }

// One maker per code; arguments as for Format.
#define PENSTOCK_STATUS_MAKER(name, code)                           \
  template <typename... Args>                                       \
  Status name(fmt::format_string<Args...> format, Args&&... args) { \
    return Status(StatusCode::code,                                 \
                  Format(format, std::forward<Args>(args)...));     \
  }
PENSTOCK_STATUS_MAKER(CancelledError, kCancelled)
PENSTOCK_STATUS_MAKER(InvalidArgumentError, kInvalidArgument)
PENSTOCK_STATUS_MAKER(DeadlineExceededError, kDeadlineExceeded)
PENSTOCK_STATUS_MAKER(NotFoundError, kNotFound)
PENSTOCK_STATUS_MAKER(AlreadyExistsError, kAlreadyExists)
PENSTOCK_STATUS_MAKER(PermissionDeniedError, kPermissionDenied)
PENSTOCK_STATUS_MAKER(ResourceExhaustedError, kResourceExhausted)
PENSTOCK_STATUS_MAKER(FailedPreconditionError, kFailedPrecondition)
PENSTOCK_STATUS_MAKER(AbortedError, kAborted)
PENSTOCK_STATUS_MAKER(UnimplementedError, kUnimplemented)
PENSTOCK_STATUS_MAKER(InternalError, kInternal)
PENSTOCK_STATUS_MAKER(UnavailableError, kUnavailable)
PENSTOCK_STATUS_MAKER(DataLossError, kDataLoss)
#undef PENSTOCK_STATUS_MAKER

// A remedy for an error caused by a limit of this process, else "".
inline const char* LimitHint(int error) {
  switch (error) {
    case EMFILE:
      return "; raise the limit of open files (`ulimit -n`, LimitNOFILE=)";
    case EFBIG:
      return "; raise the limit of file size (`ulimit -f`, LimitFSIZE=)";
    default:
      return "";
  }
}

// The code for errno, with "what: strerror" as the message.
inline Status ErrnoError(int error, const std::string& what) {
  StatusCode code = StatusCode::kInternal;
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      code = StatusCode::kNotFound;
      break;
    case EACCES:
    case EPERM:
      code = StatusCode::kPermissionDenied;
      break;
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
      code = StatusCode::kResourceExhausted;
      break;
    case EEXIST:
    case EADDRINUSE:
      code = StatusCode::kAlreadyExists;
      break;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
      code = StatusCode::kUnavailable;
      break;
    case EIO:
      code = StatusCode::kDataLoss;
      break;
    default:
      break;
  }
  char text[128];
  return Status(code, what + ": " + strerror_r(error, text, sizeof(text)) +
                          LimitHint(error));
}

// A value or the reason there is none.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(T value) : value_(std::move(value)) {}
  StatusOr(Status status) : status_(std::move(status)) {
    assert(!status_.ok());
  }
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

#define PENSTOCK_CONCAT_INNER(a, b) a##b
#define PENSTOCK_CONCAT(a, b) PENSTOCK_CONCAT_INNER(a, b)
#define PENSTOCK_RETURN_IF_ERROR(expr)                                      \
  if (::penstock::Status penstock_status = (expr); !penstock_status.ok()) { \
    return penstock_status;                                                 \
  }
#define PENSTOCK_ASSIGN_OR_RETURN(lhs, expr)                 \
  auto PENSTOCK_CONCAT(penstock_or_, __LINE__) = (expr);     \
  if (!PENSTOCK_CONCAT(penstock_or_, __LINE__).ok()) {       \
    return PENSTOCK_CONCAT(penstock_or_, __LINE__).status(); \
  }                                                          \
  lhs = *std::move(PENSTOCK_CONCAT(penstock_or_, __LINE__))

}  // namespace penstock
#endif  // COMMON_STATUS_H_
