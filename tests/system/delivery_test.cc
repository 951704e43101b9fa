// Promise: ranks of a real broker get what `batch`, `epochs` and `shuffle` say,
// each rank may hold what it was promised, and refusals name the cause
// (input_semantics_test has tf.data's and tf.distribute's examples). Method: a
// penstockd process, and ranks as threads of this one through the public C++
// API.
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "common/message.h"
#include "common/segment.h"
#include "common/wake.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::delivery_test {

using testing::ElementsAre;
using testing::HasSubstr;

// One worker for all, so that starvation shows.
class OneWorkerTest : public DeliveryTest {
 protected:
  OneWorkerTest() : one_worker_({"--workers", "1"}) {}
  Options For(const std::string& spec, const std::string& job, int rank = 0,
              int world_size = 1) {
    Options options = OptionsFor(spec, rank, world_size);
    options.socket = one_worker_.socket();
    options.job = job;
    return options;
  }
  BrokerProcess one_worker_;
};

TEST_F(OneWorkerTest, JobThatReadsFilesIsNotStarvedByOneThatDoesNot) {
  // Four pictures of 2 x 2 in MNIST's format, uncompressed: read record by
  // record.
  std::string idx("\0\0\x08\x03\0\0\0\x04\0\0\0\x02\0\0\0\x02", 16);
  idx += "abcdefghijklmnop";
  const std::string path = one_worker_.Write("images.idx", idx);
  Reader endless(For(
      "dataset: endless\nsource: {synthetic: {records: 100000, cost_us: "
      "200, features: {x: {dtype: uint8, shape: [8]}}}}\nbatch: {size: 50}\n"
      "epochs: forever",
      "endless"));
  std::atomic<bool> stop{false};
  std::thread drain([&] {
    Batch batch;
    while (!stop) ASSERT_EQ(endless.next(&batch), Reader::Result::kBatch);
  });
  Reader reader(For("dataset: read\nsource: {idx: {images: " + path +
                        "}}\nbatch: {size: 2}\nepochs: 100",
                    "read"));
  uint64_t rows = 0;
  for (;;) {
    Batch batch;
    const Reader::Result result = reader.next(&batch);
    if (result == Reader::Result::kEndOfData) break;
    if (result == Reader::Result::kBatch) rows += batch.rows();
  }
  EXPECT_EQ(rows, 400u);
  stop = true;
  drain.join();
}

// Its rank batches are empty: the broker makes them when it attaches and
// reclaims.
TEST_F(OneWorkerTest, RankThatTakesEmptyBatchesForEverStopsNobody) {
  Reader empty(
      For(RangeSpec("4", "batch: {size: 1}\nepochs: forever"), "empty", 1, 2));
  std::atomic<bool> stop{false};
  std::thread spin([&] {
    Batch batch;
    while (!stop) {
      if (empty.next(&batch) == Reader::Result::kBatch) {
        EXPECT_EQ(batch.rows(), 0u);
      }
    }
  });
  for (int round = 0; round < 20; ++round) {
    Reader reader(For(RangeSpec("10", "batch: {size: 10}"), "other"));
    Batch batch;
    ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
    EXPECT_EQ(batch.rows(), 10u);
  }
  stop = true;
  spin.join();
}

