// A penstockd of a test's own: started on a socket in a temporary folder,
// stopped and waited for at the end.
#ifndef TESTS_SUPPORT_BROKER_PROCESS_H_
#define TESTS_SUPPORT_BROKER_PROCESS_H_

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace penstock {

class BrokerProcess {
 public:
  // private_broker: it serves this user only; else it runs as a service.
  // enter: called in its process before it is penstockd (namespaces.h).
  explicit BrokerProcess(std::vector<std::string> arguments = {},
                         bool private_broker = true,
                         std::function<void()> enter = nullptr);
  ~BrokerProcess();
  BrokerProcess(const BrokerProcess&) = delete;

  const std::string& socket() const { return socket_; }
  const std::filesystem::path& folder() const { return folder_; }
  pid_t pid() const { return pid_; }
  // Starts another one with the same folder and socket, after Stop.
  void Start();
  // Sends the signal and waits for the end. Returns the exit status, or minus
  // the number of the signal that ended it.
  int Stop(int signal);
  // Rows that the workers have made for all current jobs, from its status.
  uint64_t RowsMade() const;
  // A field of proc_pid_status(5) of each worker thread, by the thread's name.
  std::map<std::string, std::string> OfWorkers(const std::string& field) const;
  // Writes text to a file in folder() and returns its path.
  std::string Write(const std::string& name, const std::string& text) const;

 private:
  std::vector<std::string> words_;
  std::function<void()> enter_;
  std::filesystem::path folder_;
  std::string socket_;
  pid_t pid_ = -1;
};

}  // namespace penstock
#endif  // TESTS_SUPPORT_BROKER_PROCESS_H_
