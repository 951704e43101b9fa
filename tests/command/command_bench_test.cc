// Promise: the output of bench, check and peek about a dataset is true, for any
// number of ranks and workers, and an interrupt leaves nothing behind. Method:
// the commands against the penstockd of this build.
#include <gmock/gmock.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/command/command_fixture.h"

namespace penstock::command_bench_test {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class CommandBenchTest : public CommandTest {
 protected:
  void Spec(const std::string& text) {
    std::ofstream(folder_ + "/train.yaml") << text;
  }
  // Returns the object that `bench --json` printed.
  json Bench(std::vector<std::string> options) {
    options.insert(options.begin(),
                   {"bench", "--dataset", "train.yaml", "--json"});
    const Result result = Run(options);
    EXPECT_EQ(result.status, 0) << result.err;
    const json object = json::parse(result.out, nullptr, false);
    EXPECT_TRUE(object.is_object()) << result.out;
    ExpectNothingLeft();
    return object;
  }
};

constexpr char kShuffled[] =
    "dataset: numbers\n"
    "source:\n"
    "  range: {stop: 1003}\n"
    "shuffle: {seed: 5}\n"
    "batch: {size: 64}\n"
    "epochs: 2\n";

TEST_F(CommandBenchTest, EverySampleComesOnceInOneOrderForAnyRanksAndWorkers) {
  Spec(kShuffled);
  json order;
  for (const char* ranks : {"1", "2", "4"}) {
    for (const char* workers : {"1", "2"}) {
      const json result =
          Bench({"--ranks", ranks, "--workers", workers, "--verify"});
      EXPECT_EQ(result["samples"], 2006);
      EXPECT_EQ(result["epochs"], 2);
      EXPECT_EQ(result["verified"], 2006);
      for (const char* key :
           {"missing", "duplicated", "misplaced", "corrupt", "redelivered"}) {
        EXPECT_EQ(result[key], 0) << key;
      }
      EXPECT_EQ(result["steps_per_rank"],
                json::array_t(std::stoul(ranks), json(32)));
      EXPECT_EQ(result["rank_wait_s"].size(), std::stoul(ranks));
      for (const char* key :
           {"samples_per_s", "cpu_s_per_1k_samples", "pss_bytes", "wall_s"}) {
        EXPECT_GT(result[key], 0) << key;
      }
      const json& digests = result["order_digest_per_epoch"];
      ASSERT_EQ(digests.size(), 2u);
      EXPECT_NE(digests[0], digests[1]) << "both epochs have one order";
      if (order.is_null()) order = digests;
      EXPECT_EQ(digests, order) << ranks << " ranks, " << workers << " workers";
    }
  }
}

TEST_F(CommandBenchTest, SamplesThatTheSpecRepeatsAreNotSaidToComeOnce) {
  const char* const kSpec =
      "dataset: numbers\nsource:\n  range: {stop: 100}\nbatch: {size: 8}\n";
  Spec(kSpec);
  EXPECT_THAT(
      Run({"bench", "--dataset", "train.yaml", "--ranks", "2", "--verify"}).out,
      HasSubstr("all 100 samples: each once, in its place, with the "
                "right bytes\n"));
  Spec(std::string(kSpec) + "select: [repeat: 3]\n");
  EXPECT_THAT(
      Run({"bench", "--dataset", "train.yaml", "--ranks", "2", "--verify"}).out,
      HasSubstr("all 300 samples: each in its place, with the right "
                "bytes; 200 of them come again in their epoch, as the "
                "spec says\n"));
  Spec(std::string(kSpec) + "shard: off\n");
  EXPECT_EQ(Bench({"--ranks", "2", "--verify"})["repeated"], 100);
}

TEST_F(CommandBenchTest, EachReplicaOfARankHasItsSamples) {
  Spec(kShuffled);
  for (const char* replicas : {"1", "2", "4"}) {
    const json result =
        Bench({"--ranks", "4", "--replicas", replicas, "--verify"});
    EXPECT_EQ(result["samples"], 2006) << replicas;
    EXPECT_EQ(result["verified"], 2006) << replicas;
    for (const char* key : {"missing", "duplicated", "misplaced", "corrupt"}) {
      EXPECT_EQ(result[key], 0) << key;
    }
    EXPECT_EQ(result["batches"], 32 * 4 / std::stoi(replicas));
    EXPECT_EQ(result["steps_per_rank"], json::array({32, 32, 32, 32}));
  }
  const Result table = Run(
      {"bench", "--dataset", "train.yaml", "--ranks", "2", "--replicas", "2"});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("0 (replica 1) "));
  const Result uneven = Run(
      {"bench", "--dataset", "train.yaml", "--ranks", "3", "--replicas", "2"});
  EXPECT_EQ(uneven.status, 2);
  EXPECT_THAT(uneven.err,
              HasSubstr("--ranks 3 is no multiple of --replicas 2"));
}