TEST_F(DeliveryTest, LastDropLeavesTheShortBatchOut) {
  EXPECT_THAT(TakeAll(RangeSpec("10", "batch: {size: 4, last: drop}"), 1),
              ElementsAre(SampleSteps{{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

TEST_F(DeliveryTest, LastPadFillsTheShapeWithMarkedZeros) {
  Reader reader(OptionsFor(
      RangeSpec("{start: 1, stop: 7}", "batch: {size: 4, last: pad}"), 0, 1));
  Batch batch;
  ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
  ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
  EXPECT_EQ(batch.rows(), 4u);
  EXPECT_EQ(batch.valid_rows(), 2u);
  const auto values = batch.get<int64_t>("value");
  EXPECT_THAT(Rows(values.begin(), values.end()), ElementsAre(5, 6, 0, 0));
  EXPECT_THAT(Rows(batch.ids().begin(), batch.ids().end()),
              ElementsAre(4, 5, PENSTOCK_PADDING_ID, PENSTOCK_PADDING_ID));
}

TEST_F(DeliveryTest, PerRankBatchGrowsTheGlobalBatchWithTheWorld) {
  EXPECT_THAT(
      TakeAll(RangeSpec("8", "batch: {per_rank: 2}"), 2),
      ElementsAre(SampleSteps{{0, 1}, {4, 5}}, SampleSteps{{2, 3}, {6, 7}}));
}

TEST_F(DeliveryTest, ShuffledEpochsDifferAndEachHasEverySampleOnce) {
  const Ranks ranks = TakeAll(
      RangeSpec("1000", "batch: {size: 100}\nshuffle: {seed: 3}\nepochs: 2"),
      2);
  std::vector<Rows> epochs(2);
  for (const SampleSteps& steps : ranks) {
    ASSERT_EQ(steps.size(), 20u);
    for (size_t step = 0; step < steps.size(); ++step) {
      Rows& epoch = epochs[step / 10];
      epoch.insert(epoch.end(), steps[step].begin(), steps[step].end());
    }
  }
  EXPECT_NE(epochs[0], epochs[1]);
  for (Rows& epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    ASSERT_EQ(epoch.size(), 1000u);
    for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(epoch[i], i);
  }
}

TEST_F(DeliveryTest, ForeverGoesOnWithTheNextEpoch) {
  Reader reader(
      OptionsFor(RangeSpec("4", "batch: {size: 2}\nepochs: forever"), 0, 1));
  EXPECT_EQ(reader.epoch_count(), 0u);
  for (int epoch = 0; epoch < 50; ++epoch) {
    for (int step = 0; step < 2; ++step) {
      Batch batch;
      ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
      EXPECT_EQ(batch.epoch(), static_cast<uint64_t>(epoch));
    }
    Batch none;
    ASSERT_EQ(reader.next(&none), Reader::Result::kEndOfEpoch);
  }
}

// ---- leases ----------------------------------------------------------------

TEST_F(DeliveryTest, HoldingEveryBatchIsAnErrorAndNotADeadlock) {
  Reader reader(
      OptionsFor(RangeSpec("100", "batch: {size: 1}\nhold: 3"), 0, 1));
  std::vector<Batch> held(3);
  for (Batch& batch : held) {
    ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
  }
  Batch another;
  try {
    reader.next(&another);
    FAIL() << "a fourth batch was handed out";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), PENSTOCK_RESOURCE_EXHAUSTED);
    EXPECT_THAT(error.what(), HasSubstr("holds 3 batches"));
    EXPECT_THAT(error.what(), HasSubstr("release a batch"));
  }
  held[1].release();
  EXPECT_EQ(reader.next(&another), Reader::Result::kBatch);
}

TEST_F(DeliveryTest, BatchHeldToTheEndStaysAsItWas) {
  Reader reader(
      OptionsFor(RangeSpec("2000", "batch: {size: 4}\nhold: 2"), 0, 1));
  Batch first;
  ASSERT_EQ(reader.next(&first), Reader::Result::kBatch);
  uint64_t steps = 1;
  Batch batch;
  while (reader.next(&batch) == Reader::Result::kBatch) ++steps;
  EXPECT_EQ(steps, 500u);
  const auto values = first.get<int64_t>("value");
  EXPECT_THAT(Rows(values.begin(), values.end()), ElementsAre(0, 1, 2, 3));
}

TEST_F(DeliveryTest, BatchesAreReleasedInAnyOrder) {
  Reader reader(
      OptionsFor(RangeSpec("1000", "batch: {size: 1}\nhold: 8"), 0, 1));
  std::vector<Batch> held;
  int64_t next = 0;
  bool end = false;
  while (!end) {
    while (held.size() < 8) {
      Batch batch;
      if (reader.next(&batch) != Reader::Result::kBatch) {
        end = true;
        break;
      }
      EXPECT_EQ(batch.get<int64_t>("value")[0], next++);
      held.push_back(std::move(batch));
    }
    if (!held.empty()) held.erase(held.begin() + (next * 7) % held.size());
  }
  EXPECT_EQ(next, 1000);
}

TEST_F(DeliveryTest, InterruptEndsAWaitOfAnotherThread) {
  // Rank 1 of 2 never comes, but rank 0's shares do not need it; so wait where
  // there is nothing: an epoch that is held back by held leases.
  Reader reader(OptionsFor(
      "dataset: slow\nsource: {synthetic: {records: 4, cost_us: 500000, "
      "features: {x: {dtype: uint8, shape: [1]}}}}\nbatch: {size: 4}",
      0, 1));
  std::thread other([&] { penstock_interrupt(reader.c_reader()); });
  Batch batch;
  try {
    reader.next(&batch);
    FAIL() << "nothing was interrupted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), PENSTOCK_CANCELLED);
  }
  other.join();
}

// ---- agreement and refusal

TEST_F(DeliveryTest, RankNumberTakenTwiceIsRefused) {
  const std::string spec = RangeSpec("10", "batch: {size: 2}");
  Reader first(OptionsFor(spec, 0, 2));
  int code = 0;
  EXPECT_THAT(AttachError(OptionsFor(spec, 0, 2), &code),
              HasSubstr("rank 0 is already attached"));
  EXPECT_EQ(code, PENSTOCK_ALREADY_EXISTS);
}

TEST_F(DeliveryTest, RanksThatDisagreeAreToldTheField) {
  Reader first(OptionsFor(RangeSpec("10", "batch: {size: 2}"), 0, 2));
  EXPECT_THAT(
      AttachError(OptionsFor(RangeSpec("10", "batch: {size: 4}"), 1, 2)),
      HasSubstr("batch.size: 4 here, 2 there"));
  EXPECT_THAT(
      AttachError(OptionsFor(RangeSpec("10", "batch: {size: 2}"), 1, 3)),
      HasSubstr("world_size: 3 here, 2 there"));
}

TEST_F(DeliveryTest, WrongSpecNamesLineAndColumn) {
  int code = 0;
  EXPECT_THAT(
      AttachError(
          OptionsFor("dataset: x\nsource: {range: 4}\nbatsch: {size: 1}", 0, 1),
          &code),
      testing::AllOf(HasSubstr("spec:3:1"), HasSubstr("batch")));
  EXPECT_EQ(code, PENSTOCK_INVALID_ARGUMENT);
}

TEST_F(DeliveryTest, NullIsRefusedWhereAResultCanSaySo) {
  const char* text = nullptr;
  penstock_feature feature;
  penstock_batch* batch = nullptr;
  for (const int result :
       {penstock_attach(nullptr, nullptr), penstock_next(nullptr, &batch),
        penstock_state(nullptr, &text), penstock_reset(nullptr, 0, 0, 0, ""),
        penstock_stop_job(nullptr, 0),
        penstock_feature_at(nullptr, 0, &feature),
        penstock_feature_index(nullptr, "x"),
        penstock_produce(nullptr, nullptr),
        penstock_producer_reserve(nullptr, 1),
        penstock_producer_put(nullptr, 1), penstock_producer_finish(nullptr),
        penstock_producer_fail(nullptr, "")}) {
    EXPECT_EQ(result, PENSTOCK_INVALID_ARGUMENT);
    EXPECT_STREQ(penstock_error(), "a pointer is NULL");
  }
}

TEST_F(DeliveryTest, TimesBelowZeroAreRefusedByName) {
  Options options = OptionsFor(RangeSpec("4", "batch: {size: 1}"), 0, 1);
  options.timeout_s = -1;
  int code = 0;
  EXPECT_THAT(AttachError(options, &code), HasSubstr("timeout_s: -1"));
  EXPECT_EQ(code, PENSTOCK_INVALID_ARGUMENT);
  options.timeout_s = 0;
  options.wait_s = std::nan("");
  EXPECT_THAT(AttachError(options, &code), HasSubstr("wait_s: nan"));
  EXPECT_EQ(code, PENSTOCK_INVALID_ARGUMENT);
}

TEST_F(DeliveryTest, DatasetTooSmallForAStepIsNamedOnce) {
  EXPECT_THAT(
      AttachError(
          OptionsFor(RangeSpec("3", "batch: {size: 4, last: drop}"), 0, 1)),
      testing::StartsWith("spec:3:1: batch: 3 records are less than one"));
}

TEST_F(DeliveryTest, JobLargerThanTheMemoryIsRefusedBeforeItStarts) {
  int code = 0;
  const std::string text = AttachError(
      OptionsFor("dataset: huge\nsource: {synthetic: {records: 1000000, "
                 "features: {x: {dtype: uint8, shape: [1048576]}}}}\n"
                 "batch: {size: 1000000}",
                 0, 1),
      &code);
  EXPECT_EQ(code, PENSTOCK_RESOURCE_EXHAUSTED);
  EXPECT_THAT(text, testing::AllOf(HasSubstr("needs"), HasSubstr("left by"),
                                   HasSubstr("batch.size")));
}

TEST_F(DeliveryTest, SocketThatIsNotThereSaysHowToGetOne) {
  Options options = OptionsFor(RangeSpec("4", "batch: {size: 1}"), 0, 1);
  options.socket = broker_.folder() / "nobody";
  int code = 0;
  EXPECT_THAT(AttachError(options, &code), HasSubstr("penstock run"));
  EXPECT_EQ(code, PENSTOCK_NOT_FOUND);
}

TEST_F(DeliveryTest, MissingFolderIsNamed) {
  int code = 0;
  EXPECT_THAT(AttachError(OptionsFor("dataset: gone\nsource: {image_folder: "
                                     "{path: /no/such/folder}}\n"
                                     "map: [{decode_image: {size: 8}}]\n"
                                     "batch: {size: 1}",
                                     0, 1),
                          &code),
              HasSubstr("/no/such/folder"));
  EXPECT_EQ(code, PENSTOCK_NOT_FOUND);
}

TEST_F(DeliveryTest, DeadBrokerIsNoticedAtOnceWithoutATimeLimit) {
  Options options = OptionsFor(
      "dataset: slow\nsource: {synthetic: {records: 4, cost_us: 500000, "
      "features: {x: {dtype: uint8, shape: [1]}}}}\nbatch: {size: 4}",
      0, 1);
  options.timeout_s = 0;
  options.reconnect_s = -1;
  Reader reader(options);
  std::thread killer([&] { EXPECT_EQ(broker_.Stop(SIGKILL), -SIGKILL); });
  Batch batch;
  try {
    reader.next(&batch);
    FAIL() << "a batch came from a dead broker";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), PENSTOCK_UNAVAILABLE);
    EXPECT_THAT(error.what(), HasSubstr("broker is gone"));
  }
  killer.join();
}

// The broker dies before it answers; the next one is asked again.
TEST_F(DeliveryTest, AttachOutlivesTheBrokerThatWasAsked) {
  Options options = OptionsFor(RangeSpec("12", "batch: {size: 4}"), 0, 1);
  const auto attach_to_one_that_dies = [&](bool comes_back) {
    broker_.Stop(SIGKILL);
    // Stands in for the broker, and closes the connection.
    Fd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, broker_.socket().c_str(),
                 sizeof(address.sun_path) - 1);
    unlink(address.sun_path);
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address),
                   sizeof(address)),
              0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    Course course;
    std::thread rank([&] {
      course.error = AttachError(options);
      if (course.error.empty()) {
        Reader reader(options);
        course = RunToTheEnd(reader);
      }
    });
    {
      const Fd connection(accept(listener.get(), nullptr, nullptr));
      EXPECT_TRUE(ReceiveMessage(connection.get()).ok());
    }
    listener.Reset();
    // On this thread: the broker ends with the thread that starts it.
    if (comes_back) broker_.Start();
    rank.join();
    return course;
  };
  for (const char* delivery : {"split", "dynamic", "broadcast"}) {
    options.delivery = delivery;
    const Course course = attach_to_one_that_dies(true);
    EXPECT_EQ(course.error, "") << delivery;
    EXPECT_EQ(course.taken.size(), 3u) << delivery;
  }
  options.reconnect_s = -1;
  EXPECT_THAT(attach_to_one_that_dies(false).error,
              HasSubstr("a rank was attaching"));
}

