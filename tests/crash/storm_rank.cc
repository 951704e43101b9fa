#include "tests/crash/storm_rank.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "client/penstock.hpp"
#include "tests/crash/rank_log.h"

namespace penstock {
namespace {

// A call that waits for this long hangs.
constexpr double kHang_s = 60;

bool RowIs(int64_t id, std::span<const std::byte> row) {
  std::byte wanted[JobKind::kRowBytes];
  JobKind::FillRow(id, wanted);
  return row.size() <= sizeof(wanted) &&
         std::memcmp(row.data(), wanted, row.size()) == 0;
}

class StormRank {
 public:
  explicit StormRank(const StormRankOptions& options)
      : options_(options),
        log_(options.folder + "/" + RankLogName(options.rank, options.restart)),
        random_(options.seed) {}

  int Run() {
    try {
      reader_ = Attach();
      if (reader_ == nullptr) return 0;
      log_.Attached();
      const bool ended = TakeAll();
      if (gone_) return 0;
      ReleaseAll();
      if (ended) log_.Ended(reader_->stats().reconnects);
      return 0;
    } catch (const Error& error) {
      log_.Error(std::to_string(error.code()) + " " + error.what());
      return 1;
    }
  }

 private:
  struct Held {
    Batch batch;
    uint64_t number;
  };