TEST_F(CommandBenchTest, PaddingAndDroppedRowsAreVerifiedToo) {
  for (const auto& [last, samples] :
       {std::pair("pad", 1003), std::pair("drop", 960)}) {
    Spec(
        "dataset: numbers\nsource:\n  range: {stop: 1003}\n"
        "batch: {size: 64, last: " +
        std::string(last) + "}\n");
    const json result = Bench({"--ranks", "3", "--verify"});
    EXPECT_EQ(result["samples"], samples) << last;
    EXPECT_EQ(result["verified"], samples) << last;
  }
}

TEST_F(CommandBenchTest, EveryShardPolicyIsVerified) {
  for (int i = 0; i < 5; ++i) {  // 20, 57, 94, 131, 168 records of a byte
    std::ofstream(folder_ + "/part-" + std::to_string(i))
        << std::string(20 + 37 * i, static_cast<char>('a' + i));
  }
  for (const auto& [policy, samples] :
       {std::pair("auto", 940), std::pair("data", 940), std::pair("file", 940),
        std::pair("off", 3 * 940)}) {
    Spec(
        "dataset: parts\nsource: {fixed_length_records: {files: part-*, "
        "features: {x: {dtype: uint8, shape: [1]}}}}\nshuffle: {seed: 1}\n"
        "batch: {size: 16}\nepochs: 2\nshard: " +
        std::string(policy));
    const json result = Bench({"--ranks", "3", "--verify"});
    EXPECT_EQ(result["verified"], samples) << policy;
    EXPECT_EQ(result["steps_per_rank"][0], result["steps_per_rank"][2])
        << policy;
  }
}

TEST_F(CommandBenchTest, AnEndlessDatasetStopsWhereItIsToldTo) {
  Spec(
      "dataset: numbers\nsource:\n  range: {stop: 100}\nshuffle: {seed: 1}\n"
      "batch: {size: 10}\nepochs: forever\n");
  EXPECT_EQ(Run({"bench", "--dataset", "train.yaml", "--ranks", "2"}).status,
            2);
  const json steps = Bench({"--ranks", "2", "--steps", "25", "--verify"});
  EXPECT_EQ(steps["verified"], 250);
  EXPECT_EQ(steps["epochs"], 2);
  const json epochs = Bench({"--ranks", "2", "--epochs", "3", "--verify"});
  EXPECT_EQ(epochs["verified"], 300);
  EXPECT_EQ(epochs["steps_per_rank"], json::array({30, 30}));
}

TEST_F(CommandBenchTest, ARunningBrokerCanBeMeasured) {
  Spec(kShuffled);
  const Result result = RunScript(
      {"--ranks", "0"}, PENSTOCK_BUILD_DIR
      "/client/command/penstock bench --dataset train.yaml --ranks 2 --verify "
      "--json --socket $PENSTOCK_SOCKET");
  EXPECT_EQ(result.status, 0) << result.err;
  const json object = json::parse(result.out, nullptr, false);
  ASSERT_TRUE(object.is_object()) << result.out;
  EXPECT_EQ(object["verified"], 2006);
  EXPECT_GT(object["pss_bytes"], 0);
}