TEST_F(DeliveryTest, StoppedBrokerSaysSo) {
  Options options = OptionsFor(
      "dataset: slow\nsource: {synthetic: {records: 400, cost_us: 10000, "
      "features: {x: {dtype: uint8, shape: [1]}}}}\nbatch: {size: 400}",
      0, 1);
  options.reconnect_s = -1;
  Reader reader(options);
  EXPECT_EQ(broker_.Stop(SIGTERM), 0);
  Batch batch;
  EXPECT_THROW(reader.next(&batch), Error);
}

TEST_F(DeliveryTest, RankThatFinishedMayAttachToTheSameJobNameAgain) {
  const std::string spec = RangeSpec("4", "batch: {size: 2}");
  Reader slow(OptionsFor(spec, 1, 2));
  for (int round = 0; round < 3; ++round) {
    Reader reader(OptionsFor(spec, 0, 2));
    Batch batch;
    int steps = 0;
    for (;;) {
      const Reader::Result result = reader.next(&batch);
      if (result == Reader::Result::kEndOfData) break;
      steps += result == Reader::Result::kBatch;
    }
    EXPECT_EQ(steps, 2);
  }
}

// ---- several jobs, several users of one broker

TEST_F(DeliveryTest, SmallJobFinishesBesideAnEndlessOne) {
  Options endless = OptionsFor(
      "dataset: endless\nsource: {synthetic: {records: 100000, cost_us: 100, "
      "features: {x: {dtype: uint8, shape: [8]}}}}\nbatch: {size: 50}\n"
      "epochs: forever",
      0, 1);
  endless.job = "endless";
  Reader greedy(endless);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> greedy_rows{0};
  std::thread drain([&] {
    Batch batch;
    while (!stop) {
      ASSERT_EQ(greedy.next(&batch), Reader::Result::kBatch);
      greedy_rows += batch.rows();
    }
  });
  uint64_t rows = 0;
  Reader small(OptionsFor(
      "dataset: small\nsource: {synthetic: {records: 2000, cost_us: 100, "
      "features: {x: {dtype: uint8, shape: [8]}}}}\nbatch: {size: 50}",
      0, 1));
  Batch batch;
  while (small.next(&batch) == Reader::Result::kBatch) rows += batch.rows();
  EXPECT_EQ(rows, 2000u);
  // Vice versa, it still gets its turn.
  const uint64_t seen = greedy_rows;
  while (greedy_rows < seen + 1000) std::this_thread::yield();
  stop = true;
  drain.join();
}

