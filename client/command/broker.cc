// penstock broker: a private broker for a program that reads its socket's path
// from standard output: a shell, or the library of any language.
#include <sys/epoll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "client/command/interrupt.h"
#include "client/command/private_broker.h"
#include "client/command/subcommand.h"
#include "common/printable.h"

namespace penstock {
namespace {

struct BrokerOptions {
  bool until_eof = false;
  PrivateBrokerOptions broker;
};

Status Watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return OkStatus();
  // EPERM: a regular file, which cannot be waited for.
  return errno == EPERM && fd == STDIN_FILENO
             ? InvalidArgumentError(
                   "--until-eof: standard input is neither a pipe nor a "
                   "terminal")
             : ErrnoError(errno, "epoll_ctl");
}

// Whether standard input is at its end.
bool InputEnded() {
  char bytes[256];
  return read(STDIN_FILENO, bytes, sizeof(bytes)) == 0;
}

Status Serve(const BrokerOptions& options, int* exit_status) {
  const Fd events(epoll_create1(EPOLL_CLOEXEC));
  if (!events) return ErrnoError(errno, "epoll_create1");
  PENSTOCK_RETURN_IF_ERROR(Watch(events.get(), InterruptFd()));
  if (options.until_eof) {
    PENSTOCK_RETURN_IF_ERROR(Watch(events.get(), STDIN_FILENO));
  }
  // Functions of its datasets may leave processes behind.
  AdoptOrphans();
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PrivateBroker> broker,
                            PrivateBroker::Start(options.broker));
  PENSTOCK_RETURN_IF_ERROR(broker->Call({{"op", "ping"}}).status());
  Print(stdout, "{}\n", broker->socket());
  std::fflush(stdout);
  for (;;) {
    PENSTOCK_RETURN_IF_ERROR(
        broker->TendUntil(events.get(), [](const std::string& line) {
          Print(stderr, "penstock: {}\n", line);
        }));
    epoll_event event{};
    if (epoll_wait(events.get(), &event, 1, 0) != 1) continue;
    if (event.data.fd == STDIN_FILENO) {
      if (InputEnded()) return OkStatus();
      continue;
    }
    const std::optional<Interrupt> interrupt = NextInterrupt();
    // Ctrl-C is for the program that started this one, which may continue.
    if (!interrupt || (options.until_eof && interrupt->from_terminal)) continue;
    *exit_status = 128 + interrupt->signal;
    return OkStatus();
  }
}

StatusOr<int> Run(const BrokerOptions& options) {
  int exit_status = 0;
  const Status status = Serve(options, &exit_status);
  KillOrphans({});
  if (status.ok()) return exit_status;
  // The program that started this one reports the error.
  if (options.until_eof) {
    Print(stdout, "error {} {}\n", static_cast<int>(status.code()),
          Printable(status.message()));
  }
  return status;
}

}  // namespace

Subcommand AddBroker(CLI::App& app) {
  CLI::App* const broker = app.add_subcommand(
      "broker", "Start a private broker and print where it listens");
  const auto options = std::make_shared<BrokerOptions>();
  broker->add_flag("--until-eof", options->until_eof,
                   "End when standard input ends, and ignore Ctrl-C: for a "
                   "program that starts this one and holds a pipe to it");
  options->broker.AddTo(broker);
  broker->footer(
      "The broker needs no configuration and no root. It is restarted when it\n"
      "dies, and ends with this command. `penstock run` does the same for one\n"
      "command.\n"
      "\n"
      "Example (bash; `read` waits for it):\n"
      "  exec 3< <(penstock broker)\n"
      "  read -r PENSTOCK_SOCKET <&3 && export PENSTOCK_SOCKET\n"
      "  ./trainer\n"
      "  kill $!");
  return {broker, [options] { return Run(*options); }};
}

}  // namespace penstock
