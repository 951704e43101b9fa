// Signals such as Ctrl-C, for a command that must clean up before it ends.
//
// The command has one thread. A handler only writes a byte into a pipe and
// shuts the socket down that is being waited for; the rest happens in the loops
// that poll InterruptFd().
#ifndef CLIENT_PRIVATE_BROKER_INTERRUPT_H_
#define CLIENT_PRIVATE_BROKER_INTERRUPT_H_

#include <sys/types.h>

#include <optional>

#include "common/status.h"

namespace penstock {

struct Interrupt {
  int signal;
  // Sent by the terminal (Ctrl-C), to every process of the foreground group;
  // otherwise by kill(). HandOn keeps it.
  bool from_terminal;
  bool handed_on;  // by HandOn
};

// Catches SIGINT, SIGTERM, SIGQUIT and SIGHUP (unless ignored: nohup) and
// ignores SIGPIPE, so that writing to a closed pipe is an error.
void CatchInterrupts();

// For a forked child that does not exec: restores the defaults.
void ForgetInterrupts();

// Readable while NextInterrupt has an interrupt. -1 before CatchInterrupts.
int InterruptFd();
std::optional<Interrupt> NextInterrupt();
// Sends it to another process of this program.
void HandOn(const Interrupt& interrupt, pid_t pid);

// The first signal that arrived, 0 if none; does not consume it.
int InterruptSignal();
// Cancelled once a signal has arrived.
Status CheckInterrupt();

// While this object exists, a signal shuts the socket down, so that a blocking
// wait on it ends at once, whenever the signal comes.
class InterruptEndsSocket {
 public:
  explicit InterruptEndsSocket(int socket);
  ~InterruptEndsSocket();
  InterruptEndsSocket(const InterruptEndsSocket&) = delete;
  InterruptEndsSocket& operator=(const InterruptEndsSocket&) = delete;
};

}  // namespace penstock
#endif  // CLIENT_PRIVATE_BROKER_INTERRUPT_H_
