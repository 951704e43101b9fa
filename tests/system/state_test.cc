// Promise: a trainer that keeps state() in its checkpoint continues with
// exactly the remaining batches, with any number of ranks, and only with the
// same data; a live reset loses and repeats nothing. Method: the text of states
// alone; then a penstockd process, runs that are cut at every step and resumed,
// against one that was not.
#include <signal.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/job_state.h"
#include "common/message.h"
#include "common/segment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::state_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- its text

JobState SomeState() {
  JobState state;
  state.dataset = "imagenet \"train\"";
  state.delivery = DeliveryMode::kDynamic;
  state.records = 1'281'167;
  state.seed = UINT64_MAX;
  state.shuffle = JobState::Shuffle{42, false};
  state.epoch = 3;
  state.row = 409'600;
  state.owed = {{3, 2048, 512, true}, {2, 0, 1, false}};
  return state;
}

// A list of one element: braces alone may mean the element itself.
nlohmann::json OneOwed(const nlohmann::json& owed) {
  return nlohmann::json::array({owed});
}

TEST(JobStateTest, TextAndBackIsTheSame) {
  JobState without = SomeState();
  without.shuffle.reset();
  without.owed.clear();
  JobState sharded = SomeState();
  sharded.shards = JobState::Shards{JobState::kShardsMax, 1 << 20};
  for (const JobState& state : {SomeState(), without, sharded, JobState{}}) {
    const auto back = ParseJobState(JobStateToJson(state).dump());
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(*back, state);
  }
}

