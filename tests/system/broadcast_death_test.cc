// Promise: consumers of a broadcast go on after the broker's death where they
// were, together with those that come back late, ahead, or in another's place.
// Method: the broker is killed and restarted between the requests of consumers,
// some of which are made by hand.
#include <poll.h>

#include "common/message.h"
#include "common/ring.h"
#include "common/segment.h"
#include "common/wake.h"
#include "gmock/gmock.h"
#include "tests/support/delivery_fixture.h"
#include "tests/system/kept_broker.h"

namespace penstock::broadcast_death_test {

using testing::HasSubstr;

class BroadcastDeathTest : public testing::Test {
 protected:
  Options OptionsFor(const std::string& spec, int rank) {
    Options options =
        penstock::OptionsFor("dataset: numbers\nbatch: {size: 2}\n" + spec,
                             rank, 2, broker_.socket());
    options.delivery = "broadcast";
    options.window = 1;
    return options;
  }
  // Waits until the broker reports this about a rank.
  template <typename Is>
  void WaitForRank(int rank, const Is& is) {
    for (;;) {
      const nlohmann::json status = broker_.Ask({{"op", "status"}});
      for (const nlohmann::json& job : status.at("jobs")) {
        if (!job.contains("ranks")) continue;
        for (const nlohmann::json& each : job["ranks"]) {
          if (each.at("rank") == rank && is(each)) return;
        }
      }
      std::this_thread::yield();
    }
  }

  // The request of a rank.
  static nlohmann::json AttachOf(const Options& options, int rank) {
    return {{"op", "attach"},
            {"spec", options.spec},
            {"file", "spec"},
            {"base", "/"},
            {"job", options.job},
            {"named", true},
            {"delivery", options.delivery},
            {"lag", options.lag.empty() ? "block" : options.lag},
            {"window", options.window},
            {"consumers", 2},
            {"rank", rank},
            {"world_size", 2},
            {"local_world_size", options.local_world_size}};
  }
  // Attaches as its process does, with its own cursor page.
  StatusOr<Message> Attach(const nlohmann::json& request) {
    PENSTOCK_ASSIGN_OR_RETURN(cursor_, CreateCursor());
    PENSTOCK_ASSIGN_OR_RETURN(socket_, ConnectControl(broker_.socket()));
    return Request(socket_.get(), request, {cursor_.fd.get()});
  }
  // Attaches and leaves. Returns the answer when it comes back at this
  // position, after longer silence than the others wait.
  nlohmann::json ComesBackAt(uint64_t position, nlohmann::json request) {
    const StatusOr<Message> answer = Attach(request);
    EXPECT_TRUE(answer.ok()) << answer.status().message();
    request["incarnation"] = answer->json.at("incarnation");
    request["token"] = answer->json.at("token");
    EXPECT_TRUE(SendMessage(socket_.get(),
                            {{"penstock", kProtocolVersion}, {"op", "detach"}})
                    .ok());
    request["position"] = position;
    request["phase"] = 0;
    request["taken"] = 0;
    request["owed"] = nlohmann::json::array();
    return request;
  }
  // Waits for a batch, as a rank with this answer does.
  Cell TakeAs(const Message& answer) {
    const auto view = SegmentView::Open(answer.fds[0].get(), 1);
    const Ring& ring = (*view)->ring(answer.json.at("seat").get<uint32_t>());
    Cell cell{};
    while (TryTake(ring, cursor_.page(), &cell) != TakeResult::kTaken) {
      pollfd wake = {answer.fds[1].get(), POLLIN, 0};
      if (ArmWait(ring, cursor_.page())) {
        if (BrokerWaitsForTakes(ring)) SendWake(wake.fd);
        poll(&wake, 1, 1000);
      }
      DisarmWait(cursor_.page());
      DrainWakes(wake.fd);
    }
    return cell;
  }

  KeptBroker broker_;
  OwnedCursor cursor_;
  Fd socket_;
};

TEST_F(BroadcastDeathTest, NewConsumerGetsNothingOfTheOneWhoseNumberItHas) {
  const std::string spec = "source: {range: 40}\nhold: 6";
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back(OptionsFor(spec, rank));
  }
  for (RankProcess& rank : ranks) rank.Attached();
  for (uint64_t step = 0; step < 5; ++step) {
    for (RankProcess& rank : ranks) {
      ASSERT_EQ(rank.Next().taken.step, step);
      if (step < 2) rank.Release(1);
    }
  }
  WaitForRank(1, [](const auto& rank) { return rank.at("ready") == 1; });
  broker_.Kill();
  ASSERT_EQ(ranks[1].Next().taken.step, 5u);
  // It reconnects with four batches of the former instance, and dies while the
  // broker waits for the other.
  ranks[1].SendNext();
  WaitForRank(1, [](const auto& rank) { return rank["state"] == "attached"; });
  ranks[1].Kill();
  RankProcess other(OptionsFor(spec, 1));
  ASSERT_EQ(ranks[0].Next().taken.step, 5u);
  ASSERT_EQ(ranks[0].Next().taken.step, 6u);
  other.Attached();
  ranks[0].Run();
  other.Run();
  const Course course = other.Finished();
  EXPECT_EQ(course.code, 0) << course.error;
  EXPECT_EQ(ranks[0].Finished().taken.size(), 13u);
  ASSERT_FALSE(course.taken.empty());
  for (size_t i = 0; i < course.taken.size(); ++i) {
    EXPECT_FALSE(course.taken[i].redelivered);
    EXPECT_EQ(course.taken[i].skipped, 0u);
    EXPECT_EQ(course.taken[i].step, course.taken[0].step + i);
  }
  EXPECT_EQ(course.taken.back().step, 19u);
}

