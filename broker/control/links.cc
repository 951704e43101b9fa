#include "broker/control/links.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "broker/base/log.h"
#include "broker/spec/dataset_spec.h"
#include "common/message.h"

namespace penstock {
namespace {

// What a link says of a maker, in the form in which `status` has it.
nlohmann::json Shown(const nlohmann::json& maker) {
  constexpr size_t kTextBytesMax = 300;
  nlohmann::json shown;
  const auto given = [&](const char* key) {
    return maker.is_object() && maker.contains(key) ? maker[key]
                                                    : nlohmann::json();
  };
  for (const char* const key : {"maker", "state", "error"}) {
    const nlohmann::json text = given(key);
    shown[key] = text.is_string()
                     ? text.get<std::string>().substr(0, kTextBytesMax)
                     : "";
  }
  for (const char* const key : {"connections", "rows", "bytes"}) {
    const nlohmann::json number = given(key);
    shown[key] = number.is_number_unsigned() ? number.get<uint64_t>() : 0;
  }
  const nlohmann::json rate = given("bytes_per_s");
  shown["bytes_per_s"] =
      rate.is_number() && rate.get<double>() >= 0 && rate.get<double>() < 1e18
          ? static_cast<uint64_t>(rate.get<double>())
          : 0;
  return shown;
}

}  // namespace

Links::Answer Links::Link(uint64_t id, uid_t uid,
                          const nlohmann::json& request) {
  if (!Has(id)) Log<"link-joined">(LogUser{uid});
  Linked& link = links_[id];
  link.uid = uid;
  const uint32_t asks = request.at("asks");
  const auto lent = lent_.find(request.value("lent", uint64_t{0}));
  if (!request.contains("lent")) {
    link.asks = asks;
  } else if (lent != lent_.end() && lent->second.link == id) {
    if (const auto job = lent->second.job.lock()) job->remote()->SetAsks(asks);
    AskOf(lent->first, lent->second);
  }
  nlohmann::json answer = OkReply();
  answer["version"] = PENSTOCK_VERSION;
  return answer;
}

void Links::Leave(uint64_t id) {
  const auto link = links_.extract(id);
  if (link.empty()) return;
  Log<"link-left">(LogUser{link.mapped().uid});
  std::erase_if(lent_, [id](const auto& item) {
    if (item.second.link != id) return false;
    if (const auto job = item.second.job.lock()) job->remote()->End();
    return true;
  });
}

bool Links::MayServe(uid_t link, uid_t owner) const {
  return link == owner || link == 0 || link == geteuid() ||
         std::find(of_all_.begin(), of_all_.end(), link) != of_all_.end();
}

void Links::Lend(const std::shared_ptr<Job>& job) {
  for (auto& [id, link] : links_) {
    if (!MayServe(link.uid, job->key().uid)) continue;
    const StepsOfMakers* const steps = job->remote()->steps();
    if (steps == nullptr) {
      if (job->remote()->MayChooseSteps()) jobs_->ChooseStepsOfMakers(job);
      return;
    }
    const StatusOr<int> fd =
        job->remote()->Begin(link.asks, [&job](uint64_t bytes) {
          return job->memory().GrowUnpopulated(bytes);
        });
    if (!fd.ok()) {
      Log<"job-not-lent">(job->key(), fd.status().message());
      refused_.insert(job);
      return;
    }
    const uint64_t number = ++last_lent_;
    const RemoteRows::Form& form = job->remote()->form();
    lent_[number] = {id, job};
    tell_(id,
          {{"event", "lend"},
           {"lent", number},
           {"job", job->key().name},
           {"spec",
            SpecForMakers(job->options().spec, steps->count, form.rows_of_ask)
                .dump()},
           {"fingerprint", job->dataset().source->fingerprint()},
           {"records", job->dataset().source->record_count()},
           {"element_spec", ElementSpecToJson(form.features)},
           {"offsets", form.offsets},
           {"row_bytes", form.row_bytes},
           {"rows", form.rows_of_ask},
           {"places", form.places}},
          *fd);
    AskOf(number, lent_[number]);
    return;
  }
}

void Links::AskOf(uint64_t number, const Lent& lent) {
  const std::shared_ptr<Job> job = lent.job.lock();
  if (job == nullptr) return;
  while (const auto ask = job->NextAsk()) {
    std::vector<uint64_t> rows;
    for (const RemoteRows::Row& row : ask->rows) {
      rows.insert(rows.end(), {row.record, row.pass, row.place});
    }
    tell_(lent.link,
          {{"event", "make"},
           {"lent", number},
           {"ask", ask->number},
           {"rows", std::move(rows)}},
          -1);
  }
}

void Links::Ask(const std::shared_ptr<Job>& job) {
  for (const auto& [number, lent] : lent_) {
    if (lent.job.lock() == job) return AskOf(number, lent);
  }
}

Links::Answer Links::Made(uint64_t id, const nlohmann::json& request) {
  const auto lent = lent_.find(request.at("lent").get<uint64_t>());
  // It may have been taken back meanwhile.
  if (lent == lent_.end() || lent->second.link != id) {
    if (Has(id)) return nlohmann::json();
    return FailedPreconditionError("this connection is not a link's");
  }
  const std::shared_ptr<Job> job = lent->second.job.lock();
  if (job == nullptr) return nlohmann::json();
  PENSTOCK_RETURN_IF_ERROR(job->remote()->Made(
      request.at("ask").get<uint64_t>(), request.at("maker").get<std::string>(),
      request.at("rows").get<std::vector<uint64_t>>()));
  AskOf(lent->first, lent->second);
  return nlohmann::json();
}

Links::Answer Links::Makers(uint64_t id, const nlohmann::json& request) {
  const auto link = links_.find(id);
  if (link == links_.end()) {
    return FailedPreconditionError("this connection is not a link's");
  }
  const nlohmann::json& makers = request.at("makers");
  if (makers.size() > kMakersShown) {
    return InvalidArgumentError("{} makers, at most {} are shown",
                                makers.size(), kMakersShown);
  }
  link->second.makers = nlohmann::json::array();
  for (const nlohmann::json& maker : makers) {
    link->second.makers.push_back(Shown(maker));
  }
  return nlohmann::json();
}

void Links::Tick() {
  if (links_.empty()) return;
  std::erase_if(refused_, [](const auto& job) { return job.expired(); });
  for (auto it = lent_.begin(); it != lent_.end();) {
    const auto& [number, lent] = *it;
    const std::shared_ptr<Job> job = lent.job.lock();
    if (job != nullptr && !job->failed() &&
        !job->Locked(&Delivery::AllDelivered)) {
      for (const auto& [maker, record] : job->remote()->TakeDistrusted()) {
        Log<"maker-distrusted">(job->key(), maker, record);
        tell_(lent.link, {{"event", "distrust"}, {"maker", maker}}, -1);
      }
      AskOf(number, lent);
      ++it;
      continue;
    }
    if (job != nullptr) job->remote()->End();
    tell_(lent.link, {{"event", "unlend"}, {"lent", number}}, -1);
    it = lent_.erase(it);
  }
  for (const std::shared_ptr<Job>& job : jobs_->Running()) {
    if (job->remote() == nullptr) continue;
    job->TickRemote();
    if (!job->remote()->begun() && !refused_.contains(job) && !job->failed() &&
        !job->Locked(&Delivery::AllDelivered)) {
      Lend(job);
    }
  }
}

nlohmann::json Links::MakersJson(
    const std::function<bool(uint32_t)>& accepts) const {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [id, link] : links_) {
    if (!accepts(link.uid)) continue;
    for (const nlohmann::json& maker : link.makers) all.push_back(maker);
  }
  return all;
}

}  // namespace penstock