TEST_F(CommandBenchTest, ASignalAtAnyMomentLeavesNothing) {
  Spec(
      "dataset: slow\nsource:\n  synthetic: {records: 100000, cost_us: 1000, "
      "features: {x: {dtype: uint8, shape: [100]}}}\nbatch: {size: 8}\n");
  for (const int delay_ms : {0, 2, 5, 10, 20, 40, 80, 160, 320}) {
    const pid_t pid =
        Start({"bench", "--dataset", "train.yaml", "--ranks", "3"});
    // The moment is what is tested. A signal before main catches signals also
    // ends it.
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    kill(pid, SIGINT);
    EXPECT_EQ(Wait(pid).status, 130) << delay_ms << " ms";
    ExpectNothingLeft();
  }
}

TEST_F(CommandBenchTest, PeekWritesAPictureOrSaysThatThereIsNone) {
  Spec(
      "dataset: noise\nsource:\n  synthetic: {records: 40, "
      "features: {image: {dtype: uint8, shape: [16, 16, 3]}, "
      "label: {dtype: int64, shape: []}}}\nbatch: {size: 32}\n");
  const Result picture = Run({"peek", "train.yaml", "--out", "a.png"});
  EXPECT_EQ(picture.status, 0) << picture.err;
  EXPECT_THAT(picture.out, HasSubstr("a.png: 32 of 32 rows"));
  EXPECT_EQ(Read("a.png").substr(1, 3), "PNG");

  Spec(kShuffled);
  const Result none = Run({"peek", "train.yaml", "--rows", "5"});
  EXPECT_EQ(none.status, 0) << none.err;
  EXPECT_THAT(none.out, HasSubstr("no feature is a picture"));
  EXPECT_FALSE(fs::exists(folder_ + "/sheet.png"));
  const Result result = Run({"peek", "train.yaml", "--out", "b.png"});
  EXPECT_EQ(result.status, 1) << result.out;
  EXPECT_THAT(result.err, HasSubstr("nothing to write to 'b.png'"));
  ExpectNothingLeft();
}

TEST_F(CommandBenchTest, PeekShowsLinesAsTextAndCheckWarnsOfLongOnes) {
  std::string half;
  for (int i = 0; i < 59; ++i) half += "x";
  std::ofstream(folder_ + "/a.txt") << "größer\x1b[2J\n\n" << half << "ü123\n";
  Spec(
      "dataset: lines\nsource: {text_lines: {files: a.txt, max_bytes: 63, "
      "longer: cut}}\nbatch: {size: 3}\n");
  const Result lines = Run({"peek", "--text", "train.yaml"});
  EXPECT_EQ(lines.status, 0) << lines.err;
  EXPECT_THAT(lines.out, HasSubstr("'größer?[2J' "));
  EXPECT_THAT(lines.out, HasSubstr("''  "));
  EXPECT_THAT(lines.out, HasSubstr("'" + half + "...'"));
  const Result check = Run({"check", "train.yaml"});
  EXPECT_EQ(check.status, 0);
  EXPECT_THAT(check.err,
              AllOf(HasSubstr("warning: dataset 'lines': 1 line is longer than "
                              "max_bytes (63), the longest of 64 bytes ("),
                    HasSubstr("/a.txt, line 3): the rest of each is cut off")));
  EXPECT_THAT(check.out, HasSubstr("of 3 rows of "));
  Spec("dataset: n\nsource: {range: 4}\nbatch: {size: 1}\n");
  EXPECT_THAT(Run({"check", "train.yaml"}).out, HasSubstr("of 1 row of "));
  ExpectNothingLeft();
}

