// Promise: a dynamic job whose broker and ranks die loses no step and doubles
// none unmarked, whichever record was the last and however many the file holds.
// Method: one run of the real Delivery and RecoveryJournal; before and after
// each record, copies of the journal's file, its tail and the ranks' pages are
// kept, and another RecoveryJournal restores from each.
#include "broker/recovery/recovery_journal.h"

#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "broker/recovery/restore.h"
#include "common/format.h"
#include "common/ring.h"
#include "gtest/gtest.h"

namespace penstock::recovery_journal_test {

constexpr uint32_t kRanks = 2;
constexpr uint64_t kSteps = 7;

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Passes records to the journal, and calls the test before and after each.
class SnapshottingRecord : public DeliveryRecord {
 public:
  SnapshottingRecord(RecoveryJournal* recovery_journal, uint64_t job,
                     std::function<void()> snapshot)
      : recovery_journal_(recovery_journal),
        job_(job),
        snapshot_(std::move(snapshot)) {}
  void Completed(uint64_t position, uint64_t next) override {
    snapshot_();
    recovery_journal_->Completed(job_, position, next);
    snapshot_();
  }
  void HandedOver(uint32_t rank, uint64_t position) override {
    recovery_journal_->HandedOver(job_, rank, position);
  }
  void Opened(uint64_t position) override {
    snapshot_();
    recovery_journal_->Opened(job_, position);
    snapshot_();
  }
  void PhaseBegun(const FormerPhase& phase) override {
    recovery_journal_->PhaseBegun(job_, phase);
  }

 private:
  RecoveryJournal* const recovery_journal_;
  const uint64_t job_;
  const std::function<void()> snapshot_;
};

class RecoveryJournalTest : public testing::Test {
 protected:
  struct Moment {
    std::string journal;
    std::string tail;
    std::vector<CursorPage*> pages;
    std::set<uint64_t> returned;
    std::set<uint64_t> released;
  };

  RecoveryJournalTest() {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_ + "/1");
    options_.spec =
        *ParseDatasetSpec(Format("dataset: numbers\nsource: {{range: {}}}\n"
                                 "batch: {{size: 1}}\nepochs: 1\n",
                                 kSteps),
                          "test", "/");
    options_.delivery.mode = DeliveryMode::kDynamic;
    options_.local_world_size = options_.consumers_max = kRanks;
  }
  ~RecoveryJournalTest() override { std::filesystem::remove_all(directory_); }