TEST_F(BroadcastDeathTest, EpochsOfAFullEpochConsumerGoOnAsTheyWere) {
  Options options = OptionsFor("source: {range: 10}\nepochs: 4", 0);
  options.local_world_size = 1;
  options.consumers = 2;
  RankProcess first(options);
  first.Attached();
  for (int step = 0; step < 2; ++step) {
    ASSERT_EQ(first.Next().what, RankProcess::What::kBatch);
    first.Release(1);
  }
  options.rank = 1;
  options.full_epoch = true;
  RankProcess late(options);
  const auto epoch = late.Attached().at("epoch").get<uint64_t>();
  uint64_t step = 0;
  const auto take = [&](uint64_t steps) {
    for (; steps > 0; --steps) {
      while (first.Next().what != RankProcess::What::kBatch) {
      }
      first.Release(1);
      RankProcess::Event event = late.Next();
      while (event.what == RankProcess::What::kEndOfEpoch) {
        EXPECT_EQ(step % 5, 0u);
        event = late.Next();
      }
      ASSERT_EQ(event.what, RankProcess::What::kBatch) << event.error;
      EXPECT_EQ(event.taken.epoch, epoch + step / 5);
      EXPECT_EQ(event.taken.step, step % 5);
      late.Release(1);
      ++step;
    }
  };
  take(7);
  broker_.Kill();
  // The late one has taken the last batch of an epoch, and not the next one.
  ASSERT_EQ(first.Next().what, RankProcess::What::kBatch);
  ASSERT_EQ(first.Next().what, RankProcess::What::kEndOfEpoch);
  first.Release(1);
  first.SendNext();
  const RankProcess::Event event = late.Next();
  ASSERT_EQ(event.what, RankProcess::What::kBatch) << event.error;
  EXPECT_EQ(event.taken.epoch, epoch + step / 5);
  EXPECT_EQ(event.taken.step, step % 5);
  ++step;
  first.Receive();
  first.Release(1);
  late.Release(1);
  take(4);
}

TEST_F(BroadcastDeathTest, WhoIsFarBehindIsSkippedAndNotWaitedFor) {
  const std::string spec = "source: {range: 400}";
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    Options options = OptionsFor(spec, rank);
    options.lag = "skip";
    ranks.emplace_back(options);
  }
  for (RankProcess& rank : ranks) rank.Attached();
  RankProcess& fast = ranks[0];
  RankProcess& slow = ranks[1];
  ASSERT_EQ(slow.Next().taken.step, 0u);
  slow.Release(1);
  for (uint64_t step = 0; step < 100; ++step) {
    ASSERT_EQ(fast.Next().taken.step, step);
    fast.Release(1);
  }
  WaitForRank(0, [](const auto& rank) { return rank.at("ready") == 1; });
  broker_.Kill();
  // First the batches that they were given before.
  ASSERT_EQ(fast.Next().taken.step, 100u);
  fast.Release(1);
  fast.SendNext();
  uint64_t next = 1;
  uint64_t skipped = 0;
  while (next < 100) {
    const RankProcess::Event event = slow.Next();
    ASSERT_EQ(event.what, RankProcess::What::kBatch) << event.error;
    next += event.taken.skipped;
    skipped += event.taken.skipped;
    EXPECT_EQ(event.taken.step, next++);
    slow.Release(1);
  }
  EXPECT_GT(skipped, 90u);
  fast.Receive();
  fast.Release(1);
  fast.Run();
  const Course rest = fast.Finished();
  EXPECT_EQ(rest.code, 0) << rest.error;
  ASSERT_EQ(rest.taken.size(), 98u);
  EXPECT_EQ(rest.taken.front().step, 102u);
}

TEST_F(BroadcastDeathTest, WhoComesBackTooLateIsToldWhatItMissed) {
  for (const std::string lag : {"block", "skip"}) {
    Options options = OptionsFor("source: {range: 40}", 0);
    options.lag = lag;
    options.job += lag;
    options.consumers = 2;
    options.local_world_size = 1;
    RankProcess first(options);
    first.Attached();
    const nlohmann::json request = ComesBackAt(0, AttachOf(options, 1));
    for (uint64_t step = 0; step < 2; ++step) {
      ASSERT_EQ(first.Next().taken.step, step);
      first.Release(1);
    }
    const StatusOr<Message> answer = Attach(request);
    if (lag == "block") {
      EXPECT_EQ(answer.status().code(), StatusCode::kAborted);
      EXPECT_THAT(answer.status().message(), HasSubstr("it missed"));
      continue;
    }
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    const uint64_t missed = answer->json.at("position").get<uint64_t>() / 2;
    EXPECT_GE(missed, 2u);
    first.SendNext();
    const Cell cell = TakeAs(*answer);
    EXPECT_EQ(cell.skipped, missed);
    EXPECT_EQ(cell.position, 2 * missed);
  }
}

