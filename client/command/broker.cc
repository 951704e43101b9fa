// penstock broker: a private broker for a program that reads its socket's path
// from standard output: a shell, or the library of any language.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "client/command/subcommand.h"
#include "client/private_broker/interrupt.h"
#include "client/private_broker/private_broker.h"
#include "common/command_line.h"
#include "common/printable.h"

namespace penstock {
namespace {

struct BrokerOptions {
  bool until_eof = false;
  std::string place;  // the file by which the ranks of a launch find it
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

// Removes the file and the FIFO by which ranks join
// (client/attach/own_broker.h) if they are still of this broker. False: a rank
// has joined, and even_if_joined is not set.
bool RemovePlace(const std::string& place, const std::string& socket,
                 bool even_if_joined) {
  const Fd file(open(place.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file || TEMP_FAILURE_RETRY(flock(file.get(), LOCK_EX)) != 0) return true;
  if (!even_if_joined && !InputEnded()) return false;
  std::string line(socket.size() + 1, '\0');
  if (pread(file.get(), line.data(), line.size(), 0) ==
          static_cast<ssize_t>(line.size()) &&
      line == socket + "\n") {
    unlink((place + ".fifo").c_str());
    unlink(place.c_str());
    // Unless it has files of other launches.
    rmdir(std::filesystem::path(place).parent_path().c_str());
  }
  return true;
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
  broker->Announce();
  PENSTOCK_RETURN_IF_ERROR(broker->Call({{"op", "ping"}}).status());
  Print(stdout, "{}\n", broker->socket());
  std::fflush(stdout);
  for (;;) {
    const Status tended = broker->TendUntil(
        events.get(),
        [](const std::string& line) { Print(stderr, "penstock: {}\n", line); });
    if (!tended.ok()) {
      RemovePlace(options.place, broker->socket(), true);
      return tended;
    }
    epoll_event event{};
    if (epoll_wait(events.get(), &event, 1, 0) != 1) continue;
    if (event.data.fd == STDIN_FILENO) {
      if (InputEnded() && RemovePlace(options.place, broker->socket(), false)) {
        return OkStatus();
      }
      continue;
    }
    const std::optional<Interrupt> interrupt = NextInterrupt();
    // Ctrl-C is for the program that started this one, which may continue.
    if (!interrupt || (options.until_eof && interrupt->from_terminal)) continue;
    RemovePlace(options.place, broker->socket(), true);
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

Subcommand AddBroker(Command parent) {
  Command broker = parent.AddCommand(
      "broker", "Start a private broker and print where it listens");
  const auto options = std::make_shared<BrokerOptions>();
  broker.AddFlag("--until-eof", &options->until_eof,
                 "End when standard input ends, and ignore Ctrl-C: for a "
                 "program that starts this one and holds a pipe to it");
  broker
      .AddOption("--place", &options->place,
                 "The file by which ranks of one launch find this broker; "
                 "it is removed with it")
      .Type("FILE")
      .Hide();  // only for the client library
  options->broker.AddTo(broker);
  broker.SetFooter(R"(
The broker needs no configuration and no root. It is restarted when it
dies, and ends with this command. `penstock run` does the same for one
command.

Example (bash; `read` waits for it):
  exec 3< <(penstock broker)
  read -r PENSTOCK_SOCKET <&3 && export PENSTOCK_SOCKET
  ./trainer
  kill $!)");
  return {broker, [options] { return Run(*options); }};
}

}  // namespace penstock
