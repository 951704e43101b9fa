// Promise: each row of a stream comes once, in the order of the puts, in every
// mode; producers may be killed, are bounded in memory, and are told why a put
// cannot be. Method: a real broker, with producers and ranks in this process
// and producers that are killed.
#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <optional>

#include "common/message.h"
#include "common/producer_memory.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::producer_test {

using testing::HasSubstr;

class ProducerTest : public DeliveryTest {
 protected:
  static std::string Spec(const std::string& rest,
                          const std::string& source = "") {
    return "dataset: numbers\n"
           "source: {stream: {features: {value: {dtype: int64, shape: []}}" +
           source + "}}\n" + rest;
  }
  ProducerOptions ProducerFor(uint64_t rows) {
    ProducerOptions options;
    options.features = {{"value", PENSTOCK_INT64, {}}};
    options.rows = rows;
    options.socket = broker_.socket();
    options.job = testing::UnitTest::GetInstance()->current_test_info()->name();
    options.timeout_s = 60;
    return options;
  }
  static void Put(Producer* producer, int64_t first, uint64_t rows) {
    producer->reserve(rows);
    std::iota(producer->data<int64_t>(0), producer->data<int64_t>(0) + rows,
              first);
    producer->put(rows);
  }
  // Puts rows [first, end), `rows` at a time.
  void Produce(int64_t first, int64_t end, int64_t rows) {
    Producer producer(ProducerFor(static_cast<uint64_t>(rows)));
    for (int64_t at = first; at < end; at += rows) {
      Put(&producer, at, static_cast<uint64_t>(std::min(rows, end - at)));
    }
    producer.finish();
  }
  template <typename Call>
  static Error ErrorOf(Call call) {
    try {
      call();
    } catch (const Error& error) {
      return error;
    }
    return {0, "no error"};
  }
  static Rows AllRows(const std::vector<Course>& courses) {
    Rows rows;
    for (const Course& course : courses) {
      EXPECT_EQ(course.code, 0) << course.error;
      EXPECT_EQ(course.epoch_ends, 1u);
      Append(course.taken, &rows);
    }
    return rows;
  }
};

TEST_F(ProducerTest, RowsComeInOrderAndTheLastBatchIsWhatIsLeft) {
  // Opened before a rank has attached: it waits for the job.
  std::thread producer([&] { Produce(0, 100, 7); });
  Reader reader(OptionsFor(Spec("batch: {size: 16}\n"), 0, 1));
  EXPECT_EQ(reader.sample_count(), 0u);
  EXPECT_EQ(reader.steps_per_epoch(), 0u);
  const Course course = RunToTheEnd(reader);
  producer.join();
  EXPECT_EQ(course.code, 0) << course.error;
  EXPECT_EQ(course.epoch_ends, 1u);
  ASSERT_EQ(course.taken.size(), 7u);
  Rows rows;
  Append(course.taken, &rows);
  EXPECT_EQ(rows, Numbers(100));
  EXPECT_EQ(course.taken[5].rows.size(), 16u);
  EXPECT_EQ(course.taken[6].rows.size(), 4u);
  EXPECT_EQ(course.taken[6].global_rows, 4u);
}

TEST_F(ProducerTest, APutOfWhatIsNoBoolIsRefusedAndCanBeMended) {
  const Options options = OptionsFor(
      "dataset: masks\n"
      "source: {stream: {features: {mask: {dtype: bool, shape: [3]}}}}\n"
      "batch: {size: 4}\n",
      0, 1);
  std::thread thread([&] {
    ProducerOptions producing = ProducerFor(4);
    producing.features = {{"mask", PENSTOCK_BOOL, {3}}};
    Producer producer(producing);
    producer.reserve(4);
    uint8_t* const mask = producer.data<uint8_t>(0);
    for (int i = 0; i < 12; ++i) mask[i] = i % 2;
    mask[2 * 3 + 1] = 255;
    const Error error = ErrorOf([&] { producer.put(4); });
    EXPECT_EQ(error.code(), PENSTOCK_INVALID_ARGUMENT);
    EXPECT_STREQ(error.what(),
                 "feature 'mask': byte 1 of row 2 of this put is 255; a bool "
                 "is 0 or 1");
    mask[2 * 3 + 1] = 1;
    producer.put(4);
    producer.finish();
  });
  Reader reader(options);
  for (Epoch epoch : reader.epochs()) {
    for (Batch& batch : epoch) {
      const std::span<const bool> mask = batch.get<bool>("mask");
      ASSERT_EQ(mask.size(), 12u);
      for (int i = 0; i < 12; ++i) EXPECT_EQ(mask[i], i % 2 == 1);
      EXPECT_THROW(batch.get<uint8_t>("mask"), Error);
    }
  }
  thread.join();
}