// It was ahead when the broker died, and absent when the others went on.
TEST_F(BroadcastDeathTest, WhoComesBackAheadIsNotHeldUpByWhoIsBehind) {
  Options options = OptionsFor("source: {range: 400}", 0);
  options.lag = "skip";
  options.consumers = 2;
  options.local_world_size = 1;
  RankProcess behind(options);
  behind.Attached();
  const nlohmann::json request = ComesBackAt(2 * 50, AttachOf(options, 1));
  ASSERT_EQ(behind.Next().taken.step, 0u);
  // It misses more steps than there are slots.
  const StatusOr<Message> answer = Attach(request);
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(TakeAs(*answer).position, 2 * 50u);
}

// The broker died before it answered this attach; the process repeats the
// request.
class UnansweredTest : public BroadcastDeathTest {};

TEST_F(UnansweredTest, ConsumerGetsWhatOthersHadBecauseItWasThere) {
  for (const char* policy : {"", "wait"}) {
    Options options = OptionsFor("source: {range: 40}", 0);
    options.job += policy;
    options.consumers = options.local_world_size = 2;
    options.on_rank_death = policy;
    nlohmann::json request = AttachOf(options, 1);
    if (*policy != 0) request["on_rank_death"] = policy;
    RankProcess first(options);
    first.Attached();
    const StatusOr<Message> unheard = Attach(request);
    ASSERT_TRUE(unheard.ok()) << unheard.status().message();
    ASSERT_EQ(first.Next().taken.step, 0u);
    first.Release(1);
    broker_.Kill();
    first.SendNext();
    const StatusOr<Message> answer = Attach(request);
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_EQ(answer->json.at("position"), 0);
    EXPECT_EQ(answer->json.at("incarnation"), 1);
    const auto view = SegmentView::Open(answer->fds[0].get(), 1);
    const Ring& ring = (*view)->ring(answer->json.at("seat").get<uint32_t>());
    Cell cell{};
    while (TryTake(ring, cursor_.page(), &cell) != TakeResult::kTaken) {
      std::this_thread::yield();
    }
    EXPECT_EQ(cell.position, 0u);
    EXPECT_EQ(cell.flags & kRedelivered, 0u);
  }
}

TEST_F(UnansweredTest, RankThatBeginsAtAStateMeetsTheOthersThere) {
  Options options = OptionsFor("source: {range: 40}", 0);
  options.delivery = "split";
  options.window = 0;
  options.local_world_size = 2;
  nlohmann::json request = AttachOf(options, 1);
  for (const char* of_broadcast : {"window", "consumers", "lag"}) {
    request.erase(of_broadcast);
  }
  request["job"] = "to get a state";
  const StatusOr<Message> begun = Attach(request);
  ASSERT_TRUE(begun.ok()) << begun.status().message();
  request["job"] = options.job;
  request["state"] = begun->json.at("state");
  options.state = request["state"].dump();
  RankProcess first(options);
  first.Attached();
  ASSERT_TRUE(Attach(request).ok());
  ASSERT_EQ(first.Next().taken.step, 0u);
  broker_.Kill();
  first.SendNext();
  const StatusOr<Message> answer = Attach(request);
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->json.at("incarnation"), 1);
  EXPECT_EQ(first.ReceiveNext().taken.step, 1u);
}

// An incarnation is known by its token, not by its number.
TEST_F(BroadcastDeathTest, NobodyReconnectsToAJobThatIsOver) {
  Options options = OptionsFor("source: {range: 4}", 0);
  options.local_world_size = 1;
  for (int incarnation = 1; incarnation <= 2; ++incarnation) {
    RankProcess rank(options);
    EXPECT_EQ(rank.Attached().at("incarnation"), incarnation);
    rank.Run();
    EXPECT_EQ(rank.Finished().taken.size(), 2u);
    rank.Detach();
  }
  for (const char* job : {"another", options.job.c_str()}) {
    nlohmann::json request = AttachOf(options, 0);
    request.update({{"job", job},
                    {"incarnation", 2},
                    {"token", 2},
                    {"position", 0},
                    {"phase", 0},
                    {"taken", 0},
                    {"owed", nlohmann::json::array()}});
    const auto cursor = CreateCursor();
    const auto socket = ConnectControl(broker_.socket());
    ASSERT_TRUE(socket.ok());
    const auto answer = Request(socket->get(), request, {cursor->fd.get()});
    EXPECT_EQ(answer.status().code(), StatusCode::kAborted);
    EXPECT_THAT(answer.status().message(), HasSubstr("is over"));
  }
}

}  // namespace penstock::broadcast_death_test
