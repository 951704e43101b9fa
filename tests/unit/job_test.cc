// Promise: while a batch is assembled, which may move a whole slot, nobody
// waits for its job, and its slot is given to nobody else; an invariant that
// does not hold ends its job by name, and no other. Method: a batch with a row
// left out, in a slot whose page cannot be read: the worker that assembles it
// waits in the handler of the fault while the test asks the job; a batch that
// is filled twice.
#include "broker/job/job.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::job_test {

std::atomic<bool> faulted{false};
std::atomic<bool> readable{false};

void AwaitReadable(int) {
  faulted.store(true);
  while (!readable.load()) usleep(100);
}

// A job and its one rank.
struct OneJob {
  static constexpr uint64_t kRows = 4;

  OneJob() {
    JobOptions options;
    options.spec = *ParseDatasetSpec(
        "dataset: numbers\nsource: {range: 16}\nbatch: {size: 4}\n"
        "on_error: skip\nprefetch: 1\nhold: 1\n",
        "test", "/");
    OpenProgress progress;
    const auto dataset = *OpenDataset(options.spec, {}, &progress);
    auto layout = *Job::PlanLayout(options, *dataset);
    auto segment = *Segment::Create(layout.segment, 1, 1);
    const uint32_t slots = layout.slots_per_lane;
    job = std::make_unique<Job>(JobKey{}, options, dataset, std::move(layout),
                                std::move(segment), MemoryReservation(), 1,
                                nullptr);
    job->SetUsableSlots(slots);
    Delivery::Joining joining;
    joining.cursor = page;
    const auto joined =
        job->Attach(std::move(joining), [](const auto&) { return OkStatus(); });
    EXPECT_TRUE(joined.ok()) << joined.status().message();
    seat = joined->seat;
    job->Advance({seat});
  }
  Job* operator->() { return job.get(); }

  void Protect(uint32_t slot, int protection) {
    std::byte* const begin =
        job->segment().base() + job->segment().slot_offset(slot);
    const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    ASSERT_EQ(mprotect(begin, bytes, protection), 0);
  }
  // Makes all rows of a batch but the first, all but the last chunk finished.
  Claim MakeOne() {
    Claim claim = job->ClaimRows({});
    for (uint64_t made = 0;;) {
      EXPECT_NE(claim.batch, nullptr);
      for (uint64_t row = claim.begin; row < claim.end; ++row, ++made) {
        job->segment().ids(claim.slot)[row] = static_cast<int64_t>(row);
        if (row == 0)
          job->LeaveOut(claim.batch, row, row, DataLossError("bad"));
      }
      if (made == kRows) return claim;
      job->FinishRows(claim);
      claim = job->ClaimRows({});
    }
  }
  // Finishes its last chunk; `meanwhile` runs while it is assembled.
  template <typename Meanwhile>
  void Assemble(const Claim& claim, const Meanwhile& meanwhile) {
    struct sigaction action = {};
    struct sigaction before = {};
    action.sa_handler = AwaitReadable;
    sigaction(SIGSEGV, &action, &before);
    faulted = readable = false;
    Protect(claim.slot, PROT_NONE);
    std::thread worker([&] { job->FinishRows(claim); });
    while (!faulted.load()) std::this_thread::yield();
    auto done = std::async(std::launch::async, meanwhile);
    EXPECT_EQ(done.wait_for(std::chrono::seconds(20)),
              std::future_status::ready)
        << "it waits for the batch";
    Protect(claim.slot, PROT_READ | PROT_WRITE);
    readable = true;
    worker.join();
    sigaction(SIGSEGV, &before, nullptr);
  }

  std::shared_ptr<CursorPage> page = std::make_shared<CursorPage>();
  std::unique_ptr<Job> job;
  uint32_t seat = 0;
};

TEST(JobTest, NobodyWaitsWhileABatchIsAssembled) {
  OneJob one;
  const Claim claim = one.MakeOne();
  one.Assemble(claim, [&] {
    EXPECT_FALSE(one->failed());
    EXPECT_FALSE(one->Abandoned());
    EXPECT_EQ(one->Locked(&Delivery::CountSlots).ready, 0u);
    one->Advance({one.seat});
  });
  Cell cell{};
  ASSERT_EQ(TryTake(one->segment().ring(one.seat), *one.page, &cell),
            TakeResult::kTaken);
  EXPECT_EQ(cell.valid_rows, OneJob::kRows - 1);
  EXPECT_EQ(cell.left_out, 1u);
  EXPECT_EQ(one->segment().ids(claim.slot)[0], 1);
}

TEST(JobTest, ABatchThatIsGivenUpWhileItIsAssembledKeepsItsSlot) {
  OneJob one;
  const Claim claim = one.MakeOne();
  one.Assemble(claim, [&] {
    one->Died(one.seat);
    one->Recall("it was ended");
    EXPECT_FALSE(one->Abandoned()) << "a worker writes";
    EXPECT_EQ(one->Locked(&Delivery::CountSlots).filling, 1u);
  });
  EXPECT_TRUE(one->Abandoned());
  EXPECT_EQ(one->Locked(&Delivery::CountSlots).filling, 0u);
}

TEST(JobTest, AViolatedInvariantEndsTheJobByName) {
  OneJob one;
  const OneJob other;
  const Claim claim = one.MakeOne();
  one->FinishRows(claim);
  ASSERT_FALSE(one->failed());
  one->Change(&Delivery::Filled, claim.batch);
  EXPECT_EQ(one->failure().code(), StatusCode::kInternal);
  EXPECT_THAT(one->failure().message(),
              testing::HasSubstr("D1: a batch is filled once"));
  EXPECT_FALSE(other.job->failed());
}

TEST(JobTest, FailuresAreTakenOnceAndThoseBeyondTheLimitAreCounted) {
  OneJob one;
  constexpr uint64_t kForgotten = 5;
  for (uint64_t i = 0; i < Job::kFailuresKept + kForgotten; ++i) {
    one->CountSubstitute(i, DataLossError("bad"));
  }
  uint64_t next = kForgotten;
  for (bool more = true; more;) {
    const nlohmann::json taken = one->TakeFailuresJson();
    EXPECT_EQ(taken["forgotten"], next == kForgotten ? kForgotten : 0);
    EXPECT_LE(taken["failures"].size(), Job::kFailuresAtOnce);
    for (const nlohmann::json& each : taken["failures"]) {
      EXPECT_EQ(each, nlohmann::json({next, "bad"}));
      ++next;
    }
    more = taken["more"];
  }
  EXPECT_EQ(next, Job::kFailuresKept + kForgotten);
  EXPECT_EQ(one->TakeFailuresJson()["failures"].size(), 0u);
}

}  // namespace penstock::job_test