TEST_F(ProducerTest, AWholeLastBatchIsTheLast) {
  std::thread producer([&] { Produce(0, 32, 32); });
  Reader reader(OptionsFor(Spec("batch: {size: 16}\n"), 0, 1));
  const Course course = RunToTheEnd(reader);
  producer.join();
  EXPECT_EQ(course.taken.size(), 2u);
  EXPECT_EQ(course.epoch_ends, 1u);
  EXPECT_EQ(course.code, 0) << course.error;
}

TEST_F(ProducerTest, WhatDoesNotFillABatchMayBeDroppedOrPadded) {
  for (const auto& [last, rows] :
       {std::pair("drop", 32u), std::pair("pad", 48u)}) {
    Options options = OptionsFor(
        Spec(std::string("batch: {size: 16, last: ") + last + "}\n"), 0, 1);
    options.job += last;
    std::thread thread([&] {
      ProducerOptions producing = ProducerFor(40);
      producing.job = options.job;
      Producer producer(producing);
      Put(&producer, 0, 40);
      producer.finish();
    });
    Reader reader(options);
    const Course course = RunToTheEnd(reader);
    thread.join();
    Rows all;
    Append(course.taken, &all);
    EXPECT_EQ(all.size(), rows) << last;
    EXPECT_EQ(course.epoch_ends, 1u);
  }
}

TEST_F(ProducerTest, AStreamWithoutRowsIsOverAtOnce) {
  std::thread producer([&] { Produce(0, 0, 1); });
  Reader reader(OptionsFor(Spec("batch: {size: 16}\n"), 0, 1));
  const Course course = RunToTheEnd(reader);
  producer.join();
  EXPECT_TRUE(course.taken.empty());
  EXPECT_EQ(course.code, 0) << course.error;
}

TEST_F(ProducerTest, EveryModeGivesEachRowOnce) {
  for (const char* mode : {"split", "dynamic", "broadcast"}) {
    std::vector<Options> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      Options options = OptionsFor(Spec("batch: {size: 10}\n"), rank, 3);
      options.delivery = mode;
      options.job += mode;
      ranks.push_back(options);
    }
    std::thread thread([&] {
      ProducerOptions options = ProducerFor(9);
      options.job = ranks[0].job;
      Producer producer(options);
      for (int64_t at = 0; at < 1000; at += 8) Put(&producer, at, 8);
      producer.finish();
    });
    const std::vector<Course> courses = RunAll(ranks);
    thread.join();
    Rows rows;
    for (const Course& course : courses) {
      EXPECT_EQ(course.code, 0) << mode << ": " << course.error;
      Append(course.taken, &rows);
    }
    const int times = std::string(mode) == "broadcast" ? 3 : 1;
    EXPECT_EQ(Sorted(rows), Numbers(1000, times)) << mode;
  }
}

TEST_F(ProducerTest, SeveralProducersFeedOneJob) {
  constexpr int kProducers = 4;
  constexpr int64_t kEach = 2000;
  std::vector<std::thread> producers;
  for (int i = 0; i < kProducers; ++i) {
    producers.emplace_back(
        [&, i] { Produce(i * kEach, (i + 1) * kEach, 1 + 13 * i); });
  }
  const std::string spec =
      Spec("batch: {size: 64}\n", ", producers: " + std::to_string(kProducers));
  const std::vector<Course> courses =
      RunAll({OptionsFor(spec, 0, 2), OptionsFor(spec, 1, 2)}, 2);
  for (std::thread& thread : producers) thread.join();
  EXPECT_EQ(Sorted(AllRows(courses)), Numbers(kProducers * kEach));
}

