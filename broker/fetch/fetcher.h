// Object stores by a process of its own, which alone uses a network
// (python_fetcher.py). A private broker starts it when the first address is
// opened, or shares that of another one of its user; a service connects to
// penstock-fetch.service. If it ends, what was asked of it is asked of the next
// one.
//
// Thread-safe.
#ifndef BROKER_FETCH_FETCHER_H_
#define BROKER_FETCH_FETCHER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "broker/io/stores.h"
#include "broker/user_code/python_process.h"
#include "common/fd.h"
#include "common/status.h"

namespace penstock {

class Fetcher final : public Stores {
 public:
  // folder: of the local copies.
  static StatusOr<std::unique_ptr<Fetcher>> Make(FunctionOptions options,
                                                 std::string folder);
  // socket: where the process listens.
  static StatusOr<std::unique_ptr<Fetcher>> Connect(std::string socket);
  ~Fetcher() override;

  StatusOr<std::vector<std::string>> List(
      const std::string& pattern, const std::atomic<bool>& cancel) override;
  StatusOr<std::shared_ptr<RemoteFile>> Open(
      const std::string& url, std::optional<uint64_t> room,
      const std::atomic<bool>& cancel) override;
  StatusOr<RemoteFolder> OpenFolder(const std::string& url,
                                    std::optional<uint64_t> room,
                                    const std::atomic<bool>& cancel) override;
  StatusOr<std::string> Version(const std::string& url) override;
  Status Put(const std::string& file, const std::string& url) override;
  nlohmann::json UseJson() const override;
  void Observe(std::function<void(const FetchSpan&)> observer) override;

  // Reads of the store for so long: {"url", "credentials" (where they come
  // from), "first_byte_s", "rates", "requests_per_s", "error"...}, as
  // python_store_trial.py has it.
  StatusOr<nlohmann::json> Try(const std::string& url, double seconds);

  static std::string_view Program();

 private:
  struct Call {
    nlohmann::json asked;
    std::vector<nlohmann::json> answers;
    Fd fd;
    bool over = false;
    Status status;
    // What a former process had as this copy.
    std::weak_ptr<RemoteFile> again;
    uint64_t former = 0;
  };
  struct Asked {
    RemoteFile::Ask ask;
    uint64_t copy;
    RemoteFile::Range range;
  };

  // A link to a process, and what ends it.
  struct Link {
    std::unique_ptr<PythonProcess> process;  // nullptr: not started here
    Fd connection;
    int fd() const { return process ? process->link() : connection.get(); }
  };

  static StatusOr<std::unique_ptr<Fetcher>> Make(
      std::function<StatusOr<Link>(const Cancelled&)> connect);
  Fetcher(std::function<StatusOr<Link>(const Cancelled&)> connect, Fd news);

  StatusOr<std::shared_ptr<RemoteFile>> FileOf(const std::string& url,
                                               std::optional<uint64_t> room,
                                               Call* call);
  StatusOr<std::shared_ptr<Call>> Ask(nlohmann::json message,
                                      const std::atomic<bool>& cancel);
  void Notify();
  void Run();
  bool Start();
  void Ended(const Status& status);
  void Begin();
  bool Send();
  bool Receive();
  void TakeCall(nlohmann::json message, Fd fd);
  void TakeUse(nlohmann::json use);
  void TakeRanges(std::string_view packet);
  void EndAll(const Status& status);
  std::vector<std::shared_ptr<RemoteFile>> OpenFiles() const;
  void OpenAgain(uint64_t former, const std::shared_ptr<RemoteFile>& file);

  const std::function<StatusOr<Link>(const Cancelled&)> connect_;
  const Fd news_;  // eventfd
  std::atomic<bool> stops_{false};
  mutable std::mutex mutex_;
  std::condition_variable answered_;
  const std::shared_ptr<std::atomic<uint64_t>> unit_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(RemoteFile::kBlockBytes);
  // Guarded by mutex_.
  std::map<uint64_t, std::shared_ptr<Call>> calls_;
  std::deque<std::string> packets_;  // of calls
  std::vector<Asked> asked_;
  std::map<uint64_t, std::weak_ptr<RemoteFile>> files_;  // by copy
  // By former copy: those that could not be opened again. The next range that
  // is asked of one tries once more.
  std::map<uint64_t, std::weak_ptr<RemoteFile>> lost_;
  uint64_t last_call_ = 0;
  nlohmann::json use_ = nlohmann::json::object();
  // What use_ is made of: what former processes had counted, and what this one
  // had when the link to it began: it may serve others.
  nlohmann::json former_use_ = nlohmann::json::object();
  nlohmann::json first_use_;
  std::function<void(const FetchSpan&)> observer_;
  // No process has a copy of a former one's number: what is asked late of that
  // one concerns none of its own.
  uint64_t processes_ = 0;
  // Only the thread has these.
  std::optional<Link> link_;
  std::deque<std::string> out_;
  uint64_t ends_ = 0;  // of processes, since one has answered
  std::thread thread_;
};

}  // namespace penstock
#endif  // BROKER_FETCH_FETCHER_H_