TEST_F(CommandBenchTest, AMistakeInASpecIsToldByLineAndColumn) {
  std::ofstream(folder_ + "/wrong.yaml") << kSpec << "shufle: none\n";
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"check", "--syntax", "wrong.yaml"},
        {"check", "wrong.yaml"},
        {"bench", "--dataset", "wrong.yaml", "--ranks", "1"},
        {"peek", "wrong.yaml", "--out", "a.png"},
        {"run", "--dataset", "wrong.yaml", "--ranks", "1", "--", "true"}}) {
    const Result result = Run(words);
    EXPECT_EQ(result.status, 1) << words[0];
    EXPECT_THAT(result.err,
                HasSubstr("penstock: wrong.yaml:6:1: unknown key 'shufle'"));
  }
  const Result canonical = Run({"check", "--syntax", "--json", "train.yaml"});
  EXPECT_EQ(canonical.out,
            R"({"dataset":"numbers",)"
            R"("source":{"range":{"start":0,"stop":1003,"step":1}},)"
            R"("shuffle":"none","seed":0,"map":[],)"
            R"("batch":{"size":64,"last":"partial"},"epochs":2,)"
            R"("hold":3,"on_error":"fail"})"
            "\n");
  ExpectNothingLeft();
}

TEST_F(CommandBenchTest, HelpExplainsTheKeysOfASpec) {
  const Result all = Run({"help", "spec"});
  EXPECT_EQ(all.status, 0) << all.err;
  EXPECT_THAT(all.out,
              AllOf(HasSubstr("\n  on_error: one of fail, "),
                    HasSubstr("\n  image_folder: "), HasSubstr("\n  flip: ")));
  const Result one = Run({"help", "spec", "range"});
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_THAT(one.out, testing::StartsWith("range: "));
  EXPECT_THAT(Run({"help", "spec", "range", "zip"}).out,
              AllOf(testing::StartsWith("range: "), HasSubstr("\nzip: ")));
  const Result unknown = Run({"help", "spec", "rnage"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_EQ(unknown.out, "");
  EXPECT_EQ(unknown.err,
            "penstock: nothing of a spec is named 'rnage'; did you mean "
            "'range'?\n");
  for (const char* const name : {"pack", "buckets", "megatron", "on_error"}) {
    EXPECT_EQ(Run({"help", name}).out, Run({"help", "spec", name}).out);
    EXPECT_THAT(Run({"help", name}).out, HasSubstr(name));
  }
  EXPECT_EQ(Run({"help", "range", "zip"}).out,
            Run({"help", "spec", "range", "zip"}).out);
  EXPECT_EQ(Run({"help", "config", "range"}).status, 2);
  EXPECT_EQ(Run({"help", "rank"}).status, 2);
  const Result general = Run({"help"});
  EXPECT_EQ(general.status, 0);
  EXPECT_EQ(general.err, "");
  EXPECT_EQ(general.out, Run({"--help"}).out);
  EXPECT_EQ(Run({"help", "--json"}).status, 2);
  EXPECT_TRUE(json::parse(Run({"help", "spec", "--json"}).out)
                  .contains(json::json_pointer("/source/range/keys/stop")));
}

TEST_F(CommandBenchTest, CheckNamesWhatIsNotThere) {
  Spec(
      "dataset: gone\nsource:\n  image_folder: {path: nowhere}\n"
      "map:\n  - decode_image: {size: [8, 8]}\nbatch: {size: 8}\n");
  const Result result = Run({"check", "train.yaml"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("nowhere"));
  ExpectNothingLeft();
}

TEST_F(CommandBenchTest, CheckWarnsOfMemoryThatIsNotThere) {
  Spec(
      "dataset: wide\n"
      "source: {synthetic: {records: 64, features: {x: {dtype: uint8, shape: "
      "[100000]}}}}\n"
      "batch: {size: 8}\nprefetch: 3\nhold: 2\n");
  // Each of 4 ranks has 3 + 2 batches of 2 rows of 100,000 bytes.
  const Result fits = Run({"check", "--ranks", "4", "train.yaml"});
  EXPECT_EQ(fits.status, 0);
  EXPECT_EQ(fits.err, "");
  EXPECT_THAT(fits.out,
              AllOf(HasSubstr("for 4 ranks: 20 batches (prefetch 3 and hold 2 "
                              "of each rank) of 2 rows of 97.7 KiB; index 0 B"),
                    HasSubstr("memory left")));
  std::vector<std::string> arguments = {
      "check", "--ranks", "4", "--memory-limit", "2M", "train.yaml"};
  const Result text = Run(arguments);
  EXPECT_EQ(text.status, 0);
  EXPECT_THAT(text.err,
              AllOf(HasSubstr("penstock: warning: dataset 'wide' needs 3."),
                    HasSubstr("MiB for 4 ranks, only 2.0 MiB are left by the "
                              "broker's memory_limit")));
  arguments.push_back("--json");
  const Result machine = Run(arguments);
  EXPECT_EQ(machine.status, 0);
  EXPECT_EQ(machine.err, "");
  const json answer = json::parse(machine.out);
  EXPECT_EQ(answer["slots"], 20);
  EXPECT_EQ(answer["memory_left_bytes"], 2 << 20);
  EXPECT_EQ(answer["warnings"].size(), 1u);
  // Each job fits alone, not both.
  fs::copy(folder_ + "/train.yaml", folder_ + "/val.yaml");
  const Result both = Run({"check", "--ranks", "4", "--memory-limit", "5M",
                           "train.yaml", "val.yaml"});
  EXPECT_EQ(both.status, 0);
  EXPECT_THAT(both.err, HasSubstr("a job of each of the 2 datasets needs"));
  ExpectNothingLeft();
}

TEST_F(CommandBenchTest, CheckShowsTheMemoryOfGroups) {
  const std::string spec =
      "dataset: wide\n"
      "source: {synthetic: {records: 64, features: {x: {dtype: uint8, shape: "
      "[100000]}}}}\n"
      "batch: {size: 8}\nprefetch: 3\nhold: 2\n";
  Spec(spec);
  const Result group =
      Run({"check", "--ranks", "4", "--replicas", "2", "train.yaml"});
  EXPECT_EQ(group.status, 0) << group.err;
  EXPECT_THAT(group.out,
              HasSubstr("for 2 ranks of 2 replicas: 12 batches (prefetch 3 and "
                        "hold 2 of each rank, 1 of each further replica) of 4 "
                        "rows of 97.7 KiB; index 0 B"));
  const Result table =
      Run({"check", "--ranks", "4", "--layouts", "train.yaml"});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("\nranks  replicas  global batch  rows of a "
                                   "rank  batches "));
  const Result machine =
      Run({"check", "--ranks", "4", "--layouts", "--json", "train.yaml"});
  json layouts = json::parse(machine.out)["layouts"];
  const json whole = json::parse(machine.out)["memory_bytes"];
  EXPECT_EQ(layouts[2]["memory_bytes"], whole);
  for (json& each : layouts) each.erase("memory_bytes");
  const auto layout = [](int ranks, int rows, int slots) {
    return json{{"ranks", ranks},
                {"replicas", 4 / ranks},
                {"slot_rows", rows},
                {"global_batch", 8},
                {"slots", slots}};
  };
  EXPECT_EQ(layouts,
            json::array({layout(1, 8, 8), layout(2, 4, 12), layout(4, 2, 20)}));
  const Result uneven =
      Run({"check", "--ranks", "3", "--replicas", "2", "train.yaml"});
  EXPECT_EQ(uneven.status, 2);
  Spec(spec + "shard: off\n");
  const Result off =
      Run({"check", "--ranks", "4", "--replicas", "2", "train.yaml"});
  EXPECT_EQ(off.status, 1);
  EXPECT_THAT(off.err, HasSubstr("with shard: off every process gets all"));
  ExpectNothingLeft();
}

TEST_F(CommandBenchTest, CheckTriesTheFirstRow) {
  const std::string spec =
      "dataset: rows\nsource: {csv: {files: a.csv, columns: {x: {dtype: "
      "int64}}}}\nbatch: {size: 2, last: drop}\nsteps_per_epoch: 7\n";
  std::ofstream(folder_ + "/a.csv") << "x\n12345\nbad\n";
  Spec(spec);
  const Result table = Run({"check", "train.yaml"});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("row              sample 0: 5 B read, "));
  const Result machine = Run({"check", "--json", "train.yaml"});
  const json row = json::parse(machine.out)["row"];
  EXPECT_EQ(row["sample"], 0);
  EXPECT_EQ(row["bytes_read"], 5);
  EXPECT_GE(row["seconds"], 0);

  std::ofstream(folder_ + "/a.csv") << "x\nabc\n7\n";
  const Result fails = Run({"check", "train.yaml"});
  EXPECT_EQ(fails.status, 1);
  EXPECT_THAT(fails.err,
              AllOf(HasSubstr("dataset 'rows': sample 0: "),
                    HasSubstr("a.csv, row 1 (offset 2): field 'x': wanted "
                              "int64, found 'abc'")));
  EXPECT_THAT(fails.out, HasSubstr("an error, see below"));
  EXPECT_THAT(
      json::parse(Run({"check", "--json", "train.yaml"}).out)["row"]["error"]
          .get<std::string>(),
      HasSubstr("found 'abc'"));
  EXPECT_EQ(Run({"check", "--no-row", "train.yaml"}).status, 0);
  EXPECT_EQ(Run({"index", "train.yaml"}).status, 0);

  Spec(spec + "on_error: skip\n");
  const Result skips = Run({"check", "train.yaml"});
  EXPECT_EQ(skips.status, 0);
  EXPECT_THAT(skips.err,
              AllOf(HasSubstr("warning: dataset 'rows': sample 0: "),
                    HasSubstr("found 'abc' (on_error: skip permits it)\n")));
  EXPECT_THAT(skips.out, HasSubstr("sample 1: "));
  ExpectNothingLeft();
}

TEST_F(CommandBenchTest, PeekShowsTextOfAnySourceAsText) {
  std::ofstream(folder_ + "/a.csv") << "t,n\ngrün,7\n\"a\nb\",8\n";
  Spec(
      "dataset: texts\nsource: {csv: {files: a.csv, columns: {t: {max_bytes: "
      "9}, n: {dtype: int64}}}}\nbatch: {size: 2}\n");
  const Result text = Run({"peek", "--text", "train.yaml"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("'grün'"), HasSubstr("'a?b'")));
  // Neither valid UTF-8 nor of a known length.
  Spec(
      "dataset: bytes\nsource: {tensors: {features: {t: {dtype: uint8, "
      "values: [[65, 66, 255, 65, 66]]}, t_bytes: [5], u: {dtype: uint8, "
      "values: [[65]]}}}}\nbatch: {size: 1}\n");
  const Result bytes = Run({"peek", "--text", "train.yaml"});
  EXPECT_EQ(bytes.status, 0) << bytes.err;
  EXPECT_THAT(bytes.out,
              AllOf(HasSubstr("[65, 66, 255, 65, 66]"), HasSubstr("[65]")));
  ExpectNothingLeft();
}

TEST_F(CommandBenchTest, CheckOfTwoSpecsComparesTheirLabels) {
  const auto dataset = [&](const std::string& name,
                           const std::vector<std::string>& classes) {
    for (const std::string& each : classes) {
      fs::create_directories(folder_ + "/" + name + "/" + each);
      std::ofstream(folder_ + "/" + name + "/" + each + "/1.jpg");
    }
    std::ofstream(folder_ + "/" + name + ".yaml")
        << "dataset: " << name << "\nsource: {image_folder: {path: " << name
        << "}}\nmap: [{decode_image: {size: 8}}]\nbatch: {size: 1}\n";
  };
  dataset("train", {"ant", "bee", "cat"});
  dataset("val", {"ant", "cat"});
  dataset("other", {"pen", "vase"});
  const Result differ =
      Run({"check", "--no-row", "train.yaml", "other.yaml", "val.yaml"});
  EXPECT_EQ(differ.status, 0) << differ.err;
  EXPECT_EQ(std::count(differ.err.begin(), differ.err.end(), '\n'), 1)
      << differ.err;
  EXPECT_THAT(differ.err,
              HasSubstr("class 'cat' is label 2 in the first and label 1 in "
                        "the second (the second has no 'bee')"));
  fs::create_directory(folder_ + "/val/bee");  // empty
  const Result agree = Run({"check", "--no-row", "train.yaml", "val.yaml"});
  EXPECT_EQ(agree.status, 0);
  EXPECT_EQ(agree.err, "");
  ExpectNothingLeft();
}

}  // namespace penstock::command_bench_test