  // Copies what a death now would leave.
  void TakeSnapshot() {
    Moment& moment = moments_.emplace_back();
    // Every other time with all records in the file, else as is; a death during
    // a write is simulated below.
    if (moments_.size() % 2 == 0) recovery_journal_->Flush();
    const auto tail = [this] { return Bytes(directory_ + "/1/journal.tail"); };
    do {
      moment.tail = tail();
      moment.journal = Bytes(directory_ + "/1/journal");
    } while (moment.tail != tail());
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      kept_.push_back(std::make_unique<CursorPage>());
      std::memcpy(static_cast<void*>(kept_.back().get()), &pages_[rank],
                  sizeof(CursorPage));
      moment.pages.push_back(kept_.back().get());
    }
    moment.returned = returned_;
    moment.released = released_;
  }

  void RunTheJob() {
    auto opened = RecoveryJournal::Open(directory_ + "/1", {});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    recovery_journal_ = *std::move(opened);
    const uint64_t job = *recovery_journal_->JobOpened(
        {0, "train", "numbers", {}}, options_, {}, true, {});
    recovery_journal_->Begun(job, 0, 4096);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(recovery_journal_->RankAttached(job, rank, 0, -1, -1).ok());
    }
    TakeSnapshot();
    SnapshottingRecord record(recovery_journal_.get(), job,
                              [this] { TakeSnapshot(); });
    Delivery::Shape shape;
    shape.options = options_.delivery;
    shape.consumers_max = kRanks;
    shape.slots_per_lane = 4;
    shape.leases = 2;
    shape.rows_max = 1;
    std::vector<Ring> rings(2 * kRanks);
    std::vector<Ring*> ring_pointers;
    for (Ring& ring : rings) ring_pointers.push_back(&ring);
    Delivery delivery(shape, plan_, ring_pointers, &record);
    delivery.SetUsableSlots(4);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      Delivery::Joining joining;
      joining.rank = rank;
      joining.cursor = {std::shared_ptr<void>(), &pages_[rank]};
      ASSERT_TRUE(delivery.Attach(joining).ok());
    }
    std::vector<Cell> held;
    for (uint64_t turn = 0; released_.size() < kSteps; ++turn) {
      ASSERT_LT(turn, 100u);
      delivery.HeardAll();
      delivery.Advance();
      while (OpenBatch* share = delivery.Open()) {
        share->claimed = share->finished = share->rows.rows;
        delivery.Filled(share);
      }
      delivery.Advance();
      // They release out of order: the older batch of rank 1 is held longest.
      const auto rank = static_cast<uint32_t>(turn % 3 == 0);
      Cell cell;
      if (TryTake(rings[rank], pages_[rank], &cell) == TakeResult::kTaken) {
        returned_.insert(cell.position);
        TakeSnapshot();
        if (rank == 1 && held.empty()) {
          held.push_back(cell);
          continue;
        }
        (void)Release(rings[rank], pages_[rank], cell.lease, cell.generation);
        released_.insert(cell.position);
        TakeSnapshot();
      } else if (!held.empty() && released_.size() + 1 == kSteps) {
        (void)Release(rings[1], pages_[1], held[0].lease, held[0].generation);
        released_.insert(held[0].position);
        TakeSnapshot();
      }
    }
    // A compacted journal says the same: only forgotten records had made it
    // grow.
    for (int i = 0; i < 20; ++i) {
      const std::string spec(100'000, static_cast<char>('a' + i));
      ASSERT_TRUE(recovery_journal_->DatasetRegistered({0, "d", spec}).ok());
    }
    recovery_journal_->Flush();
    EXPECT_LT(Bytes(directory_ + "/1/journal").size(), 1'500'000u);
    TakeSnapshot();
    recovery_journal_.reset();
  }

  // All are dead; the next instance has the journal and the pages.
  void CheckNextInstance(const Moment& moment, const std::string& journal) {
    const std::string directory = directory_ + "/2";
    std::filesystem::remove_all(directory);
    std::filesystem::create_directories(directory);
    std::ofstream(directory + "/journal", std::ios::binary) << journal;
    std::ofstream(directory + "/journal.tail", std::ios::binary) << moment.tail;
    auto recovery_journal = RecoveryJournal::Open(directory, {});
    ASSERT_TRUE(recovery_journal.ok()) << recovery_journal.status().message();
    const std::vector<FormerJob> jobs = (*recovery_journal)->TakeJobs();
    ASSERT_EQ(jobs.size(), 1u);
    const FormerJob& job = jobs[0];
    EXPECT_EQ(job.ranks.size(), kRanks);
    std::vector<FormerProcess> processes;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      processes.push_back({rank, 0, moment.pages[rank], false});
    }
    std::set<uint64_t> completed;
    for (const auto& [position, next] : job.completed) {
      completed.insert(position);
    }
    const Delivery::FormerSteps gathered = GatherSteps(
        {job.options.delivery, job.opened, job.low, completed, job.handed_over},
        plan_, processes, {});
    std::map<uint64_t, bool> comes;  // step -> delivered marked
    for (uint64_t at = gathered.position; at < kSteps; ++at) comes[at] = false;
    for (const RowRange& redo : gathered.redo) {
      EXPECT_TRUE(comes.emplace(redo.position, redo.redelivered).second)
          << "step " << redo.position << " comes twice";
    }
    for (uint64_t step = 0; step < kSteps; ++step) {
      const bool released = moment.released.contains(step);
      EXPECT_EQ(comes.contains(step), !released) << "step " << step;
      if (released || !comes.contains(step)) continue;
      EXPECT_EQ(comes[step], moment.returned.contains(step)) << "step " << step;
    }
  }

  static Plan MakePlan(const PlanSpec& spec) {
    return *Plan::Make(spec, kSteps, 1);
  }

  // In memory, so that the tail is next to the journal.
  const std::string directory_ =
      Format("/dev/shm/recovery_journal_{}", getpid());
  std::unique_ptr<RecoveryJournal> recovery_journal_;
  JobOptions options_;
  Plan plan_ = [] {
    PlanSpec spec;
    spec.epochs = 1;
    return MakePlan(spec);
  }();
  std::array<CursorPage, kRanks> pages_{};
  std::vector<std::unique_ptr<CursorPage>> kept_;
  std::vector<Moment> moments_;
  std::set<uint64_t> returned_;
  std::set<uint64_t> released_;
};

TEST_F(RecoveryJournalTest,
       DynamicJobLosesAndDoublesNothingWhateverWasWrittenLast) {
  RunTheJob();
  ASSERT_GE(moments_.size(), 25u);
  for (size_t i = 0; i < moments_.size(); ++i) {
    SCOPED_TRACE(Format("moment {} of {}", i, moments_.size()));
    CheckNextInstance(moments_[i], moments_[i].journal);
    // During a write: without its first head (journal.h, I6).
    CheckNextInstance(moments_[i], moments_[i].journal +
                                       std::string(kJournalFrameBytes, '\0') +
                                       "{\"id\":1,\"pos");
  }
}

// Journals and ranks of other versions have this text and its digest.
TEST_F(RecoveryJournalTest, AJobIsWrittenAsItWas) {
  JobOptions options;
  options.spec = *ParseDatasetSpec(
      "{dataset: d, source: {idx: {images: /i, labels: /l}}, shuffle: {seed: "
      "3}, map: [{normalize: {mean: [0.1, 0.25], std: 2, dtype: float16}}], "
      "batch: {per_rank: 4}, epochs: forever}",
      "", "/");
  EXPECT_EQ(JobOptionsToJson(options)["spec"].get<std::string>(),
            R"({"dataset":"d","source":{"idx":{"images":"/i","labels":"/l",)"
            R"("io":"auto"}},"shuffle":{"seed":3,"each_epoch":true},"seed":3,)"
            R"("map":[{"normalize":{"feature":"image","mean":[0.1,0.25],)"
            R"("std":[2.0],"dtype":"float16","layout":"hwc"}}],)"
            R"("batch":{"per_rank":4,"last":"partial"},"epochs":"forever",)"
            R"("hold":3,"on_error":"fail"})");
  EXPECT_EQ(AgreementDigest(options), 2689384601u);
}

}  // namespace penstock::recovery_journal_test
