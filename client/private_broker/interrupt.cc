#include "client/private_broker/interrupt.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>

namespace penstock {
namespace {

constexpr int kCaught[] = {SIGINT, SIGTERM, SIGQUIT, SIGHUP};
// Flag in the pipe's byte, whose low bits are the signal (below 32).
constexpr unsigned char kFromTerminal = 0x80;
constexpr unsigned char kHandedOn = 0x40;
// HandOn's sigqueue value: this plus the flag above.
constexpr int kHandedOnValue = 0x7e1200;

int g_pipe[2] = {-1, -1};
// Handlers run on the only thread, so program order suffices for these.
std::atomic<int> g_first_signal{0};
std::atomic<int> g_socket{-1};

void OnSignal(int signal, siginfo_t* info, void*) {
  const int saved_errno = errno;
  int none = 0;
  g_first_signal.compare_exchange_strong(none, signal);
  unsigned char byte = static_cast<unsigned char>(signal);
  if (info->si_code == SI_KERNEL) byte |= kFromTerminal;
  const int value = info->si_code == SI_QUEUE ? info->si_value.sival_int : 0;
  if ((value & ~kFromTerminal) == kHandedOnValue) {
    byte |= kHandedOn | (value & kFromTerminal);
  }
  // A full pipe holds enough interrupts.
  [[maybe_unused]] const ssize_t written = write(g_pipe[1], &byte, 1);
  const int socket = g_socket.load();
  if (socket >= 0) shutdown(socket, SHUT_RDWR);
  errno = saved_errno;
}

}  // namespace

void CatchInterrupts() {
  if (g_pipe[0] < 0 && pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return;
  struct sigaction action {};
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int signal : kCaught) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
}

void ForgetInterrupts() {
  for (const int signal : kCaught) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) std::signal(signal, SIG_DFL);
  }
  std::signal(SIGPIPE, SIG_DFL);
  // The pipe is the parent's.
  for (int& fd : g_pipe) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
  g_first_signal.store(0);
  g_socket.store(-1);
}

int InterruptFd() { return g_pipe[0]; }

std::optional<Interrupt> NextInterrupt() {
  unsigned char byte;
  if (g_pipe[0] < 0 || read(g_pipe[0], &byte, 1) != 1) return std::nullopt;
  return Interrupt{byte & ~(kFromTerminal | kHandedOn),
                   (byte & kFromTerminal) != 0, (byte & kHandedOn) != 0};
}

void HandOn(const Interrupt& interrupt, pid_t pid) {
  sigval value{};
  value.sival_int =
      kHandedOnValue | (interrupt.from_terminal ? kFromTerminal : 0);
  sigqueue(pid, interrupt.signal, value);
}

int InterruptSignal() { return g_first_signal.load(); }

Status CheckInterrupt() {
  const int signal = InterruptSignal();
  if (signal == 0) return OkStatus();
  return CancelledError("interrupted by {}",
                        signal == SIGINT ? "Ctrl-C" : strsignal(signal));
}

InterruptEndsSocket::InterruptEndsSocket(int socket) {
  g_socket.store(socket);
  // A signal may have come before the handler knew the socket.
  if (InterruptSignal() != 0) shutdown(socket, SHUT_RDWR);
}

InterruptEndsSocket::~InterruptEndsSocket() { g_socket.store(-1); }

}  // namespace penstock