TEST_F(ProducerTest, RowsGoThroughTheMap) {
  const std::string spec =
      "dataset: images\n"
      "source: {stream: {features: {image: {dtype: uint8, shape: [2, 2, 3]}, "
      "label: {dtype: int64, shape: []}}}}\n"
      "map:\n  - cast: {dtype: float32, layout: chw}\n"
      "batch: {size: 4}\n";
  std::thread thread([&] {
    ProducerOptions options = ProducerFor(5);
    options.features = {{"image", PENSTOCK_UINT8, {2, 2, 3}},
                        {"label", PENSTOCK_INT64, {}}};
    Producer producer(options);
    for (int put = 0; put < 3; ++put) {
      producer.reserve(5);
      for (int i = 0; i < 60; ++i) {
        producer.data<uint8_t>(0)[i] = static_cast<uint8_t>(put * 60 + i);
      }
      for (int i = 0; i < 5; ++i) producer.data<int64_t>(1)[i] = put * 5 + i;
      producer.put(5);
    }
    producer.finish();
  });
  Reader reader(OptionsFor(spec, 0, 1));
  Batch batch;
  int64_t row = 0;
  while (reader.next(&batch) == Reader::Result::kBatch) {
    const auto images = batch.get<float>("image");
    for (uint64_t i = 0; i < batch.rows(); ++i, ++row) {
      EXPECT_EQ(batch.get<int64_t>("label")[i], row);
      EXPECT_EQ(batch.ids()[i], row);
      for (int64_t value = 0; value < 12; ++value) {
        // Pixel and channel of the source, channels first here.
        const int64_t from = value % 4 * 3 + value / 4;
        EXPECT_EQ(images[i * 12 + value],
                  static_cast<float>((row * 12 + from) % 256));
      }
    }
  }
  thread.join();
  EXPECT_EQ(row, 15);
}

// ---- death

