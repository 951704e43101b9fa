#include "tests/crash/storm_broker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <stdexcept>

namespace penstock {
namespace {

void Check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

Fd Listen(const std::string& path) {
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    throw std::runtime_error("'" + path + "' is too long for a socket");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  if (!fd ||
      bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) !=
          0 ||
      listen(fd.get(), 4096) != 0) {
    Check(ErrnoError(errno, "listen at '" + path + "'"));
  }
  return fd;
}

}  // namespace

StormBroker::StormBroker(std::string program, std::string folder,
                         std::function<Environment()> environment)
    : program_(std::move(program)),
      folder_(std::move(folder)),
      socket_(folder_ + "/penstock.sock"),
      environment_(std::move(environment)),
      log_(open((folder_ + "/penstockd.log").c_str(),
                O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)),
      listener_(Listen(socket_)) {
  RaiseDescriptorLimit();  // for the store
  if (!log_ || mkdir(state_folder().c_str(), 0700) != 0) {
    Check(ErrnoError(errno, "write in '" + folder_ + "'"));
  }
  Check(store_.Listen(folder_ + "/notify.sock"));
  Launch();
}

StormBroker::~StormBroker() { Stop(); }

void StormBroker::Launch() {
  ProcessSpec spec;
  spec.argv = {program_, "--state-dir", state_folder()};
  spec.environment = environment_();
  spec.environment.emplace_back("PENSTOCK_SOCKET", socket_);
  spec.environment.emplace_back("NOTIFY_SOCKET", folder_ + "/notify.sock");
  spec.environment.emplace_back(
      "FDSTORE", std::to_string(DescriptorStore::kDescriptorsMax));
  spec.stdout_fd = spec.stderr_fd = log_.get();
  spec.listen_fds = {{listener_.get(), "penstockd.socket"}};
  for (const StoredDescriptor& stored : store_.descriptors()) {
    spec.listen_fds.push_back({stored.fd.get(), stored.name});
  }
  StatusOr<Process> process = Process::Start(spec);
  Check(process.status());
  process_ = *std::move(process);
  store_.Expect(process_.pid());
  ++instances_;
}

void StormBroker::AddTo(std::vector<pollfd>* entries) const {
  entries->push_back({store_.fd(), POLLIN, 0});
  if (process_.pid() > 0) entries->push_back({process_.pidfd(), POLLIN, 0});
}

std::optional<ProcessExit> StormBroker::Tend() {
  const std::optional<ProcessExit> ended = process_.Ended();
  // In this order: messages sent before its end are handled first.
  store_.Receive();
  if (ended) process_.Reap();
  return ended;
}

void StormBroker::Stop() {
  if (process_.pid() <= 0) return;
  process_.Signal(SIGCONT);
  process_.Signal(SIGTERM);
  process_.WaitFor(5);
  process_.Reap();
}

}  // namespace penstock