// Two jobs share the opened dataset but not the seed.
TEST_F(DeliveryTest, SeedOfAugmentationIsTheJobsOwn) {
  const auto spec = [](int seed) {
    return "dataset: flips\nsource: {tensors: {features: {image: {dtype: "
           "uint8, "
           "values: [[[1, 2]]]}}, repeat: 64}}\n"
           "map: [{flip: {horizontal: 0.5}}]\nbatch: {size: 64}\nseed: " +
           std::to_string(seed);
  };
  const auto pixels = [&](int seed, const std::string& job) {
    Options options = OptionsFor(spec(seed), 0, 1);
    options.job = job;
    Reader reader(options);
    Batch batch;
    EXPECT_EQ(reader.next(&batch), Reader::Result::kBatch);
    const auto values = batch.get<uint8_t>("image");
    return std::vector<uint8_t>(values.begin(), values.end());
  };
  const std::vector<uint8_t> alone = pixels(2, "alone");
  Options other = OptionsFor(spec(1), 0, 1);
  other.job = "other";
  Reader holds_it_open(other);
  EXPECT_EQ(pixels(2, "beside"), alone);
  EXPECT_NE(pixels(1, "beside"), alone);
}

TEST_F(DeliveryTest, RankThatLeavesMidwayMayStartAgainAtOnce) {
  const std::string spec =
      "dataset: again\nsource: {synthetic: {records: 100000, cost_us: 300, "
      "features: {x: {dtype: uint8, shape: [8]}}}}\nbatch: {size: 64}";
  for (int round = 0; round < 30; ++round) {
    Reader reader(OptionsFor(spec, 0, 1));
    Batch batch;
    ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
    EXPECT_EQ(batch.step(), 0u);
  }
}