// A producer in its own process, which is killed.
pid_t ForkProducer(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    for (;;) pause();
  }
  return pid;
}
void Kill(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST_F(ProducerTest, WhatAKilledProducerPutIsDeliveredAndNothingElse) {
  const pid_t first = ForkProducer([&] {
    Producer producer(ProducerFor(10));
    Put(&producer, 0, 10);
    Put(&producer, 10, 10);
    producer.reserve(10);
    std::fill_n(producer.data<int64_t>(0), 10, -1);
    for (;;) pause();
  });
  Reader reader(OptionsFor(Spec("batch: {size: 8}\n"), 0, 1));
  WaitUntil("rows put", [&] {
    const nlohmann::json job = JobStatus(
        testing::UnitTest::GetInstance()->current_test_info()->name());
    return job.is_object() && job.at("rows_put") == 20;
  });
  Kill(first);
  WaitUntil("it is gone", [&] {
    return JobStatus(
               testing::UnitTest::GetInstance()->current_test_info()->name())
               .at("producers_at_work") == 0;
  });
  // Not the end: the job waits for a replacement.
  std::thread second([&] { Produce(20, 25, 5); });
  const Course course = RunToTheEnd(reader);
  second.join();
  EXPECT_EQ(course.code, 0) << course.error;
  Rows rows;
  Append(course.taken, &rows);
  EXPECT_EQ(rows, Numbers(25));
}

TEST_F(ProducerTest, StatusListsProducers) {
  const std::string job =
      testing::UnitTest::GetInstance()->current_test_info()->name();
  const pid_t puts_much = ForkProducer([&] {
    Producer producer(ProducerFor(10));
    for (int64_t row = 0;; row += 10) Put(&producer, row, 10);
  });
  Reader reader(OptionsFor(Spec("batch: {size: 8}\n"), 0, 1));
  nlohmann::json listed;
  WaitUntil("one waits for room", [&] {
    const nlohmann::json status = JobStatus(job);
    if (!status.is_object() || status.at("producers").empty()) return false;
    listed = status.at("producers").at(0);
    return listed.at("waits_for_room").get<bool>();
  });
  EXPECT_EQ(listed.at("producer"), 0);
  EXPECT_EQ(listed.at("pid"), puts_much);
  EXPECT_EQ(listed.at("state"), "waits for room");
  EXPECT_GT(listed.at("rows_put"), 8);
  EXPECT_EQ(listed.at("rows_put"), listed.at("rows_kept"));
  EXPECT_LT(listed.at("room_rows"), 10);
  EXPECT_GT(listed.at("memory_bytes"), 0);
  const uint64_t put = listed.at("rows_put");
  // The ranks go on, and so does the producer.
  WaitUntil("it has put more", [&] {
    Batch batch;
    EXPECT_EQ(reader.next(&batch), Reader::Result::kBatch);
    return JobStatus(job).at("producers").at(0).at("rows_put") > put;
  });
  Kill(puts_much);
  WaitUntil("it is gone, and rows of it are here", [&] {
    const nlohmann::json status = JobStatus(job);
    return status.at("producers_at_work") == 0 &&
           status.at("producers").at(0).at("state") == "gone";
  });
  EXPECT_FALSE(JobStatus(job).at("producers").at(0).contains("pid"));
}

TEST_F(ProducerTest, MemoryForRowsThatAreHeldIsPromisedBeforeItIsUsed) {
  const Options options = OptionsFor(Spec("batch: {size: 4096}\n"), 0, 1);
  uint64_t needed = 0;
  {
    Reader reader(options);
    const nlohmann::json job = JobStatus(options.job);
    needed = job.at("memory_bytes");
    EXPECT_EQ(Ask({{"op", "status"}}).at("broker").at("memory_bytes"), needed);
    // Twice the rows of all slots.
    EXPECT_GE(job.at("retained_bytes"),
              2 * 4096 * sizeof(int64_t) *
                  job.at("slots").at("free").get<uint64_t>());
  }
  const auto attach_with = [&](uint64_t limit) {
    const BrokerProcess broker({"--memory-limit", std::to_string(limit)});
    Options there = options;
    there.socket = broker.socket();
    return AttachError(there);
  };
  EXPECT_EQ(attach_with(needed), "");
  EXPECT_THAT(attach_with(needed - 1),
              HasSubstr("for rows of the stream whose batches are held"));
}

TEST_F(ProducerTest, RanksAreToldWhenNobodyPutsAnything) {
  Options options = OptionsFor(Spec("batch: {size: 8}\n"), 0, 1);
  options.wait_s = 0.5;
  Reader reader(options);
  const Course course = RunToTheEnd(reader);
  EXPECT_EQ(course.code, PENSTOCK_DEADLINE_EXCEEDED);
  EXPECT_THAT(course.error, HasSubstr("no producer has been at work"));
}

TEST_F(ProducerTest, AProducerThatFailsTellsTheRanksWhy) {
  std::thread thread([&] {
    Producer producer(ProducerFor(4));
    Put(&producer, 0, 4);
    producer.fail("the simulator diverged");
  });
  Reader reader(OptionsFor(Spec("batch: {size: 8}\n"), 0, 1));
  const Course course = RunToTheEnd(reader);
  thread.join();
  EXPECT_EQ(course.code, PENSTOCK_ABORTED);
  EXPECT_THAT(course.error, HasSubstr("the simulator diverged"));
}

TEST_F(ProducerTest, AProducerIsToldWhenNobodyTakesItsRows) {
  auto reader =
      std::make_unique<Reader>(OptionsFor(Spec("batch: {size: 8}\n"), 0, 1));
  Producer producer(ProducerFor(8));
  Put(&producer, 0, 8);
  reader.reset();
  const Error error = ErrorOf([&] {
    for (;;) Put(&producer, 0, 8);
  });
  EXPECT_EQ(error.code(), PENSTOCK_ABORTED);
  EXPECT_THAT(error.what(), HasSubstr("is over"));
}

TEST_F(ProducerTest, ABrokerThatKnowsNothingOfTheStreamSaysSo) {
  Reader reader(OptionsFor(Spec("batch: {size: 8}\n"), 0, 1));
  Producer producer(ProducerFor(8));
  ProducerOptions options = ProducerFor(8);
  options.reconnect_s = -1;
  Producer impatient(options);
  broker_.Stop(SIGKILL);
  const Error at_once = ErrorOf([&] {
    for (;;) Put(&impatient, 0, 8);
  });
  EXPECT_EQ(at_once.code(), PENSTOCK_UNAVAILABLE);
  broker_.Start();
  const Course course = RunToTheEnd(reader);
  EXPECT_EQ(course.code, PENSTOCK_DATA_LOSS);
  EXPECT_THAT(course.error, HasSubstr("begin ranks and producers at a state"));
  const Error error = ErrorOf([&] {
    for (;;) Put(&producer, 0, 8);
  });
  EXPECT_EQ(error.code(), PENSTOCK_DATA_LOSS);
  EXPECT_THAT(error.what(), HasSubstr("at a state"));
}

// ---- room

TEST_F(ProducerTest, NoMoreIsPutThanRanksAreBehind) {
  Reader reader(
      OptionsFor(Spec("batch: {size: 8}\nprefetch: 1\nhold: 1\n"), 0, 1));
  ProducerOptions options = ProducerFor(8);
  options.timeout_s = 0.3;
  Producer producer(options);
  int64_t next = 0;
  const auto put_until_full = [&] {
    const Error error = ErrorOf([&] {
      for (;; next += 8) Put(&producer, next, 8);
    });
    EXPECT_EQ(error.code(), PENSTOCK_DEADLINE_EXCEEDED) << error.what();
  };
  put_until_full();
  // Two batches in slots, one being assembled, two puts.
  EXPECT_EQ(next, 40);
  std::vector<Taken> taken;
  Batch batch;
  // The rows of a held batch are kept: it may have to be redone.
  ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
  taken.push_back(TakenOf(reader, batch));
  put_until_full();
  EXPECT_EQ(next, 40);
  batch.release();
  put_until_full();
  EXPECT_EQ(next, 48);
  producer.finish();
  for (const Taken& each : RunToTheEnd(reader).taken) taken.push_back(each);
  Rows rows;
  Append(taken, &rows);
  EXPECT_EQ(rows, Numbers(48));
}

TEST_F(ProducerTest, ABatchThatIsHeldForLongHoldsUpNobody) {
  for (const char* mode : {"dynamic", "broadcast"}) {
    std::vector<Options> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      Options options =
          OptionsFor(Spec("batch: {size: 4}\nhold: 3\n"), rank, 2);
      options.delivery = mode;
      options.job += mode;
      ranks.push_back(options);
    }
    std::thread thread([&] {
      ProducerOptions options = ProducerFor(5);
      options.job = ranks[0].job;
      Producer producer(options);
      for (int64_t at = 0; at < 2000; at += 5) Put(&producer, at, 5);
      producer.finish();
    });
    std::vector<Course> courses(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Reader reader(ranks[rank]);
        // Held to the end of the data, while all ranks go on.
        Batch first;
        if (reader.next(&first) == Reader::Result::kBatch) {
          courses[rank] = RunToTheEnd(reader);
          courses[rank].taken.push_back(TakenOf(reader, first));
        }
      });
    }
    for (std::thread& each : threads) each.join();
    thread.join();
    Rows rows;
    for (const Course& course : courses) {
      EXPECT_EQ(course.code, 0) << mode << ": " << course.error;
      Append(course.taken, &rows);
    }
    EXPECT_EQ(Sorted(rows),
              Numbers(2000, mode == std::string("dynamic") ? 1 : 2))
        << mode;
  }
}

