// Promise: the documented examples of tf.data's and tf.distribute's input, by
// number: each rank gets what they say, or something better, which the test
// shows. Method: a penstockd process, and ranks as threads of this one through
// the public C++ API.
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::input_semantics_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class InputSemanticsTest : public DeliveryTest {
 protected:
  static std::string Bytes(const std::vector<int64_t>& values) {
    std::string bytes(values.size() * sizeof(int64_t), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  static std::vector<int64_t> From(int64_t first, int64_t count) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(first + i);
    return values;
  }
  // Files of so many numbers each, counted on from `first`.
  std::string Files(const std::vector<int64_t>& sizes, int64_t first = 0) {
    std::string list;
    for (size_t i = 0; i < sizes.size(); ++i) {
      list += (list.empty() ? "" : ", ") +
              broker_.Write("part-" + std::to_string(i),
                            Bytes(From(first, sizes[i])));
      first += sizes[i];
    }
    return "[" + list + "]";
  }
  static std::string FilesSpec(const std::string& files,
                               const std::string& rest) {
    return "dataset: numbers\nsource: {fixed_length_records: {files: " + files +
           ", features: {value: {dtype: int64, shape: []}}}}\n" + rest;
  }
};

// 1. One consumer gets a range in its order.
TEST_F(InputSemanticsTest, Example01RangeComesInOrder) {
  const Ranks ranks = TakeAll(RangeSpec("10", "batch: {size: 1}"), 1);
  ASSERT_EQ(ranks[0].size(), 10u);
  for (int64_t i = 0; i < 10; ++i) EXPECT_THAT(ranks[0][i], ElementsAre(i));
}

// 2. A global batch is divided over the replicas.
TEST_F(InputSemanticsTest, Example02GlobalBatchIsDividedOverTwoRanks) {
  const std::string spec = RangeSpec("6", "batch: {size: 4}");
  EXPECT_THAT(TakeAll(spec, 1), ElementsAre(SampleSteps{{0, 1, 2, 3}, {4, 5}}));
  EXPECT_THAT(TakeAll(spec, 2),
              ElementsAre(SampleSteps{{0, 1}, {4}}, SampleSteps{{2, 3}, {5}}));
}

// 3. A replica without rows gets a batch of size 0.
TEST_F(InputSemanticsTest, Example03RankWithoutRowsGetsAnEmptyBatch) {
  EXPECT_THAT(TakeAll(RangeSpec("4", "batch: {size: 4}"), 5),
              ElementsAre(SampleSteps{{0}}, SampleSteps{{1}}, SampleSteps{{2}},
                          SampleSteps{{3}}, SampleSteps{{}}));
}

// 4. A batch that the replicas do not divide: tf.distribute cuts ceil(4 / 3)
// rows for each, so that the last has none. Better: the rows present are
// divided, the first ranks get one more, and nobody is idle.
TEST_F(InputSemanticsTest, Example04UnevenBatchGivesTheFirstRanksOneMore) {
  const std::string spec = RangeSpec("8", "batch: {size: 4}");
  EXPECT_THAT(TakeAll(spec, 1),
              ElementsAre(SampleSteps{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_THAT(TakeAll(spec, 3),
              ElementsAre(SampleSteps{{0, 1}, {4, 5}}, SampleSteps{{2}, {6}},
                          SampleSteps{{3}, {7}}));
}

// 5. FILE: whole files belong to one worker. tf.distribute gives 2 + 2 + 1 + 1
// rows of a file of 6 to each. Better: full batches for as long as files last.
TEST_F(InputSemanticsTest, Example05FilesAreDividedOverTheRanks) {
  EXPECT_THAT(
      TakeAll(FilesSpec(Files({6, 6}), "batch: {size: 4}\nshard: file"), 2),
      ElementsAre(SampleSteps{{0, 1}, {2, 3}, {4, 5}},
                  SampleSteps{{6, 7}, {8, 9}, {10, 11}}));
}

// Uneven files: as with tf.distribute steps get smaller, and a rank that has
// run out takes empty batches until nobody has rows. Each row comes once.
TEST_F(InputSemanticsTest, Example05UnevenFilesGiveEmptyBatchesAndEqualSteps) {
  EXPECT_THAT(
      TakeAll(FilesSpec(Files({5, 2, 3}), "batch: {size: 4}\nshard: file"), 2),
      ElementsAre(SampleSteps{{0, 1}, {2, 3}, {4, 7}, {8, 9}},
                  SampleSteps{{5, 6}, {}, {}, {}}));
}

// Better: a state of any step goes on with any number of ranks, in the same
// sequence; file by file as long as there are files for them.
TEST_F(InputSemanticsTest, Example05ShardedFilesResumeWithAnyNumberOfRanks) {
  const std::string spec =
      FilesSpec(Files({5, 9, 4, 1, 6}),
                "batch: {per_rank: 2}\nepochs: 2\nshard: file\n"
                "shuffle: {seed: 3}");
  std::vector<Rows> steps;  // of both ranks together
  std::vector<std::string> states;
  {
    Reader first(OptionsFor(spec, 0, 2));
    Reader second(OptionsFor(spec, 1, 2));
    for (bool more = true; more;) {
      states.push_back(first.state());
      EXPECT_EQ(second.state(), states.back());
      Rows step;
      for (Reader* reader : {&first, &second}) {
        Batch batch;
        Reader::Result result = reader->next(&batch);
        if (result == Reader::Result::kEndOfEpoch) {
          result = reader->next(&batch);
        }
        more = result == Reader::Result::kBatch;
        if (more) Append({TakenOf(*reader, batch)}, &step);
      }
      if (more) steps.push_back(step);
    }
  }
  ASSERT_EQ(steps.size(), 16u);  // 15 rows of the first rank, twice
  for (const size_t from : {size_t{1}, size_t{5}, size_t{9}, size_t{15}}) {
    for (const int ranks : {1, 2, 3}) {
      std::vector<Options> options;
      for (int rank = 0; rank < ranks; ++rank) {
        options.push_back(OptionsFor(spec, rank, ranks));
        options.back().state = states[from];
      }
      const std::vector<Course> courses = RunAll(options);
      for (size_t step = from; step < steps.size(); ++step) {
        Rows rows;
        for (const Course& course : courses) {
          ASSERT_EQ(course.code, 0) << course.error;
          ASSERT_EQ(course.taken.size(), steps.size() - from);
          Append({course.taken[step - from]}, &rows);
        }
        EXPECT_EQ(rows, steps[step]) << ranks << " ranks from step " << from;
      }
    }
  }
  Options other = OptionsFor(
      FilesSpec(Files({5, 9, 4, 1, 6}),
                "batch: {per_rank: 2}\nepochs: 2\nshuffle: {seed: 3}"),
      0, 1);
  other.state = states[3];
  EXPECT_THAT(
      AttachError(other),
      HasSubstr("divided over 2 ranks in batches of 4 in the state, over "
                "any ranks here"));
}

// 6. DATA: one file, divided by rows. Better: tf.distribute's workers each read
// all rows and discard the others'; here every row is made once.
TEST_F(InputSemanticsTest, Example06RowsOfOneFileAreDividedAndReadOnce) {
  const std::string spec =
      FilesSpec(Files({12}), "batch: {size: 4}\nshard: data");
  Reader first(OptionsFor(spec, 0, 2));
  Reader second(OptionsFor(spec, 1, 2));
  EXPECT_EQ(StepsOf(RunToTheEnd(first).taken),
            (SampleSteps{{0, 1}, {4, 5}, {8, 9}}));
  EXPECT_EQ(StepsOf(RunToTheEnd(second).taken),
            (SampleSteps{{2, 3}, {6, 7}, {10, 11}}));
  EXPECT_EQ(broker_.RowsMade(), 12u);
}

// 7. OFF: every worker gets all rows, in batches of its share. Better: they are
// made once for all of them.
TEST_F(InputSemanticsTest, Example07EveryRankGetsEverythingMadeOnce) {
  const std::string spec =
      FilesSpec(Files({12}), "batch: {size: 4}\nshard: off");
  // Held until both are at the end, so that the job is still there.
  auto first = std::make_unique<Reader>(OptionsFor(spec, 0, 2));
  auto second = std::make_unique<Reader>(OptionsFor(spec, 1, 2));
  Course of_second;
  std::thread thread([&] { of_second = RunToTheEnd(*second); });
  const Course of_first = RunToTheEnd(*first);
  thread.join();
  const SampleSteps all = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}};
  EXPECT_EQ(StepsOf(of_first.taken), all);
  EXPECT_EQ(StepsOf(of_second.taken), all);
  EXPECT_EQ(broker_.RowsMade(), 12u);
}

// A share that is no whole number is rounded up; a state goes on with any
// number of ranks.
TEST_F(InputSemanticsTest, Example07OffResumesWithAnyNumberOfRanks) {
  const std::string spec = RangeSpec("12", "batch: {size: 4}\nshard: off");
  EXPECT_THAT(TakeAll(RangeSpec("5", "batch: {size: 4}\nshard: off"), 3),
              ElementsAre(SampleSteps{{0, 1}, {2, 3}, {4}},
                          SampleSteps{{0, 1}, {2, 3}, {4}},
                          SampleSteps{{0, 1}, {2, 3}, {4}}));
  std::string state;
  {
    Reader reader(OptionsFor(spec, 0, 1));
    Batch batch;
    ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
    EXPECT_EQ(batch.rows(), 4u);
    state = reader.state();
  }
  std::vector<Options> options = {OptionsFor(spec, 0, 2),
                                  OptionsFor(spec, 1, 2)};
  for (Options& each : options) each.state = state;
  for (const Course& course : RunAll(options)) {
    EXPECT_EQ(course.code, 0) << course.error;
    EXPECT_EQ(StepsOf(course.taken),
              (SampleSteps{{4, 5}, {6, 7}, {8, 9}, {10, 11}}));
  }
}

// 8. One file, two workers: FILE is an error that names DATA and more files,
// and so is AUTO. Better: AUTO divides the rows. AUTO of what has no files is
// DATA.
TEST_F(InputSemanticsTest, Example08TooFewFilesAreAnErrorOnlyOfFile) {
  const std::string one = Files({4});
  EXPECT_THAT(AttachError(OptionsFor(
                  FilesSpec(one, "batch: {size: 4}\nshard: file"), 0, 2)),
              AllOf(HasSubstr("1 file for 2 ranks"), HasSubstr("shard: data"),
                    HasSubstr("split the data into 2 files or more")));
  EXPECT_THAT(TakeAll(FilesSpec(one, "batch: {size: 4}\nshard: auto"), 2),
              ElementsAre(SampleSteps{{0, 1}}, SampleSteps{{2, 3}}));
  EXPECT_THAT(TakeAll(RangeSpec("4", "batch: {size: 4}\nshard: auto"), 2),
              ElementsAre(SampleSteps{{0, 1}}, SampleSteps{{2, 3}}));
  EXPECT_THAT(AttachError(OptionsFor(
                  RangeSpec("4", "batch: {size: 4}\nshard: file"), 0, 2)),
              AllOf(HasSubstr("no files"), HasSubstr("shard: data")));
}

// A policy that cannot hold is refused with the way out.
TEST_F(InputSemanticsTest, Example08PoliciesThatCannotHoldSayTheWayOut) {
  const std::string files = Files({4, 4});
  Options options =
      OptionsFor(FilesSpec(files, "batch: {size: 4}\nshard: file"), 0, 2);
  options.delivery = "dynamic";
  EXPECT_THAT(AttachError(options),
              AllOf(HasSubstr("shard: file"), HasSubstr("delivery is dynamic"),
                    HasSubstr("leave out one of the two")));
  options.delivery = "split";
  options.on_rank_death = "shrink";
  EXPECT_THAT(AttachError(options), HasSubstr("use wait or fail"));
  Options off =
      OptionsFor(FilesSpec(files, "batch: {size: 4}\nshard: off"), 0, 2);
  off.delivery = "independent";
  EXPECT_THAT(AttachError(off), HasSubstr("delivery is independent"));
  EXPECT_THAT(AttachError(OptionsFor(
                  FilesSpec(files, "batch: {size: 4}\nshard: never"), 0, 1)),
              HasSubstr("known here: auto, file, data, off"));
}

// 9. get_next_as_optional: all replicas take equally many steps, then the end
// is a result and no error.
TEST_F(InputSemanticsTest,
       Example09EndOfDataIsAResultOnEveryRankAfterEqualSteps) {
  std::vector<int> epochs;
  EXPECT_THAT(TakeAll(RangeSpec("9", "batch: {size: 4}"), 2, &epochs),
              ElementsAre(SampleSteps{{0, 1}, {4, 5}, {8}},
                          SampleSteps{{2, 3}, {6, 7}, {}}));
  EXPECT_THAT(epochs, ElementsAre(1, 1));
}

constexpr char kLinearSpec[] = R"(
dataset: linear
source:
  tensors:
    features:
      feature: [[1.0]]
      label: [[1.0]]
    repeat: 100
batch: {size: 16}
)";

// 10. label - 0.3 * feature over 100 repeats of one row: full batches and a
// short one, divided over the replicas; epochs of fixed steps begin anew.
TEST_F(InputSemanticsTest,
       Example10RepeatedTensorsGiveSixFullBatchesAndAShort) {
  Reader reader(OptionsFor(kLinearSpec, 0, 1));
  const std::vector<penstock_feature> element = reader.element_spec();
  ASSERT_EQ(element.size(), 2u);
  for (const penstock_feature& feature : element) {
    EXPECT_EQ(feature.dtype, uint32_t{PENSTOCK_FLOAT32});
    ASSERT_EQ(feature.dimensions, 1u);
    EXPECT_EQ(feature.shape[0], 1);
  }
  std::vector<uint64_t> sizes;
  Batch batch;
  while (reader.next(&batch) == Reader::Result::kBatch) {
    sizes.push_back(batch.rows());
    const auto features = batch.get<float>("feature");
    const auto labels = batch.get<float>("label");
    for (uint64_t i = 0; i < batch.rows(); ++i) {
      EXPECT_FLOAT_EQ(labels[i] - 0.3f * features[i], 0.7f);
    }
  }
  EXPECT_THAT(sizes, ElementsAre(16, 16, 16, 16, 16, 16, 4));
}

TEST_F(InputSemanticsTest,
       Example10RepeatedTensorsOnTwoRanksGiveEightAndEight) {
  Reader first(OptionsFor(kLinearSpec, 0, 2));
  Reader second(OptionsFor(kLinearSpec, 1, 2));
  for (Reader* reader : {&first, &second}) {
    std::vector<uint64_t> sizes;
    Batch batch;
    while (reader->next(&batch) == Reader::Result::kBatch) {
      sizes.push_back(batch.rows());
    }
    EXPECT_THAT(sizes, ElementsAre(8, 8, 8, 8, 8, 8, 2));
  }
}

TEST_F(InputSemanticsTest, Example10TenEpochsOfFiveFixedStepsEachRestart) {
  Reader reader(OptionsFor(
      std::string(kLinearSpec) + "epochs: 10\nsteps_per_epoch: 5\n", 0, 1));
  std::vector<int64_t> first_ids;
  int steps = 0;
  int epochs = 0;
  for (Epoch epoch : reader.epochs()) {
    int in_epoch = 0;
    for (Batch& batch : epoch) {
      if (in_epoch++ == 0) first_ids.push_back(batch.ids()[0]);
      EXPECT_EQ(batch.rows(), 16u);
      ++steps;
    }
    EXPECT_EQ(in_epoch, 5);
    ++epochs;
  }
  EXPECT_EQ(steps, 50);
  EXPECT_EQ(epochs, 10);
  EXPECT_THAT(first_ids, testing::Each(0));
}

// 11. An index per element (enumerate) puts predictions in order, whichever
// replica made them. Better: every batch has the ids, without a step for it.
TEST_F(InputSemanticsTest, Example11SampleIdsPutPredictionsInOrder) {
  std::map<int64_t, int64_t> predictions;
  for (int rank = 0; rank < 3; ++rank) {
    Reader reader(OptionsFor(
        RangeSpec("24", "batch: {size: 6}\nshuffle: {seed: 7}"), rank, 3));
    Batch batch;
    while (reader.next(&batch) == Reader::Result::kBatch) {
      const auto values = batch.get<int64_t>("value");
      for (uint64_t i = 0; i < batch.rows(); ++i) {
        predictions[batch.ids()[i]] = 2 * values[i];
      }
    }
  }
  ASSERT_EQ(predictions.size(), 24u);
  for (const auto& [id, doubled] : predictions) EXPECT_EQ(doubled, 2 * id);
}

// 12. A lookup with the vocabulary a, b, c, d, f over a, c, e: 0 is what is not
// in it.
TEST_F(InputSemanticsTest, Example12LookupGivesNumbersOfTheVocabulary) {
  std::string words;
  for (int i = 0; i < 4; ++i) words += "a\nc\ne\n";
  EXPECT_THAT(
      TakeAll("dataset: words\nsource: {csv: {files: " +
                  broker_.Write("words.csv", "value\n" + words) +
                  ", columns: {value: {max_bytes: 8}}}}\n"
                  "map: [{lookup: {feature: value, vocabulary: [a, b, c, d, "
                  "f]}}]\nbatch: {size: 4}",
              1),
      ElementsAre(SampleSteps{{1, 3, 0, 1}, {3, 0, 1, 3}, {0, 1, 3, 0}}));
}

// 13. A generator of 4 random floats, without end, that stops cleanly. Better:
// it is a process of its own, and its death is no end.
TEST_F(InputSemanticsTest, Example13GeneratorWithoutEndStopsCleanly) {
  const Options options = OptionsFor(
      "dataset: numbers\nsource: {stream: {features: {value: {dtype: float32, "
      "shape: [4]}}}}\nbatch: {size: 3}",
      0, 1);
  int code = 0;
  std::thread generator([&] {
    ProducerOptions producing;
    producing.features = {{"value", PENSTOCK_FLOAT32, {4}}};
    producing.rows = 2;
    producing.socket = broker_.socket();
    producing.job = options.job;
    producing.timeout_s = 60;
    try {
      Producer producer(producing);
      for (int64_t next = 0;; next += 2) {
        producer.reserve(2);
        for (int i = 0; i < 8; ++i) {
          producer.data<float>(0)[i] = static_cast<float>(next * 4 + i);
        }
        producer.put(2);
      }
    } catch (const Error& error) {
      code = error.code();
    }
  });
  {
    Reader reader(options);
    const std::vector<penstock_feature> element = reader.element_spec();
    ASSERT_EQ(element.size(), 1u);
    EXPECT_EQ(element[0].dtype, uint32_t{PENSTOCK_FLOAT32});
    EXPECT_EQ(element[0].dimensions, 1u);
    EXPECT_EQ(element[0].shape[0], 4);
    float expected = 0;
    for (int step = 0; step < 50; ++step) {
      Batch batch;
      ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
      ASSERT_EQ(batch.rows(), 3u);
      for (const float value : batch.get<float>("value")) {
        EXPECT_EQ(value, expected++);
      }
    }
  }
  generator.join();
  EXPECT_EQ(code, PENSTOCK_ABORTED);
}

// 14. take(1).cache().repeat(), the ideal speed of a trainer: identical
// batches, and one read of the source.
TEST_F(InputSemanticsTest, Example14OneBatchIsRepeatedAndTheSourceReadOnce) {
  Options options = OptionsFor(
      RangeSpec("1000", "batch: {size: 8}\nshuffle: {seed: 1}"), 0, 1);
  options.repeat_first = true;
  Reader reader(options);
  Rows first;
  for (int step = 0; step < 500; ++step) {
    Batch batch;
    ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
    const auto values = batch.get<int64_t>("value");
    if (step == 0) first.assign(values.begin(), values.end());
    EXPECT_THAT(Rows(values.begin(), values.end()), first);
  }
  EXPECT_EQ(first.size(), 8u);
  EXPECT_EQ(broker_.RowsMade(), 8u);
}

// 15. Files divided over hosts: each has its own, each record comes `epochs`
// times in all, and no host reads another's files. tf.data does not open them
// at all, so its hosts do not know how many steps the others have. Better: they
// are opened once, for the number of their records; so all ranks take equally
// many steps, and what is in them is never read.
TEST_F(InputSemanticsTest, Example15FilesAreDividedOverHosts) {
  BrokerProcess other;  // the second host's
  const std::vector<int64_t> sizes = {5, 3, 4, 6};
  std::vector<Options> options;
  for (int host = 0; host < 2; ++host) {
    const BrokerProcess& broker = host == 0 ? broker_ : other;
    std::string files;
    int64_t first = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      // Only the size of the other host's files is right.
      const bool own = static_cast<int>(i % 2) == host;
      files += (files.empty() ? "" : ", ") +
               broker.Write("part-" + std::to_string(i),
                            Bytes(own ? From(first, sizes[i])
                                      : std::vector<int64_t>(sizes[i], -1)));
      first += sizes[i];
    }
    options.push_back(
        OptionsFor(FilesSpec("[" + files + "]",
                             "batch: {size: 4}\nepochs: 2\nshuffle: {seed: 1}\n"
                             "shard: file"),
                   host, 2));
    options.back().local_world_size = 1;
    options.back().socket = broker.socket();
  }
  const std::vector<Course> courses = RunAll(options);
  std::map<int64_t, int> times;
  for (int host = 0; host < 2; ++host) {
    ASSERT_EQ(courses[host].code, 0) << courses[host].error;
    EXPECT_EQ(courses[host].taken.size(), 10u);  // 5 of 9 rows, in 2 epochs
    for (const Taken& taken : courses[host].taken) {
      for (const int64_t value : taken.rows) {
        ++times[value];
        const bool first_files = value < 5 || (value >= 8 && value < 12);
        EXPECT_EQ(first_files, host == 0) << value;
      }
    }
  }
  ASSERT_EQ(times.size(), 18u);
  for (const auto& [value, count] : times) EXPECT_EQ(count, 2) << value;
}

}  // namespace penstock::input_semantics_test