// A rank is not trusted: it can write anything into its page. It loses its
// feed; the other rank of the job loses nothing.
TEST_F(DeliveryTest, RankThatWritesImpossibleReleasesHarmsOnlyItself) {
  const std::string spec = RangeSpec("4000", "batch: {size: 4}");
  Reader good(OptionsFor(spec, 0, 2));
  auto cursor = CreateCursor();
  ASSERT_TRUE(cursor.ok());
  const auto socket = ConnectControl(broker_.socket());
  ASSERT_TRUE(socket.ok());
  const auto answer = Request(
      socket->get(),
      {{"op", "attach"},
       {"spec", spec},
       {"file", "spec"},
       {"base", "/"},
       {"job", testing::UnitTest::GetInstance()->current_test_info()->name()},
       {"rank", 1},
       {"world_size", 2},
       {"local_world_size", 2}},
      {cursor->fd.get()});
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  const auto view = SegmentView::Open(answer->fds[0].get(), 1);
  ASSERT_TRUE(view.ok()) << view.status().message();
  for (auto& released : cursor->page().released) released.store(0xdeadbeef);
  cursor->page().taken.store(0xdeadbeef);
  SendWake(answer->fds[1].get());
  const Ring& ring = (*view)->ring(answer->json.at("seat").get<uint32_t>());
  while (ring.closed.load() == static_cast<uint32_t>(Closed::kOpen)) {
    std::this_thread::yield();
  }
  EXPECT_EQ(ring.closed.load(), static_cast<uint32_t>(Closed::kRecalled));
  EXPECT_THAT(ring.reason, HasSubstr("impossible"));
  uint64_t steps = 0;
  Batch batch;
  while (good.next(&batch) == Reader::Result::kBatch) ++steps;
  EXPECT_EQ(steps, 1000u);
}

TEST_F(DeliveryTest, RequestsThatAreNotOfTheProtocolAreAnsweredOrDropped) {
  const nlohmann::json cases[] = {
      {{"op", "attach"}},
      {{"op", 5}},
      {{"op", "no such"}},
      {{"op", "attach"}, {"rank", -1}, {"spec", "x"}},
      {{"op", "register"}, {"spec", {1, 2}}},
      {{"op", "index"}, {"dataset", "nobody registered this"}},
      {{"op", "index"}, {"spec", "a: ["}, {"file", "f"}, {"base", "/"}}};
  for (const nlohmann::json& request : cases) {
    const auto socket = ConnectControl(broker_.socket());
    ASSERT_TRUE(socket.ok());
    const auto answer = Request(socket->get(), request);
    EXPECT_FALSE(answer.ok()) << request.dump();
  }
  // The broker still serves.
  EXPECT_THAT(TakeAll(RangeSpec("2", "batch: {size: 2}"), 1),
              ElementsAre(SampleSteps{{0, 1}}));
}

}  // namespace penstock::delivery_test