TEST_F(ProducerTest, PutsOfAnySizeGoRoundTheRing) {
  Reader reader(OptionsFor(Spec("batch: {size: 5}\n"), 0, 1));
  std::thread thread([&] {
    Producer producer(ProducerFor(11));
    int64_t next = 0;
    for (uint64_t i = 0; next < 20'000; ++i) {
      const uint64_t rows = 1 + i * 7 % 11;
      // More is reserved than put, also at the end of the ring.
      producer.reserve(11);
      std::iota(producer.data<int64_t>(0), producer.data<int64_t>(0) + 11,
                next);
      producer.put(rows);
      next += static_cast<int64_t>(rows);
    }
    producer.finish();
  });
  const Course course = RunToTheEnd(reader, 2);
  thread.join();
  EXPECT_EQ(course.code, 0) << course.error;
  Rows rows;
  Append(course.taken, &rows);
  EXPECT_EQ(rows, Numbers(static_cast<int64_t>(rows.size())));
  EXPECT_GE(rows.size(), 20'000u);
}

// ---- resume

TEST_F(ProducerTest, AJobResumesWhereItsProducerGoesOn) {
  std::string state;
  {
    Reader reader(OptionsFor(Spec("batch: {size: 8}\n"), 0, 1));
    Producer producer(ProducerFor(8));
    for (int64_t at = 0; at < 24; at += 8) Put(&producer, at, 8);
    Batch batch;
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
    }
    state = reader.state();
  }
  Options options = OptionsFor(Spec("batch: {size: 8}\n"), 0, 1);
  options.state = state;
  Reader reader(options);
  Producer producer(ProducerFor(8));
  EXPECT_EQ(producer.next_row(), 16u);
  Put(&producer, 16, 8);
  producer.finish();
  const Course course = RunToTheEnd(reader);
  ASSERT_EQ(course.taken.size(), 1u);
  EXPECT_EQ(course.taken[0].rows, (Rows{16, 17, 18, 19, 20, 21, 22, 23}));
}

