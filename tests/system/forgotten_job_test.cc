// Promise: when the broker dies and the next instance knows nothing (no state
// directory), a job goes on only if its ranks know all there is to know; else
// it ends with an error on every rank, never with missing or repeated rows.
// Method: a real broker killed under ranks of every mode.
#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::forgotten_job_test {

using testing::HasSubstr;

class ForgottenJobTest : public DeliveryTest {
 protected:
  static constexpr int kRows = 1200;

  void Attach(int count, const std::string& delivery,
              const std::string& on_rank_death = "") {
    for (int rank = 0; rank < count; ++rank) {
      Options options = OptionsFor(
          RangeSpec(std::to_string(kRows), "batch: {size: 12}\n"), rank, count);
      options.delivery = delivery;
      options.on_rank_death = on_rank_death;
      options.timeout_s = 90;
      ranks_.emplace_back(options);
    }
    for (RankProcess& rank : ranks_) {
      ASSERT_FALSE(rank.Attached().contains("error"));
    }
  }
  RankProcess::Event TakeOne(RankProcess& rank) {
    const RankProcess::Event event = rank.Next();
    if (event.what == RankProcess::What::kBatch) {
      rank.Release(1);
      rows_.insert(rows_.end(), event.taken.rows.begin(),
                   event.taken.rows.end());
    }
    return event;
  }
  void TakeFromAll(int batches) {
    for (int i = 0; i < batches; ++i) {
      for (RankProcess& rank : ranks_) {
        const RankProcess::Event event = TakeOne(rank);
        ASSERT_EQ(event.what, RankProcess::What::kBatch) << event.error;
      }
    }
  }
  void KillBrokerAndStartAnother() {
    broker_.Stop(SIGKILL);
    broker_.Start();
  }
  std::vector<Course> RunAllToTheEnd() {
    for (RankProcess& rank : ranks_) rank.Run();
    std::vector<Course> courses;
    for (RankProcess& rank : ranks_) {
      courses.push_back(rank.Finished());
      Append(courses.back().taken, &rows_);
    }
    return courses;
  }
  // Expects that every rank ends with this error, and that no row came twice.
  void EndsWith(const std::string& text) {
    for (const Course& course : RunAllToTheEnd()) {
      EXPECT_EQ(course.code, PENSTOCK_ABORTED);
      EXPECT_THAT(course.error, HasSubstr(text));
    }
    const Rows sorted = Sorted(rows_);
    EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
  }

  std::vector<RankProcess> ranks_;
  Rows rows_;
};

TEST_F(ForgottenJobTest, SplitGoesOnWhenAllOfItsRanksComeBack) {
  Attach(3, "split");
  TakeFromAll(5);
  KillBrokerAndStartAnother();
  for (const Course& course : RunAllToTheEnd()) {
    EXPECT_EQ(course.code, 0) << course.error;
  }
  EXPECT_EQ(Sorted(rows_), Numbers(kRows));
}

TEST_F(ForgottenJobTest, IndependentRanksGoOn) {
  Attach(2, "independent");
  TakeFromAll(5);
  KillBrokerAndStartAnother();
  for (const Course& course : RunAllToTheEnd()) {
    EXPECT_EQ(course.code, 0) << course.error;
  }
  EXPECT_EQ(Sorted(rows_), Numbers(kRows, 2));
}

// Its position is unknown, so its rank batches must not be left out silently.
TEST_F(ForgottenJobTest, SplitWhoseRankDiedWithTheBrokerFailsOnTheOthers) {
  Attach(3, "split", "shrink");
  TakeFromAll(5);
  // Stopped, it does not tell the others of the death before its own.
  kill(broker_.pid(), SIGSTOP);
  ranks_.back().Kill();
  ranks_.pop_back();
  KillBrokerAndStartAnother();
  EndsWith("rank 2 did not come back within 60 s");
}

TEST_F(ForgottenJobTest, SplitThatHadShrunkFails) {
  Attach(3, "split", "shrink");
  TakeFromAll(2);
  ranks_.back().Kill();
  ranks_.pop_back();
  for (RankProcess& rank : ranks_) {
    for (int world = 3; world != 2;) {
      const RankProcess::Event event = TakeOne(rank);
      ASSERT_EQ(event.what, RankProcess::What::kBatch) << event.error;
      world = event.taken.world_size;
    }
  }
  KillBrokerAndStartAnother();
  EndsWith("has no record of job");
}

TEST_F(ForgottenJobTest, DynamicFailsAndRepeatsNothing) {
  Attach(2, "dynamic");
  TakeFromAll(5);
  KillBrokerAndStartAnother();
  EndsWith("has no record of job");
}

TEST_F(ForgottenJobTest, BroadcastFails) {
  Attach(2, "broadcast");
  TakeFromAll(5);
  rows_.clear();
  KillBrokerAndStartAnother();
  for (const Course& course : RunAllToTheEnd()) {
    EXPECT_EQ(course.code, PENSTOCK_ABORTED);
    EXPECT_THAT(course.error, HasSubstr("has no record of job"));
  }
}

TEST_F(ForgottenJobTest, NobodyBeginsInThePlaceOfARankThatIsNotBack) {
  Attach(2, "split");
  TakeFromAll(5);
  const std::string spec =
      RangeSpec(std::to_string(kRows), "batch: {size: 12}\n");
  ranks_.back().Kill();
  ranks_.pop_back();
  KillBrokerAndStartAnother();
  TakeFromAll(6);  // more than it still held
  EXPECT_THAT(AttachError(OptionsFor(spec, 1, 2)),
              HasSubstr("that rank's position is unknown"));
}

TEST_F(ForgottenJobTest, RegisteredDatasetThatIsNotKnownAnyMoreIsSaidAtOnce) {
  Ask({{"op", "register"},
       {"spec", RangeSpec("1200", "batch: {size: 12}\n")},
       {"file", "x"},
       {"base", "/"}});
  Options options = OptionsFor("", 0, 1);
  options.dataset = "numbers";
  ranks_.emplace_back(options);
  ASSERT_FALSE(ranks_[0].Attached().contains("error"));
  TakeFromAll(3);
  KillBrokerAndStartAnother();
  EndsWith("no record of dataset 'numbers'");
}

}  // namespace penstock::forgotten_job_test