TEST(JobStateTest, EveryWrongValueIsRefusedByTheNameOfItsKey) {
  const nlohmann::json good = JobStateToJson(SomeState());
  const nlohmann::json wrong_number[] = {
      -1, 1.5, 1e30, "1", true, nullptr, nlohmann::json::array()};
  const auto expect_refused = [](const nlohmann::json& json, const char* key) {
    const auto state = ParseJobState(json.dump());
    ASSERT_FALSE(state.ok()) << json;
    EXPECT_EQ(state.status().code(), StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(state.status().message(), HasSubstr(key)) << json;
  };
  for (const auto& [key, value] : good.items()) {
    nlohmann::json json = good;
    json.erase(key);
    expect_refused(json, key.c_str());
  }
  for (const char* key : {"records", "seed", "epoch", "row"}) {
    for (const nlohmann::json& wrong : wrong_number) {
      nlohmann::json json = good;
      json[key] = wrong;
      expect_refused(json, key);
    }
  }
  for (const nlohmann::json& wrong : wrong_number) {
    for (const char* key : {"dataset", "delivery"}) {
      if (wrong.is_string() && key == std::string("dataset")) continue;
      nlohmann::json json = good;
      json[key] = wrong;
      expect_refused(json, key);
    }
    nlohmann::json json = good;
    json["shuffle"]["seed"] = wrong;
    expect_refused(json, "seed");
    json = good;
    json["owed"] = wrong;
    if (!wrong.is_array()) expect_refused(json, "owed");
    json["owed"] = nlohmann::json::array({wrong});
    expect_refused(json, "owed");
    for (int i = 0; i < 3; ++i) {
      json["owed"] = OneOwed({3, 2048, 512, true});
      json["owed"][0][i] = wrong;
      expect_refused(json, "owed");
    }
  }
  nlohmann::json json = good;
  json["owed"] = OneOwed({3, 2048, 0, true});
  expect_refused(json, "1 or more rows");
  json = good;
  json["delivery"] = "splits";
  expect_refused(json, "delivery");
  json = good;
  json["shuffle"] = 42;
  expect_refused(json, "shuffle");
  json["shuffle"] = {{"seed", 42}};
  expect_refused(json, "each_epoch");
  json["shuffle"] = {{"seed", 42}, {"each_epoch", 1}};
  expect_refused(json, "each_epoch");
  json = good;
  json["owed"] = OneOwed({3, 2048, 512});
  expect_refused(json, "owed");
  json["owed"] = OneOwed({3, 2048, 512, true, 0});
  expect_refused(json, "owed");
  json["owed"] = OneOwed({3, 2048, 512, 1});
  expect_refused(json, "owed");
  json["owed"] = {{3, 2048, 512, true}, {3, 2040, 9, true}};
  expect_refused(json, "owed");
  json["owed"] = nlohmann::json::array();
  for (size_t row = 0; row <= JobState::kOwedMax; ++row) {
    json["owed"].push_back({0, row, 1, true});
  }
  expect_refused(json, "owed");
  json["owed"].erase(0);
  EXPECT_TRUE(ParseJobState(json.dump()).ok());
}

TEST(JobStateTest, WrongShardsAreRefused) {
  JobState sharded = SomeState();
  sharded.shards = JobState::Shards{2, 8};
  const nlohmann::json good = JobStateToJson(sharded);
  for (const char* key : {"count", "batch"}) {
    for (const nlohmann::json& wrong :
         {nlohmann::json(-1), nlohmann::json(1.5), nlohmann::json("1"),
          nlohmann::json(nullptr)}) {
      nlohmann::json json = good;
      json["shards"][key] = wrong;
      EXPECT_THAT(ParseJobState(json.dump()).status().message(),
                  HasSubstr(key));
    }
  }
  nlohmann::json json = good;
  for (const uint64_t count : {uint64_t{0}, uint64_t{1} << 32}) {
    json["shards"]["count"] = count;
    EXPECT_THAT(ParseJobState(json.dump()).status().message(),
                HasSubstr("a number of ranks"));
  }
  json["shards"] = 2;
  EXPECT_THAT(ParseJobState(json.dump()).status().message(),
              HasSubstr("shards"));
}

TEST(JobStateTest, OtherVersionsAreRefusedAndOtherTextsAreNoState) {
  nlohmann::json json = JobStateToJson(SomeState());
  json["penstock_state"] = 2;
  const auto newer = ParseJobState(json.dump());
  EXPECT_EQ(newer.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(newer.status().message(),
              AllOf(HasSubstr("version 2"), HasSubstr("version 1")));
  const std::string texts[] = {"",
                               "x",
                               "{",
                               "[]",
                               "5",
                               "null",
                               "\"penstock_state\"",
                               "{\"penstock_state\": \"1\"}",
                               "{\"penstock_state\": -1}",
                               std::string(1 << 19, '['),
                               std::string(JobState::kTextBytesMax + 1, ' ')};
  for (const std::string& text : texts) {
    const auto state = ParseJobState(text);
    EXPECT_EQ(state.status().code(), StatusCode::kInvalidArgument)
        << text.substr(0, 40);
  }
}

// ---- resume

// The rows of a step over all ranks, in the order of the ranks.
struct GlobalBatch {
  uint64_t epoch = 0;
  Rows rows;
  bool operator==(const GlobalBatch&) const = default;
};
void PrintTo(const GlobalBatch& batch, std::ostream* out) {
  *out << "epoch " << batch.epoch << " " << testing::PrintToString(batch.rows);
}
using Batches = std::vector<GlobalBatch>;

class StateTest : public DeliveryTest {
 protected:
  Options OptionsAt(const std::string& spec, int rank, int world_size,
                    const std::string& state) {
    Options options = OptionsFor(spec, rank, world_size);
    options.state = state;
    return options;
  }

  // Takes all that is left from the state on, by a trainer's loops. Expects
  // that every rank sees the same steps and epochs.
  Batches RunFrom(const std::string& spec, int world_size,
                  const std::string& state) {
    std::vector<Batches> shares(world_size);
    std::vector<std::vector<size_t>> epochs(world_size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          Reader reader(OptionsAt(spec, rank, world_size, state));
          uint64_t expected = reader.epoch();
          for (Epoch epoch : reader.epochs()) {
            size_t steps = 0;
            for (Batch& batch : epoch) {
              EXPECT_EQ(batch.epoch(), expected);
              shares[rank].push_back(
                  {batch.epoch(), TakenOf(reader, batch).rows});
              ++steps;
            }
            epochs[rank].push_back(steps);
            ++expected;
          }
          EXPECT_EQ(reader.epoch(), reader.epoch_count());
        } catch (const Error& error) {
          ADD_FAILURE() << error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    Batches run = shares[0];
    for (int rank = 1; rank < world_size; ++rank) {
      EXPECT_EQ(shares[rank].size(), run.size());
      EXPECT_EQ(epochs[rank], epochs[0]);
      if (shares[rank].size() != run.size()) return {};
      for (size_t i = 0; i < run.size(); ++i) {
        const Rows& rows = shares[rank][i].rows;
        run[i].rows.insert(run[i].rows.end(), rows.begin(), rows.end());
      }
    }
    for (const size_t steps : epochs[0]) EXPECT_GT(steps, 0u);
    return run;
  }

  // States of a run from the beginning, before each step and at the end.
  // Expects the same from all ranks.
  std::vector<std::string> StatesOf(const std::string& spec, int world_size) {
    std::vector<std::unique_ptr<Reader>> readers;
    for (int rank = 0; rank < world_size; ++rank) {
      readers.push_back(
          std::make_unique<Reader>(OptionsFor(spec, rank, world_size)));
    }
    std::vector<std::string> states = {readers[0]->state()};
    for (bool over = false; !over;) {
      std::string state;
      for (const auto& reader : readers) {
        Batch batch;
        Reader::Result result;
        while ((result = reader->next(&batch)) == Reader::Result::kEndOfEpoch) {
          // The end of an epoch is no step.
          EXPECT_EQ(reader->state(), states.back());
        }
        over = result == Reader::Result::kEndOfData;
        EXPECT_TRUE(state.empty() || reader->state() == state) << state;
        state = reader->state();
      }
      if (over) {
        EXPECT_EQ(state, states.back());
      } else {
        states.push_back(state);
      }
    }
    return states;
  }

  static std::string With(const std::string& state, const std::string& key,
                          const nlohmann::json& value) {
    nlohmann::json json = nlohmann::json::parse(state);
    json[key] = value;
    return json.dump();
  }
};

class ResumeTest : public StateTest,
                   public testing::WithParamInterface<const char*> {};

TEST_P(ResumeTest, FromEveryStepTheSameGlobalBatchesAreLeftWithAnyWorldSize) {
  const std::string spec = RangeSpec("22", GetParam());
  const Batches whole = RunFrom(spec, 1, "");
  ASSERT_GT(whole.size(), 6u);
  for (const int saved_by : {1, 3}) {
    const std::vector<std::string> states = StatesOf(spec, saved_by);
    ASSERT_EQ(states.size(), whole.size() + 1);
    for (size_t step = 0; step < states.size(); ++step) {
      for (const int world_size : {1, 2, 4}) {
        ASSERT_EQ(
            RunFrom(spec, world_size, states[step]),
            Batches(whole.begin() + static_cast<ptrdiff_t>(step), whole.end()))
            << "after " << step << " steps, " << world_size << " ranks";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Specs, ResumeTest,
    testing::Values(
        "batch: {size: 4}\nshuffle: {seed: 9}\nepochs: 2",
        "batch: {size: 4, last: drop}\nshuffle: {seed: 9}\nepochs: 2",
        "batch: {size: 5}\nshuffle: {seed: 9, each_epoch: false}\nepochs: 2",
        "batch: {size: 4}\nshuffle: {seed: 3}\nsteps_per_epoch: 4\nepochs: 2",
        "batch: {size: 5}\nshuffle: {seed: 3}\nsteps_per_epoch: 7\nepochs: 2"));

// Not only at a step: the batch size may differ, or a trainer may count rows.
TEST_F(StateTest, ResumesAtAnyRow) {
  const std::string spec =
      RangeSpec("10", "batch: {size: 4}\nshuffle: {seed: 9}\nepochs: 2");
  Rows order;
  for (const GlobalBatch& batch : RunFrom(spec, 1, "")) {
    order.insert(order.end(), batch.rows.begin(), batch.rows.end());
  }
  const std::string beginning = Reader(OptionsFor(spec, 0, 1)).state();
  for (uint64_t row = 0; row <= 20; ++row) {
    const std::string state =
        With(With(beginning, "epoch", row / 10), "row", row % 10);
    Batches expected;
    for (uint64_t at = row; at < 20;) {
      const uint64_t end = std::min(at + 4, (at / 10 + 1) * 10);
      expected.push_back({at / 10,
                          {order.begin() + static_cast<ptrdiff_t>(at),
                           order.begin() + static_cast<ptrdiff_t>(end)}});
      at = end;
    }
    for (const int world_size : {1, 2}) {
      ASSERT_EQ(RunFrom(spec, world_size, state), expected) << "row " << row;
    }
  }
}

TEST_F(StateTest, AnotherBatchSizeGoesOnWithTheSameRows) {
  const auto spec = [](int size) {
    return RangeSpec("30", "batch: {size: " + std::to_string(size) +
                               "}\nshuffle: {seed: 9}");
  };
  Rows order;
  for (const GlobalBatch& batch : RunFrom(spec(4), 1, "")) {
    order.insert(order.end(), batch.rows.begin(), batch.rows.end());
  }
  const std::string state = StatesOf(spec(4), 1)[3];
  Rows rest;
  for (const GlobalBatch& batch : RunFrom(spec(7), 2, state)) {
    rest.insert(rest.end(), batch.rows.begin(), batch.rows.end());
  }
  EXPECT_EQ(rest, Rows(order.begin() + 12, order.end()));
}

TEST_F(StateTest, StateOfOtherDataIsRefusedByTheNameOfWhatDiffers) {
  const std::string spec =
      RangeSpec("10", "batch: {size: 4}\nshuffle: {seed: 9}\nseed: 5");
  const std::string state = Reader(OptionsFor(spec, 0, 1)).state();
  const std::vector<std::pair<std::string, std::string>> others = {
      {With(state, "records", 11), "records: 11 in the state, 10 here"},
      {With(state, "seed", 6), "seed: 6 in the state, 5 here"},
      {With(state, "shuffle", nullptr), "shuffle: none in the state, seed 9"},
      {With(state, "shuffle", {{"seed", 8}, {"each_epoch", true}}),
       "shuffle: seed 8 in the state, seed 9 here"},
      {With(state, "dataset", "letters"), "'letters' in the state, 'numbers'"}};
  for (const auto& [other, message] : others) {
    int code = 0;
    EXPECT_THAT(AttachError(OptionsAt(spec, 0, 1, other), &code),
                HasSubstr(message));
    EXPECT_EQ(code, PENSTOCK_FAILED_PRECONDITION);
  }
  const std::vector<std::pair<std::string, std::string>> impossible = {
      {With(state, "epoch", UINT64_MAX), "epoch"},
      {With(state, "epoch", 2), "position"},
      {With(state, "row", 11), "row 11 of epoch 0: an epoch has 10 rows"},
      {With(state, "owed", OneOwed({0, 8, 3, true})), "owed"},
      {With(state, "owed", OneOwed({UINT64_MAX, 0, 1, true})), "owed"},
      {With(state, "owed", OneOwed({0, 0, UINT64_MAX, true})), "owed"},
      {With(state, "owed", OneOwed({0, 4, 2, true})), "owed"},
      {"{}", "penstock_state"}};
  for (const auto& [other, message] : impossible) {
    int code = 0;
    EXPECT_THAT(AttachError(OptionsAt(spec, 0, 1, other), &code),
                HasSubstr(message));
    EXPECT_EQ(code, PENSTOCK_INVALID_ARGUMENT) << other;
  }
}

// Rows that an epoch had with another batch size or more ranks are valid.
TEST_F(StateTest, RowBeyondAnEpochThatBecameShorterIsTheNextOnesFirst) {
  for (const auto& [batch, row] : std::map<std::string, int>{
           {"batch: {size: 4, last: drop}\nepochs: 2", 9},
           {"batch: {per_rank: 4}\nsteps_per_epoch: 2\nepochs: 2", 12}}) {
    const std::string spec = RangeSpec("10", batch);
    const std::string state = Reader(OptionsFor(spec, 0, 1)).state();
    EXPECT_EQ(RunFrom(spec, 1, With(state, "row", row)),
              RunFrom(spec, 1, With(state, "epoch", 1)));
  }
  const std::string spec =
      RangeSpec("10", "batch: {size: 4}\nsteps_per_epoch: 2");
  const std::string state = Reader(OptionsFor(spec, 0, 1)).state();
  EXPECT_THAT(AttachError(OptionsAt(spec, 0, 1, With(state, "row", 9))),
              HasSubstr("an epoch has 8 rows"));
}

TEST_F(StateTest, OwedRowsComeFirstAndAreMarkedAsTheStateSays) {
  const std::string spec = RangeSpec("20", "batch: {size: 4}\nepochs: 2");
  std::string state = Reader(OptionsFor(spec, 0, 1)).state();
  state = With(With(state, "epoch", 1), "row", 12);
  state = With(state, "owed", {{0, 16, 4, true}, {1, 4, 3, false}});
  std::vector<Options> options;
  for (int rank = 0; rank < 2; ++rank) {
    options.push_back(OptionsAt(spec, rank, 2, state));
  }
  const std::vector<Course> courses = RunAll(options);
  EXPECT_EQ(StepsOf(courses[0].taken),
            SampleSteps({{16, 17}, {4, 5}, {12, 13}, {16, 17}}));
  EXPECT_EQ(StepsOf(courses[1].taken),
            SampleSteps({{18, 19}, {6}, {14, 15}, {18, 19}}));
  for (const Course& course : courses) {
    ASSERT_EQ(course.taken.size(), 4u);
    EXPECT_TRUE(course.taken[0].redelivered);
    EXPECT_FALSE(course.taken[1].redelivered);
    EXPECT_FALSE(course.taken[2].redelivered);
    EXPECT_EQ(course.epoch_ends, 2u);
  }
}

// An epoch whose last rows are owed is not over for a trainer's loops.
TEST_F(StateTest, RowsOwedAtTheVeryEndAreNotMissedByTheLoops) {
  const std::string spec = RangeSpec("20", "batch: {size: 4}");
  std::string state = Reader(OptionsFor(spec, 0, 1)).state();
  state = With(With(state, "epoch", 1), "owed", OneOwed({0, 8, 4, true}));
  EXPECT_EQ(RunFrom(spec, 1, state), Batches({{0, {8, 9, 10, 11}}}));
}

// No earlier row is read.
TEST_F(StateTest, ResumesInTheMiddleOfATrillionRecordsWithTheMemoryOfAFew) {
  const std::string spec =
      "dataset: trillion\nsource: {synthetic: {records: 1000000000000, "
      "features: {x: {dtype: uint8, shape: [8]}}}}\nbatch: {size: 1000}\n"
      "shuffle: {seed: 1}\nepochs: 3";
  std::string state = Reader(OptionsFor(spec, 0, 1)).state();
  state = With(With(state, "epoch", 1), "row", 500'000'000'123);
  std::set<int64_t> ids;
  for (int rank = 0; rank < 2; ++rank) {
    Reader reader(OptionsAt(spec, rank, 2, state));
    for (int step = 0; step < 3; ++step) {
      Batch batch;
      ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
      EXPECT_EQ(batch.epoch(), 1u);
      ids.insert(batch.ids().begin(), batch.ids().end());
    }
    const nlohmann::json after = nlohmann::json::parse(reader.state());
    EXPECT_EQ(after.at("row"), 500'000'003'123u);
    EXPECT_LT(Jobs().at(0).at("memory_bytes"), 64u << 20);
  }
  EXPECT_EQ(ids.size(), 3000u);
  EXPECT_GE(*ids.begin(), 0);
  EXPECT_LT(*ids.rbegin(), 1'000'000'000'000);
}

// ---- incarnations

TEST_F(StateTest, AttachWithAStateFencesTheRanksThatWereThere) {
  const std::string spec = RangeSpec("40", "batch: {size: 4}\nepochs: forever");
  Reader old_first(OptionsFor(spec, 0, 2));
  Reader old_second(OptionsFor(spec, 1, 2));
  Batch held;
  ASSERT_EQ(old_first.next(&held), Reader::Result::kBatch);
  const std::string state = old_first.state();
  // This rank waits in next until it is told.
  std::string error;
  int code = 0;
  std::thread waits([&] {
    const Course course = RunToTheEnd(old_second);
    error = course.error;
    code = course.code;
  });
  Reader first(OptionsAt(spec, 0, 2, state));
  Reader second(OptionsAt(spec, 1, 2, state));
  EXPECT_GT(first.incarnation(), old_first.incarnation());
  EXPECT_EQ(first.incarnation(), second.incarnation());
  waits.join();
  EXPECT_EQ(code, PENSTOCK_ABORTED);
  EXPECT_THAT(error, HasSubstr("newer incarnation"));
  EXPECT_EQ(TakenOf(old_first, held).rows, Rows({0, 1}));
  held.release();
  Batch batch;
  try {
    old_first.next(&batch);
    FAIL() << "a rank that was fenced got a batch";
  } catch (const Error& fenced) {
    EXPECT_EQ(fenced.code(), PENSTOCK_ABORTED);
  }
  ASSERT_EQ(first.next(&batch), Reader::Result::kBatch);
  EXPECT_EQ(TakenOf(first, batch).rows, Rows({4, 5}));
  ASSERT_EQ(second.next(&batch), Reader::Result::kBatch);
  EXPECT_EQ(TakenOf(second, batch).rows, Rows({6, 7}));
}

// Both requests are queued when the broker wakes up: it handles the second
// while it opens the dataset for the first.
TEST_F(StateTest, RanksThatBeginAtDifferentStatesAreRefused) {
  const std::string spec = RangeSpec("40", "batch: {size: 4}");
  const std::string state = Reader(OptionsFor(spec, 0, 2)).state();
  kill(broker_.pid(), SIGSTOP);
  std::vector<OwnedCursor> cursors;
  std::vector<Fd> sockets;
  for (int rank = 0; rank < 2; ++rank) {
    auto cursor = CreateCursor();
    ASSERT_TRUE(cursor.ok());
    auto socket = ConnectControl(broker_.socket());
    ASSERT_TRUE(socket.ok());
    ASSERT_TRUE(
        SendMessage(
            socket->get(),
            {{"penstock", kProtocolVersion},
             {"op", "attach"},
             {"spec", spec},
             {"file", "spec"},
             {"base", "/"},
             {"job", "different"},
             {"rank", rank},
             {"world_size", 2},
             {"local_world_size", 2},
             {"state", nlohmann::json::parse(With(state, "row", 4 * rank))}},
            {cursor->fd.get()})
            .ok());
    cursors.push_back(*std::move(cursor));
    sockets.push_back(*std::move(socket));
  }
  kill(broker_.pid(), SIGCONT);
  std::vector<nlohmann::json> answers;
  for (const Fd& socket : sockets) {
    nlohmann::json answer;
    while (!answer.contains("ok")) {  // a slow opening tells its progress first
      pollfd entry{socket.get(), POLLIN, 0};
      ASSERT_EQ(poll(&entry, 1, 60'000), 1);
      auto message = ReceiveMessage(socket.get());
      ASSERT_TRUE(message.ok() && *message);
      answer = (*message)->json;
    }
    answers.push_back(std::move(answer));
  }
  EXPECT_EQ(answers[0].at("ok"), true) << answers[0];
  EXPECT_EQ(answers[1].at("ok"), false) << answers[1];
  EXPECT_EQ(answers[1].value("code", 0), -PENSTOCK_FAILED_PRECONDITION);
  EXPECT_THAT(answers[1].value("error", ""),
              AllOf(HasSubstr("rank 1"), HasSubstr("another state")));
}

// ---- reset

// As in an elastic trainer: all ranks stop at the same step, agree on the
// state, and the remaining ones go on with new rank numbers.
TEST_F(StateTest, ResetShrinksAndGrowsTheWorldWithoutLosingOrRepeatingARow) {
  const std::string spec =
      RangeSpec("200", "batch: {size: 8}\nshuffle: {seed: 9}\nepochs: 2");
  const Batches whole = RunFrom(spec, 1, "");
  struct Stage {
    std::vector<int> of;  // the participants, by rank
    size_t steps;
  };
  // Four ranks, two of them (renumbered), three of them, a new one.
  const std::vector<Stage> stages = {
      {{0, 1, 2, 3}, 7}, {{3, 1}, 11}, {{1, 0, 3}, 9}, {{4}, 23}};
  size_t begin = 0;
  std::map<int, std::unique_ptr<Reader>> readers;
  std::string state;
  uint64_t incarnation = 0;
  for (const Stage& stage : stages) {
    const int world_size = static_cast<int>(stage.of.size());
    std::vector<SampleSteps> shares(stage.of.size());
    std::vector<std::string> states(stage.of.size());
    std::vector<uint64_t> incarnations(stage.of.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size; ++rank) {
      std::unique_ptr<Reader>& reader = readers[stage.of[rank]];
      threads.emplace_back([&, rank] {
        if (reader == nullptr) {
          reader = std::make_unique<Reader>(
              OptionsAt(spec, rank, world_size, state));
        } else {
          reader->reset(rank, world_size, state);
        }
        EXPECT_EQ(reader->rank(), rank);
        EXPECT_EQ(reader->world_size(), world_size);
        incarnations[rank] = reader->incarnation();
        while (shares[rank].size() < stage.steps) {
          Batch batch;
          const Reader::Result result = reader->next(&batch);
          if (result == Reader::Result::kEndOfEpoch) continue;
          ASSERT_EQ(result, Reader::Result::kBatch);
          EXPECT_FALSE(batch.redelivered());
          shares[rank].push_back(TakenOf(*reader, batch).rows);
        }
        states[rank] = reader->state();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t step = 0; step < stage.steps; ++step) {
      Rows rows;
      for (const SampleSteps& share : shares) {
        rows.insert(rows.end(), share[step].begin(), share[step].end());
      }
      EXPECT_EQ(rows, whole[begin + step].rows) << "step " << begin + step;
    }
    begin += stage.steps;
    for (const std::string& each : states) EXPECT_EQ(each, states[0]);
    for (const uint64_t each : incarnations) EXPECT_EQ(each, incarnations[0]);
    EXPECT_GT(incarnations[0], incarnation);
    incarnation = incarnations[0];
    state = states[0];
  }
  EXPECT_EQ(begin, whole.size());
  Batch none;
  EXPECT_EQ(readers[4]->next(&none), Reader::Result::kEndOfEpoch);
  EXPECT_EQ(readers[4]->next(&none), Reader::Result::kEndOfData);
  // The rank that was left behind is told.
  EXPECT_THROW(
      {
        for (;;) readers[2]->next(&none);
      },
      Error);
}

TEST_F(StateTest, RankThatIsFencedInNextGoesOnAfterItsOwnReset) {
  const std::string spec = RangeSpec("40", "batch: {size: 4}");
  Reader first(OptionsFor(spec, 0, 2));
  Reader second(OptionsFor(spec, 1, 2));
  Batch batch;
  ASSERT_EQ(first.next(&batch), Reader::Result::kBatch);
  const std::string state = first.state();
  first.reset(0, 2, state);
  try {
    while (second.next(&batch) == Reader::Result::kBatch) {
    }
    FAIL() << "not fenced";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), PENSTOCK_ABORTED);
  }
  second.reset(1, 2, state);
  EXPECT_EQ(first.incarnation(), second.incarnation());
  for (Reader* reader : {&first, &second}) {
    const Course course = RunToTheEnd(*reader);
    EXPECT_EQ(course.code, 0) << course.error;
    EXPECT_EQ(course.taken.size(), 9u);
    EXPECT_EQ(course.epoch_ends, 1u);
  }
}

// A trainer that rolls back to an older state repeatedly.
TEST_F(StateTest, BatchHeldOverAResetStaysAsItWasAndItsJobEndsWithIt) {
  const std::string spec =
      RangeSpec("4000", "batch: {size: 4}\nshuffle: {seed: 9}");
  Reader reader(OptionsFor(spec, 0, 1));
  const std::string beginning = reader.state();
  Batch held;
  ASSERT_EQ(reader.next(&held), Reader::Result::kBatch);
  const Rows rows = TakenOf(reader, held).rows;
  for (int round = 0; round < 3; ++round) {
    reader.reset(0, 1, beginning);
    // It counts as held.
    EXPECT_EQ(reader.stats().held, 1u);
    for (int step = 0; step < 20; ++step) {
      Batch batch;
      ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
      EXPECT_EQ(TakenOf(reader, batch).rows == rows, step == 0);
      EXPECT_EQ(TakenOf(reader, held).rows, rows);
    }
  }
  // The first incarnation, because of the held batch, and the last.
  WaitUntil("incarnations without a batch end",
            [&] { return Jobs().size() == 2; });
  held.release();
  EXPECT_EQ(reader.stats().held, 0u);
  WaitUntil("its incarnation ends", [&] { return Jobs().size() == 1; });
}

TEST_F(StateTest, ResetThatIsRefusedSaysWhyAndAnotherMayFollow) {
  const std::string spec = RangeSpec("40", "batch: {size: 4}");
  Reader reader(OptionsFor(spec, 0, 1));
  const std::string state = reader.state();
  for (const auto& [rank, world_size, text] :
       {std::tuple(1, 1, state),
        {-1, 1, state},
        {0, 1, "{}"},
        {0, 1, With(state, "records", 7)}}) {
    EXPECT_THROW(reader.reset(rank, world_size, text), Error);
  }
  reader.reset(0, 1, With(state, "row", 8));
  EXPECT_EQ(RunToTheEnd(reader).taken.size(), 8u);
}

// ---- dynamic

TEST_F(StateTest, StateOfADynamicJobOwesExactlyWhatWasNotReleased) {
  const std::string spec =
      RangeSpec("60", "batch: {size: 2}\nshuffle: {seed: 9}");
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<Reader>> readers;
    for (int rank = 0; rank < 2; ++rank) {
      Options options = OptionsFor(spec, rank, 2);
      options.delivery = "dynamic";
      options.job += std::to_string(round);
      readers.push_back(std::make_unique<Reader>(options));
    }
    Rows released;
    std::vector<Batch> held(2);
    Rows held_rows;
    for (Batch& batch : held) {
      ASSERT_EQ(readers[0]->next(&batch), Reader::Result::kBatch);
      Append({TakenOf(*readers[0], batch)}, &held_rows);
    }
    for (int step = 0; step < 9; ++step) {
      Batch batch;
      ASSERT_EQ(readers[1]->next(&batch), Reader::Result::kBatch);
      Append({TakenOf(*readers[1], batch)}, &released);
    }
    // Either rank may ask, at once: released batches are done.
    const std::string state = readers[round % 2]->state();
    for (Batch& batch : held) batch.release();
    readers.clear();
    Options options = OptionsAt(spec, 0, 1, state);
    options.delivery = "dynamic";
    Reader reader(options);
    const Course course = RunToTheEnd(reader);
    EXPECT_EQ(course.code, 0) << course.error;
    EXPECT_EQ(course.epoch_ends, 1u);
    Rows rows = released;
    Append(course.taken, &rows);
    ASSERT_EQ(Sorted(rows), Numbers(60));
    Rows marked;
    for (const Taken& taken : course.taken) {
      if (taken.redelivered) Append({taken}, &marked);
    }
    for (const int64_t row : held_rows) {
      EXPECT_THAT(marked, testing::Contains(row));
    }
    // And at most one that each rank did not take.
    EXPECT_LE(marked.size(), held_rows.size() + 4);
    // All rows are done.
    const nlohmann::json end = nlohmann::json::parse(reader.state());
    EXPECT_EQ(end.at("epoch"), 1);
    EXPECT_EQ(end.at("row"), 0);
    EXPECT_THAT(end.at("owed"), IsEmpty());
  }
}

// Whichever rank asks, whatever its last batch.
TEST_F(StateTest, StateOfADynamicJobAtItsEndIsTheEndOnEveryRank) {
  const std::string spec = RangeSpec("12", "batch: {size: 2}\nepochs: 2");
  std::vector<std::unique_ptr<Reader>> readers;
  for (int rank = 0; rank < 3; ++rank) {
    Options options = OptionsFor(spec, rank, 3);
    options.delivery = "dynamic";
    readers.push_back(std::make_unique<Reader>(options));
  }
  std::vector<std::thread> threads;
  for (const auto& reader : readers) {
    threads.emplace_back([&reader] { RunToTheEnd(*reader); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& reader : readers) {
    const nlohmann::json end = nlohmann::json::parse(reader->state());
    EXPECT_EQ(end.at("epoch"), 2);
    EXPECT_EQ(end.at("row"), 0);
    EXPECT_THAT(end.at("owed"), IsEmpty());
  }
  const std::string state = readers[0]->state();
  for (const int world_size : {1, 2}) {
    EXPECT_THAT(RunFrom(spec, world_size, state), IsEmpty());
  }
}

// A trainer may change the delivery mode.
TEST_F(StateTest, StateOfADynamicJobIsGoneOnWithInSplit) {
  const std::string spec = RangeSpec("60", "batch: {size: 4}\nepochs: 2");
  Rows rows;
  std::string state;
  {
    Options options = OptionsFor(spec, 0, 1);
    options.delivery = "dynamic";
    Reader reader(options);
    Batch held;
    ASSERT_EQ(reader.next(&held), Reader::Result::kBatch);
    for (int step = 0; step < 5; ++step) {
      Batch batch;
      ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
      Append({TakenOf(reader, batch)}, &rows);
    }
    state = reader.state();
  }
  for (const GlobalBatch& batch : RunFrom(spec, 3, state)) {
    rows.insert(rows.end(), batch.rows.begin(), batch.rows.end());
  }
  EXPECT_EQ(Sorted(rows), Numbers(60, 2));
}

}  // namespace penstock::state_test