// ---- bad use

TEST_F(ProducerTest, WhatCannotBeIsRefusedWithAWayOut) {
  Reader numbers(OptionsFor(Spec("batch: {size: 8}\n"), 0, 1));
  ProducerOptions options = ProducerFor(8);
  options.features = {{"value", PENSTOCK_INT32, {}}};
  EXPECT_THAT(ErrorOf([&] { Producer{options}; }).what(),
              HasSubstr("wants rows of value int64"));
  options = ProducerFor(0);
  EXPECT_THAT(ErrorOf([&] { Producer{options}; }).what(),
              HasSubstr("puts of 0 rows"));
  options = ProducerFor(8);
  options.features.clear();
  EXPECT_THAT(ErrorOf([&] { Producer{options}; }).what(),
              HasSubstr("without features"));
  options = ProducerFor(8);
  options.job = "nobody's";
  options.timeout_s = 0.2;
  EXPECT_THAT(ErrorOf([&] { Producer{options}; }).what(),
              HasSubstr("no rank has attached to job 'nobody's'"));
  Options range = OptionsFor(RangeSpec("8", "batch: {size: 8}\n"), 0, 1);
  range.job = "range";
  Reader of_range(range);
  options = ProducerFor(8);
  options.job = "range";
  EXPECT_THAT(ErrorOf([&] { Producer{options}; }).what(),
              HasSubstr("is not a `stream`"));
  Producer producer(ProducerFor(8));
  EXPECT_THAT(ErrorOf([&] { producer.put(1); }).what(),
              HasSubstr("0 are reserved"));
  EXPECT_THAT(ErrorOf([&] { producer.reserve(9); }).what(),
              HasSubstr("wanted 1 to 8"));
  producer.reserve(2);
  EXPECT_EQ(producer.data<int64_t>(1), nullptr);
  EXPECT_THAT(ErrorOf([&] { producer.put(3); }).what(),
              HasSubstr("2 are reserved"));
  producer.finish();
  EXPECT_THAT(ErrorOf([&] { producer.reserve(1); }).what(),
              HasSubstr("has finished"));
  EXPECT_THAT(ErrorOf([&] { Producer{ProducerFor(8)}; }).what(),
              HasSubstr("over"));
}

TEST_F(ProducerTest, AStreamHasNoOrderButItsOwn) {
  for (const auto& [rest, why] :
       {std::pair("shuffle: {seed: 1}\n", "shuffle there"),
        std::pair("epochs: 2\n", "comes once"),
        std::pair("steps_per_epoch: 3\n", "as long as its producers"),
        std::pair("on_error: skip\n", "none can be unreadable")}) {
    EXPECT_THAT(AttachError(OptionsFor(
                    Spec(std::string("batch: {size: 8}\n") + rest), 0, 1)),
                HasSubstr(why));
  }
  Options options = OptionsFor(Spec("batch: {size: 8}\n"), 0, 1);
  options.delivery = "independent";
  EXPECT_THAT(AttachError(options), HasSubstr("`broadcast`"));
}