  // Retries, as the launcher of a trainer does: the broker may not have seen
  // yet that the former process is dead, or may be down itself.
  std::unique_ptr<Reader> Attach() {
    Options wanted;
    wanted.spec = options_.kind.Spec();
    wanted.job = options_.job;
    wanted.socket = options_.socket;
    const uint32_t replicas = options_.kind.replicas;
    wanted.rank = static_cast<int>(options_.rank / replicas);
    wanted.replica = static_cast<int>(options_.rank % replicas);
    wanted.replicas = static_cast<int>(replicas);
    wanted.world_size = static_cast<int>(options_.kind.ranks / replicas);
    wanted.local_world_size = options_.local_ranks > 0
                                  ? static_cast<int>(options_.local_ranks)
                                  : wanted.world_size;
    wanted.state = options_.state;
    wanted.timeout_s = kHang_s;
    wanted.delivery = options_.kind.delivery;
    wanted.lag = options_.kind.lag;
    wanted.window = options_.kind.window;
    if (options_.kind.delivery == "broadcast") {
      wanted.consumers = wanted.world_size;
    }
    wanted.on_rank_death = options_.kind.on_rank_death;
    const auto give_up = std::chrono::steady_clock::now() +
                         std::chrono::duration<double>(kHang_s);
    using namespace std::chrono_literals;
    bool warned = false;
    for (;;) {
      try {
        return std::make_unique<Reader>(wanted);
      } catch (const Error& error) {
        if (options_.kind.shrinks() &&
            error.code() == PENSTOCK_FAILED_PRECONDITION) {
          return nullptr;  // the others continue without it
        }
        if ((error.code() != PENSTOCK_ALREADY_EXISTS &&
             error.code() != PENSTOCK_UNAVAILABLE) ||
            std::chrono::steady_clock::now() > give_up) {
          throw;
        }
        if (!warned && std::chrono::steady_clock::now() > give_up - 50s) {
          warned = true;
          std::fprintf(stderr, "rank %u of job '%s' is still refused: %s\n",
                       options_.rank, options_.job.c_str(), error.what());
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  }

  // False: it leaves early, or its rank is gone with another of its replicas.
  bool TakeAll() {
    for (;;) {
      while (held_.size() >= options_.kind.hold ||
             (!held_.empty() && random_() % 2 == 0)) {
        Release(random_() % held_.size());
      }
      Batch batch;
      try {
        const Reader::Result result = reader_->next(&batch);
        if (result == Reader::Result::kEndOfData) return true;
        if (result == Reader::Result::kEndOfEpoch) {
          in_its_epoch_ = false;
          continue;
        }
      } catch (const Error& error) {
        gone_ = options_.kind.evicts() && options_.kind.mortal(options_.rank) &&
                (error.code() == PENSTOCK_ABORTED ||
                 error.code() == PENSTOCK_FAILED_PRECONDITION);
        if (gone_) return false;
        // The broker died twice while this rank held batches.
        if (error.code() != PENSTOCK_RESOURCE_EXHAUSTED || held_.empty()) throw;
        ReleaseAll();
        continue;
      }
      CheckEpoch(batch);
      Take(std::move(batch));
      if (taken_ == options_.leave_after) return false;
      if (taken_ == options_.wait_after) WaitForGo();
      if (options_.pace_us > 0) {
        std::this_thread::sleep_for(
            std::chrono::microseconds(random_() % options_.pace_us));
      }
    }
  }

  void WaitForGo() const {
    while (!std::filesystem::exists(options_.folder + "/go")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  void Take(Batch batch) {
    LoggedBatch logged;
    logged.number = taken_++;
    logged.epoch = batch.epoch();
    logged.step = batch.step();
    logged.redelivered = batch.redelivered();
    logged.skipped = batch.skipped();
    logged.ids.assign(batch.ids().begin(), batch.ids().end());
    log_.Took(logged);
    held_.push_back({std::move(batch), logged.number});
    Check(held_.back(), "when it came");
  }

  // The loop over an epoch begins with a batch of that epoch. Later it may get
  // one of an epoch before, which nobody had: a rank died before it took it.
  // With shrink such batches come first, even after the last epoch, if a broker
  // that was started again learned of the death only then.
  void CheckEpoch(const Batch& batch) {
    in_its_epoch_ |= batch.epoch() == reader_->epoch();
    if (in_its_epoch_ || batch.redelivered() || options_.kind.shrinks()) return;
    log_.Torn("step " + std::to_string(batch.step()) + " of epoch " +
              std::to_string(batch.epoch()) + " came in the loop of epoch " +
              std::to_string(reader_->epoch()));
  }

  void Check(const Held& held, const char* when) {
    const auto ids = held.batch.ids();
    const auto* row = static_cast<const std::byte*>(held.batch.data(0));
    // As wide as all lists of its bucket are long.
    const uint64_t bytes = held.batch.feature(0).row_bytes;
    for (size_t i = 0; i < ids.size(); ++i, row += bytes) {
      const bool fits =
          bytes == (options_.kind.lists.empty() ? JobKind::kRowBytes
                                                : JobKind::LengthOf(ids[i]));
      if (fits && RowIs(ids[i], {row, bytes})) continue;
      log_.Torn("batch " + std::to_string(held.number) + ", row " +
                std::to_string(i) + " of sample " + std::to_string(ids[i]) +
                " has other bytes " + when);
    }
  }

  void Release(size_t which) {
    Held& held = held_[which];
    Check(held, "before its release");
    log_.Releasing(held.number);
    held.batch.release();
    log_.Released(held.number);
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(which));
  }

  void ReleaseAll() {
    while (!held_.empty()) Release(held_.size() - 1);
  }

  const StormRankOptions options_;
  RankLogWriter log_;
  std::mt19937_64 random_;
  std::unique_ptr<Reader> reader_;
  std::vector<Held> held_;
  uint64_t taken_ = 0;
  bool gone_ = false;
  bool in_its_epoch_ = false;  // it got a batch of the epoch that it is in
};

}  // namespace

void StormRankOptions::AddTo(Command command) {
  command.AddOption("--kind", &kind.name, "");
  command.AddOption("--delivery", &kind.delivery, "");
  command.AddOption("--lag", &kind.lag, "");
  command.AddOption("--on-rank-death", &kind.on_rank_death, "");
  command.AddOption("--window", &kind.window, "");
  command.AddOption("--ranks", &kind.ranks, "");
  command.AddOption("--replicas", &kind.replicas, "");
  command.AddOption("--records", &kind.records, "");
  command.AddOption("--batch", &kind.batch, "");
  command.AddOption("--epochs", &kind.epochs, "");
  command.AddOption("--hold", &kind.hold, "");
  command.AddOption("--cost-us", &kind.cost_us, "");
  command.AddFlag("--stream", &kind.stream, "");
  command.AddOption("--lists", &kind.lists, "");
  command.AddOption("--job", &job, "");
  command.AddOption("--socket", &socket, "");
  command.AddOption("--folder", &folder, "");
  command.AddOption("--rank", &rank, "");
  command.AddOption("--restart", &restart, "");
  command.AddOption("--local-ranks", &local_ranks, "");
  command.AddOption("--state", &state, "");
  command.AddOption("--seed", &seed, "");
  command.AddOption("--pace-us", &pace_us, "");
  command.AddOption("--leave-after", &leave_after, "");
  command.AddOption("--wait-after", &wait_after, "");
}

std::vector<std::string> StormRankOptions::Arguments() const {
  std::vector<std::string> arguments;
  const auto add = [&](const char* name, const std::string& value) {
    if (value.empty()) return;
    arguments.push_back(name);
    arguments.push_back(value);
  };
  add("--kind", kind.name);
  add("--delivery", kind.delivery);
  add("--lag", kind.lag);
  add("--on-rank-death", kind.on_rank_death);
  add("--window", std::to_string(kind.window));
  add("--ranks", std::to_string(kind.ranks));
  add("--replicas", std::to_string(kind.replicas));
  add("--records", std::to_string(kind.records));
  add("--batch", std::to_string(kind.batch));
  add("--epochs", std::to_string(kind.epochs));
  add("--hold", std::to_string(kind.hold));
  add("--cost-us", std::to_string(kind.cost_us));
  if (kind.stream) arguments.push_back("--stream");
  add("--lists", kind.lists);
  add("--job", job);
  add("--socket", socket);
  add("--folder", folder);
  add("--rank", std::to_string(rank));
  add("--restart", std::to_string(restart));
  add("--local-ranks", std::to_string(local_ranks));
  add("--state", state);
  add("--seed", std::to_string(seed));
  add("--pace-us", std::to_string(pace_us));
  add("--leave-after", std::to_string(leave_after));
  add("--wait-after", std::to_string(wait_after));
  return arguments;
}

int RunStormRank(const StormRankOptions& options) {
  return StormRank(options).Run();
}

}  // namespace penstock
