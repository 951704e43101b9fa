// Links: the processes (`penstock link use`) through which other hosts make
// rows for jobs of this broker. A link is lent jobs: the memory of their remote
// rows (job/remote_rows.h), and asks for rows, which it answers.
//
// A link serves the jobs of its user; one of root, of the broker's own user or
// of `links` (configuration) serves all. Jobs are lent to the link that came
// first.
//
// Runs on the control thread.
#ifndef BROKER_CONTROL_LINKS_H_
#define BROKER_CONTROL_LINKS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "broker/registry/job_table.h"
#include "common/status.h"

namespace penstock {

class Links {
 public:
  static constexpr size_t kMakersShown = 256;

  // Tells the link at a connection of something.
  using Tell =
      std::function<void(uint64_t id, const nlohmann::json& json, int fd)>;
  // of_all: users whose links serve the jobs of all users.
  Links(JobTable* jobs, std::vector<uid_t> of_all, Tell tell)
      : jobs_(jobs), of_all_(std::move(of_all)), tell_(std::move(tell)) {}

  // Requests of a connection.
  using Answer = StatusOr<nlohmann::json>;  // null: there is none
  Answer Link(uint64_t id, uid_t uid, const nlohmann::json& request);
  Answer Made(uint64_t id, const nlohmann::json& request);
  Answer Makers(uint64_t id, const nlohmann::json& request);

  bool Has(uint64_t id) const { return links_.contains(id); }
  // The connection was a link's and has closed.
  void Leave(uint64_t id);
  // Another ask of the job may be made.
  void Ask(const std::shared_ptr<Job>& job);
  // Lends jobs that have begun, takes back those that are over.
  void Tick();
  // One that is over has not been taken back: its makers keep it.
  bool WantsTick() const { return !lent_.empty(); }
  // What the links say of the makers that they reach.
  nlohmann::json MakersJson(const std::function<bool(uint32_t)>& accepts) const;

 private:
  struct Linked {
    uid_t uid = 0;
    uint32_t asks = 1;  // of a job at once
    nlohmann::json makers = nlohmann::json::array();
  };
  struct Lent {
    uint64_t link = 0;
    std::weak_ptr<Job> job;
  };
  void Lend(const std::shared_ptr<Job>& job);
  void AskOf(uint64_t number, const Lent& lent);

  bool MayServe(uid_t link, uid_t owner) const;

  JobTable* const jobs_;
  const std::vector<uid_t> of_all_;
  const Tell tell_;
  std::map<uint64_t, Linked> links_;  // by connection
  std::map<uint64_t, Lent> lent_;     // by number, never used again
  uint64_t last_lent_ = 0;
  // Whose memory for rows of makers could not be had.
  std::set<std::weak_ptr<Job>, std::owner_less<>> refused_;
};

}  // namespace penstock
#endif  // BROKER_CONTROL_LINKS_H_