TEST_F(ProducerTest, AForkedChildCannotPut) {
  Reader reader(OptionsFor(Spec("batch: {size: 8}\n"), 0, 1));
  Producer producer(ProducerFor(8));
  producer.reserve(8);
  std::iota(producer.data<int64_t>(0), producer.data<int64_t>(0) + 8, 0);
  const pid_t child = fork();
  if (child == 0) {
    producer.data<int64_t>(0)[0] = -1;
    _exit(ErrorOf([&] { producer.put(8); }).code() ==
                  PENSTOCK_FAILED_PRECONDITION
              ? 0
              : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  producer.put(8);
  producer.finish();
  const Course course = RunToTheEnd(reader);
  ASSERT_EQ(course.taken.size(), 1u);
  EXPECT_EQ(course.taken[0].rows, Numbers(8));
}

// A producer's messages are untrusted, and so are its writes to its memory.
class HostileProducerTest : public ProducerTest {
 protected:
  void SetUp() override {
    reader_ =
        std::make_unique<Reader>(OptionsFor(Spec("batch: {size: 8}\n"), 0, 1));
    StatusOr<Fd> socket = ConnectControl(broker_.socket());
    ASSERT_TRUE(socket.ok());
    socket_ = *std::move(socket);
    produce_ = {
        {"op", "produce"},
        {"job", testing::UnitTest::GetInstance()->current_test_info()->name()},
        {"features", ElementSpecToJson({{"value", DType::kInt64, {}}})},
        {"rows", 8}};
    StatusOr<Message> answer = Send(produce_);
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    ring_rows_ = answer->json.at("ring_rows").get<uint64_t>();
    memory_ = std::move(answer->fds.at(0));
  }
  StatusOr<Message> Send(nlohmann::json request) {
    return Request(socket_.get(), std::move(request));
  }
  std::unique_ptr<Reader> reader_;
  Fd socket_;
  Fd memory_;
  nlohmann::json produce_;
  uint64_t ring_rows_ = 0;
};

TEST_F(HostileProducerTest, PutsThatCannotBeAreRefused) {
  for (const auto& [ring_position, rows] :
       std::vector<std::pair<uint64_t, uint64_t>>{{0, 9},
                                                  {1, 8},
                                                  {ring_rows_, 8},
                                                  {ring_rows_ * 1000, 8},
                                                  {UINT64_MAX / 2, 8}}) {
    StatusOr<Fd> socket = ConnectControl(broker_.socket());
    ASSERT_TRUE(socket.ok());
    ASSERT_TRUE(Request(socket->get(), produce_).ok());
    EXPECT_FALSE(
        Request(socket->get(),
                {{"op", "put"}, {"place", ring_position}, {"rows", rows}})
            .ok());
    // It is no producer any more: no later message counts, least of all a
    // finish.
    EXPECT_FALSE(Request(socket->get(), {{"op", "finish"}}).ok());
  }
  EXPECT_FALSE(Send({{"op", "put"}, {"place", 0}, {"rows", 0}}).ok());
  EXPECT_FALSE(Send({{"op", "put"}, {"place", -1}, {"rows", 1}}).ok());
  EXPECT_FALSE(Send({{"op", "put"}}).ok());
  // More rows than fit.
  uint64_t ring_position = 0;
  while (Send({{"op", "put"}, {"place", ring_position}, {"rows", 1}}).ok()) {
    ASSERT_LE(++ring_position, ring_rows_);
  }
  EXPECT_EQ(ring_position, ring_rows_);
  EXPECT_TRUE(Ask({{"op", "ping"}}).at("ok"));
}

TEST_F(HostileProducerTest, ProducersThatComeAndGoAreBounded) {
  // Each leaves a row, and so its memory, behind.
  ASSERT_TRUE(Send({{"op", "put"}, {"place", 0}, {"rows", 1}}).ok());
  uint32_t came = 1;
  for (;; ++came) {
    ASSERT_LE(came, kProducersMax);
    StatusOr<Fd> socket = ConnectControl(broker_.socket());
    ASSERT_TRUE(socket.ok());
    const Status refused = Request(socket->get(), produce_).status();
    if (!refused.ok()) {
      EXPECT_THAT(refused.message(), HasSubstr("the limit of"));
      break;
    }
    ASSERT_TRUE(
        Request(socket->get(), {{"op", "put"}, {"place", 0}, {"rows", 1}})
            .ok());
  }
  EXPECT_EQ(came, kProducersMax);
}

TEST_F(HostileProducerTest, ItsMemoryCannotBeTakenAway) {
  EXPECT_NE(ftruncate(memory_.get(), 0), 0);
  EXPECT_NE(ftruncate(memory_.get(), 1 << 30), 0);
  // Never written: zeros.
  ASSERT_TRUE(Send({{"op", "put"}, {"place", 0}, {"rows", 8}}).ok());
  Batch batch;
  ASSERT_EQ(reader_->next(&batch), Reader::Result::kBatch);
  EXPECT_EQ(TakenOf(*reader_, batch).rows, Rows(8, 0));
}

TEST_F(HostileProducerTest, ItIsNothingButAProducer) {
  EXPECT_FALSE(Send({{"op", "produce"}, {"job", "x"}, {"rows", 1}}).ok());
  EXPECT_TRUE(Send({{"op", "finish"}}).ok());
  EXPECT_FALSE(Send({{"op", "put"}, {"place", 0}, {"rows", 1}}).ok());
  EXPECT_FALSE(Send({{"op", "finish"}}).ok());
}

}  // namespace penstock::producer_test
