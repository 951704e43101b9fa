// Ctrl-C and its like, for a command that must tidy up before it ends.
//
// The command has one thread. A handler only writes a byte into a pipe and
// closes the conversation that is being waited for; everything else happens in
// the loops that poll InterruptFd().
#ifndef CLIENT_COMMAND_INTERRUPT_H_
#define CLIENT_COMMAND_INTERRUPT_H_

#include <sys/types.h>

#include <optional>

#include "common/status.h"

namespace penstock {

struct Interrupt {
  int signal;
  // Sent by the terminal (Ctrl-C), so that every process of the foreground
  // group has got it; otherwise by kill(). HandOn keeps it.
  bool from_terminal;
  bool handed_on;  // by HandOn
};

// Catches SIGINT, SIGTERM, SIGQUIT and SIGHUP (unless ignored: nohup) and
// ignores SIGPIPE, so that a closed pipe is an error and not the end.
void CatchInterrupts();

// In a forked child that does not exec: all of it back to the default.
void ForgetInterrupts();

// Readable as long as NextInterrupt has something. -1 before CatchInterrupts.
int InterruptFd();
std::optional<Interrupt> NextInterrupt();
// To another process of this program.
void HandOn(const Interrupt& interrupt, pid_t pid);

// The first signal that arrived, 0 while there is none; does not consume it.
int InterruptSignal();
// Cancelled, once a signal has arrived.
Status CheckInterrupt();

// While it lives, a signal shuts this socket down, so that a blocking wait on
// it ends at once, whenever the signal comes.
class InterruptEndsSocket {
 public:
  explicit InterruptEndsSocket(int socket);
  ~InterruptEndsSocket();
  InterruptEndsSocket(const InterruptEndsSocket&) = delete;
  InterruptEndsSocket& operator=(const InterruptEndsSocket&) = delete;
};

}  // namespace penstock
#endif  // CLIENT_COMMAND_INTERRUPT_H_
