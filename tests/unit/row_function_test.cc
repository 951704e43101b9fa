// Promise: Python functions and plugins get whole rows and return rows; their
// failures, crashes and hangs are errors of their sample alone; only code that
// others cannot write is run. Method: real functions in their processes, and a
// plugin that misbehaves.
#include "broker/transform/row_function.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "broker/transform/row_program.h"

namespace penstock::row_function_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Bytes = std::vector<std::byte>;

constexpr uint64_t kSecond = 1'000'000'000;

constexpr char kModule[] = R"(
import os, time
import numpy as np
from os import getcwd

def double(row):
    return {"value": row["value"] * 2}

def grow(row):
    return {"value": row["value"], "half": row["value"].astype("float32") / 2}

def file_bytes(row):
    data = row["image"]
    assert data.dtype == np.uint8 and data.ndim == 1
    return {"size": data.size, "last": data[-1:]}

def draw(row, rng):
    return {"value": rng.integers(0, 1 << 40, 3)}

def in_place(row):
    row["value"] += 1
    return row

def where(row):
    return {"value": [os.getpid(), int(os.environ["OMP_NUM_THREADS"]), 0]}

def wrong_shape(row):
    return {"value": np.zeros(4, "int64")}

def wrong_dtype(row):
    return {"value": np.array([0.5, 1, 2])}

def wrong_names(row):
    return {"valu": row["value"]}

def no_mapping(row):
    return row["value"]

def raises(row):
    if row["value"][0] == 1:
        raise ValueError("the first is one")
    return row

def exits(row):
    raise SystemExit(3)

def dies_once(row):
    flag = os.path.join(os.path.dirname(__file__), "died")
    if not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), 9)
    return row

def changes_and_dies_once(row):
    row["value"] += 1
    flag = os.path.join(os.path.dirname(__file__), "changed")
    if not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), 9)
    return row

def dies(row):
    os._exit(7)

def sleeps(row):
    if row["value"][0] == 1:
        time.sleep(1000)
    return row

def reshapes(row):
    assert row["value"].shape == (3,), row["value"].shape
    row["value"].shape = (3, 1)
    return {"value": row["value"][:, 0]}

def answers_too_early(row):
    if row["value"][0] == 1:
        os.write(3, bytes(9))
    return row

def starts_another(row):
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    return {"value": [pid, 0, 0]}

def prints(row):
    print("to the log, not into the answers", flush=True)
    return row

not_a_function = 5

class Adds:
    def __init__(self):
        self.amount = 10
    def __call__(self, row):
        return {"value": row["value"] + self.amount}

adds = Adds()
)";

class RowFunctionTest : public testing::Test {
 protected:
  RowFunctionTest() {
    std::string pattern = testing::TempDir() + "penstock-function-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    Write("functions.py", kModule);
    options_.python_path = {folder_};
    options_.python = "/usr/bin/python3";  // Debian's, which has NumPy
    options_.plugin_dir = PENSTOCK_BUILD_DIR "/tests/plugins";
    options_.writable_by = 0002;  // a private broker's, whatever the umask
  }
  ~RowFunctionTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(
        std::filesystem::path(folder_ + "/" + name).parent_path());
    std::ofstream(folder_ + "/" + name) << text;
  }

  static RawSpec Values() { return {{{"value", DType::kInt64, {3}}, false}}; }
  static PythonOp Python(const std::string& function,
                         std::optional<ElementSpec> features = {}) {
    return {function, std::move(features)};
  }
  static PluginOp Plugin(const std::string& function,
                         std::optional<ElementSpec> features = {}) {
    return {"faulty_plugin.so", function, std::move(features)};
  }

  Status Compile(const std::vector<TransformSpec>& map, const RawSpec& raw) {
    auto program = RowProgram::Compile(map, raw, options_);
    if (!program.ok()) return program.status();
    program_ = *std::move(program);
    scratch_ = program_->MakeScratch([this] { return cancelled_.load(); });
    return OkStatus();
  }

  // Returns the features of the row made from raw.
  StatusOr<std::vector<Bytes>> Run(const std::vector<Bytes>& raw,
                                   const AugmentationKey& key = {}) {
    const RawRecord record(raw.begin(), raw.end());
    std::vector<Bytes> out;
    std::vector<std::byte*> outputs;
    for (const Feature& feature : program_->element_spec()) {
      out.emplace_back(feature.RowBytes(), std::byte{0xEE});
    }
    for (Bytes& each : out) outputs.push_back(each.data());
    PENSTOCK_RETURN_IF_ERROR(program_->Run(record, key, *scratch_, outputs));
    return out;
  }
  // Returns the first feature of the row made from three numbers.
  StatusOr<std::vector<int64_t>> RunValues(const std::vector<int64_t>& values,
                                           const AugmentationKey& key = {}) {
    PENSTOCK_ASSIGN_OR_RETURN(const auto out, Run({BytesOf(values)}, key));
    return ValuesOf<int64_t>(out[0]);
  }
  // Returns the error of a function that is given {1, 2, 3}.
  Status Failure(const std::string& function) {
    const Status compiled =
        Compile({Python("functions:" + function)}, Values());
    if (!compiled.ok()) return compiled;
    return RunValues({1, 2, 3}).status();
  }

  template <typename T>
  static Bytes BytesOf(const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
  }
  template <typename T>
  static std::vector<T> ValuesOf(const Bytes& bytes) {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  std::string folder_;
  FunctionOptions options_;
  std::atomic<bool> cancelled_{false};
  std::unique_ptr<RowProgram> program_;
  std::unique_ptr<RowProgram::Scratch> scratch_;
};

using Numbers = std::vector<int64_t>;

// ---- Python

TEST_F(RowFunctionTest, ARowGoesThroughAPythonFunction) {
  ASSERT_TRUE(Compile({Python("functions:double")}, Values()).ok());
  EXPECT_EQ(program_->element_spec(),
            (ElementSpec{{"value", DType::kInt64, {3}}}));
  EXPECT_FALSE(program_->Copies(0));
  EXPECT_GT(program_->wait_ns(), 0u);
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(*RunValues({i, -i, i + 7}), (Numbers{2 * i, -2 * i, 2 * i + 14}));
  }
}

TEST_F(RowFunctionTest, OpsStandBeforeBetweenAndAfterFunctions) {
  const ElementSpec grown = {{"value", DType::kInt64, {3}},
                             {"half", DType::kFloat32, {3}}};
  CastOp cast;
  cast.feature = {"half"};
  cast.dtype = DType::kInt32;
  ASSERT_TRUE(Compile({Python("functions:double"),
                       Python("functions:grow", grown), cast},
                      Values())
                  .ok());
  EXPECT_EQ(program_->element_spec()[1].dtype, DType::kInt32);
  const auto out = Run({BytesOf(Numbers{1, 2, 3})});
  ASSERT_TRUE(out.ok()) << out.status().message();
  EXPECT_EQ(ValuesOf<int64_t>((*out)[0]), (Numbers{2, 4, 6}));
  EXPECT_EQ(ValuesOf<int32_t>((*out)[1]), (std::vector<int32_t>{1, 2, 3}));
}

TEST_F(RowFunctionTest, AFileOfAnySizeComesAsItsBytes) {
  const ElementSpec out_spec = {{"size", DType::kInt64, {}},
                                {"last", DType::kUint8, {1}}};
  const RawSpec files = {{{"image", DType::kUint8, {}}, true}};
  EXPECT_THAT(Compile({Python("functions:file_bytes")}, files).message(),
              HasSubstr("say with `features` what it returns"));
  ASSERT_TRUE(Compile({Python("functions:file_bytes", out_spec)}, files).ok());
  // Larger, then smaller: the memory grows and stays.
  for (const size_t bytes : {10, 100'000, 5, 5'000'000, 1, 20'000'000}) {
    Bytes file(bytes, std::byte{1});
    file.back() = std::byte{static_cast<uint8_t>(bytes % 251)};
    const auto out = Run({file});
    ASSERT_TRUE(out.ok()) << out.status().message();
    EXPECT_EQ(ValuesOf<int64_t>((*out)[0])[0], static_cast<int64_t>(bytes));
    EXPECT_EQ((*out)[1][0], file.back());
  }
}

TEST_F(RowFunctionTest, RandomNumbersDependOnSeedEpochSampleAndStep) {
  ASSERT_TRUE(Compile({Python("functions:draw")}, Values()).ok());
  std::set<Numbers> seen;
  for (const AugmentationKey key : {AugmentationKey{1, 0, 0},
                                    {2, 0, 0},
                                    {1, 1, 0},
                                    {1, 0, 1},
                                    {UINT64_MAX, UINT64_MAX, UINT64_MAX}}) {
    const auto first = RunValues({0, 0, 0}, key);
    ASSERT_TRUE(first.ok()) << first.status().message();
    EXPECT_EQ(*first, *RunValues({0, 0, 0}, key));
    seen.insert(*first);
  }
  const Numbers at_step_0 = *RunValues({0, 0, 0}, {1, 0, 0});
  ASSERT_TRUE(
      Compile({Python("functions:double"), Python("functions:draw")}, Values())
          .ok());
  seen.insert(*RunValues({0, 0, 0}, {1, 0, 0}));
  EXPECT_EQ(seen.size(), 6u);
  // Another worker, another process.
  ASSERT_TRUE(Compile({Python("functions:draw")}, Values()).ok());
  EXPECT_EQ(*RunValues({0, 0, 0}, {1, 0, 0}), at_step_0);
}

TEST_F(RowFunctionTest, ArraysMayBeChangedAndObjectsCalled) {
  ASSERT_TRUE(Compile({Python("functions:in_place")}, Values()).ok());
  EXPECT_EQ(*RunValues({1, 2, 3}), (Numbers{2, 3, 4}));
  EXPECT_EQ(*RunValues({1, 2, 3}), (Numbers{2, 3, 4}));
  ASSERT_TRUE(Compile({Python("functions:adds")}, Values()).ok());
  EXPECT_EQ(*RunValues({1, 2, 3}), (Numbers{11, 12, 13}));
}

TEST_F(RowFunctionTest, EachWorkerHasAProcessThatStays) {
  ASSERT_TRUE(Compile({Python("functions:where")}, Values()).ok());
  const Numbers first = *RunValues({0, 0, 0});
  EXPECT_EQ(first, *RunValues({0, 0, 0}));
  EXPECT_NE(first[0], getpid());
  EXPECT_EQ(first[1], 1) << "threads of its own would be too many";
  std::unique_ptr<RowProgram::Scratch> other = program_->MakeScratch({});
  std::swap(scratch_, other);
  EXPECT_NE(first[0], (*RunValues({0, 0, 0}))[0]);
  const auto pid = static_cast<pid_t>(first[0]);
  other.reset();
  EXPECT_NE(kill(pid, 0), 0) << "it is over with its worker";
}

TEST_F(RowFunctionTest, WhatAFunctionGetsWrongIsSaid) {
  EXPECT_THAT(Failure("wrong_shape").message(),
              HasSubstr("feature 'value': it returned shape [4]; wanted [3]"));
  EXPECT_THAT(Failure("wrong_dtype").message(),
              AllOf(HasSubstr("feature 'value'"), HasSubstr("float64")));
  EXPECT_THAT(Failure("wrong_names").message(),
              HasSubstr("it returned valu; wanted value"));
  EXPECT_THAT(Failure("no_mapping").message(),
              HasSubstr("it returned ndarray; wanted a mapping of value"));
  const Status raised = Failure("raises");
  EXPECT_EQ(raised.code(), StatusCode::kDataLoss);
  EXPECT_THAT(raised.message(),
              AllOf(HasSubstr("map[0] python functions:raises"),
                    HasSubstr("Traceback"), HasSubstr("functions.py"),
                    HasSubstr("ValueError: the first is one"),
                    Not(HasSubstr("<string>"))));
  // The process goes on with the next row.
  EXPECT_EQ(*RunValues({0, 2, 3}), (Numbers{0, 2, 3}));
  EXPECT_THAT(Failure("exits").message(), HasSubstr("SystemExit: 3"));
  ASSERT_TRUE(Compile({Python("functions:prints")}, Values()).ok());
  EXPECT_EQ(*RunValues({1, 2, 3}), (Numbers{1, 2, 3}));
}

TEST_F(RowFunctionTest, AProcessThatDiesIsStartedAgain) {
  ASSERT_TRUE(Compile({Python("functions:dies_once")}, Values()).ok());
  EXPECT_EQ(*RunValues({1, 2, 3}), (Numbers{1, 2, 3}));
  ASSERT_TRUE(Compile({Python("functions:where")}, Values()).ok());
  for (int i = 0; i < 5; ++i) {
    const auto row = RunValues({0, 0, 0});
    ASSERT_TRUE(row.ok()) << row.status().message();
    kill(static_cast<pid_t>((*row)[0]), SIGKILL);
  }
  const Status status = Failure("dies");
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("its process ended with status 7, "
                                          "twice at this sample"));
  // The row that the dead process had changed is made anew.
  ASSERT_TRUE(
      Compile({Python("functions:changes_and_dies_once")}, Values()).ok());
  EXPECT_EQ(*RunValues({1, 2, 3}), (Numbers{2, 3, 4}));
}

TEST_F(RowFunctionTest, WhatAProcessStartedEndsWithIt) {
  ASSERT_TRUE(Compile({Python("functions:starts_another")}, Values()).ok());
  const auto child = static_cast<pid_t>((*RunValues({0, 0, 0}))[0]);
  ASSERT_GT(child, 1);
  scratch_.reset();
  for (int i = 0; i < 200 && kill(child, 0) == 0; ++i) {
    // A zombie of init, or gone.
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string line;
    std::getline(stat, line);
    if (line.find(") Z ") != std::string::npos) return;
    usleep(10'000);
  }
  EXPECT_NE(kill(child, 0), 0);
}

// ---- of one row and the next

TEST_F(RowFunctionTest, WhatAFunctionDoesToItsArraysEndsWithTheRow) {
  ASSERT_TRUE(Compile({Python("functions:reshapes")}, Values()).ok());
  for (const Numbers& values : {Numbers{1, 2, 3}, Numbers{4, 5, 6}}) {
    const auto row = RunValues(values);
    ASSERT_TRUE(row.ok()) << row.status().message();
    EXPECT_EQ(*row, values);
  }
}

// A function and its children can write to the answers' descriptor. A stray
// answer must not make the former row pass for this one.
TEST_F(RowFunctionTest, AnAnswerToAnotherRowIsNotTaken) {
  ASSERT_TRUE(Compile({Python("functions:answers_too_early")}, Values()).ok());
  EXPECT_EQ(*RunValues({0, 8, 9}), (Numbers{0, 8, 9}));
  const Status status = RunValues({1, 2, 3}).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              HasSubstr("its process answered what it was not asked"));
  EXPECT_EQ(*RunValues({0, 5, 6}), (Numbers{0, 5, 6})) << "a new process";
}

TEST_F(RowFunctionTest, ACallHasALimit) {
  options_.call_timeout_ns = kSecond / 4;
  const Status status = Failure("sleeps");
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("0.2 s (python_timeout,"));
  EXPECT_EQ(*RunValues({0, 2, 3}), (Numbers{0, 2, 3})) << "a new process";
}

TEST_F(RowFunctionTest, NobodyWaitsForWhatNobodyWants) {
  ASSERT_TRUE(Compile({Python("functions:sleeps")}, Values()).ok());
  std::thread leaves([this] {
    usleep(300'000);
    cancelled_ = true;
  });
  EXPECT_EQ(RunValues({1, 2, 3}).status().code(), StatusCode::kCancelled);
  leaves.join();
}

TEST_F(RowFunctionTest, OnlyModulesOfThePathMayBeNamed) {
  Write("package/__init__.py", "");
  Write("package/deep.py", "import os\ndef same(row): return row\n");
  EXPECT_TRUE(Compile({Python("package.deep:same")}, Values()).ok());
  for (const char* name :
       {"os:getcwd", "subprocess:run", "builtins:exec", "functions:getcwd",
        "package.deep:os.system", "functions:not_a_function"}) {
    const Status status = Compile({Python(name)}, Values());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("python_path"), HasSubstr(folder_)))
        << name;
  }
  EXPECT_THAT(Compile({Python("missing:f")}, Values()).message(),
              HasSubstr("no module 'missing' in python_path"));
  EXPECT_THAT(Compile({Python("functions:missing")}, Values()).message(),
              HasSubstr("has no attribute 'missing'"));
  Write("broken.py", "import nothing_of_this_name\n");
  EXPECT_THAT(Compile({Python("broken:f")}, Values()).message(),
              HasSubstr("No module named 'nothing_of_this_name'"));
  options_.python_path.clear();
  const Status off = Compile({Python("functions:double")}, Values());
  EXPECT_EQ(off.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(off.message(), HasSubstr("runs no Python functions"));
  options_.python_path = {folder_};
  options_.python = "/no/such/python";
  EXPECT_THAT(Compile({Python("functions:double")}, Values()).message(),
              HasSubstr("start '/no/such/python'"));
}

// ---- plugins

TEST_F(RowFunctionTest, APluginIsCalledWithARow) {
  const RawSpec files = {{{"image", DType::kUint8, {}}, true}};
  const ElementSpec out_spec = {{"size", DType::kInt64, {}},
                                {"first", DType::kUint8, {4}}};
  const Status status = Compile({Plugin("read_file", out_spec)}, files);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(program_->wait_ns(), 0u);
  for (const size_t bytes : {2, 100'000, 3, 1'000'000}) {
    const auto out = Run({Bytes(bytes, std::byte{9})});
    ASSERT_TRUE(out.ok()) << out.status().message();
    EXPECT_EQ(ValuesOf<int64_t>((*out)[0])[0], static_cast<int64_t>(bytes));
    EXPECT_EQ((*out)[1][0], std::byte{9});
    EXPECT_EQ((*out)[1][3], bytes < 4 ? std::byte{0} : std::byte{9});
  }
}

TEST_F(RowFunctionTest, WhatAPluginDoesNotWriteIsZerosNotTheRowBefore) {
  ASSERT_TRUE(Compile({Plugin("writes_at_times")}, Values()).ok());
  EXPECT_EQ(*RunValues({1, 2, 3}), (Numbers{1, 2, 3}));
  EXPECT_EQ(*RunValues({0, 5, 6}), (Numbers{0, 0, 0}));
}

TEST_F(RowFunctionTest, APluginThatFailsSaysWhy) {
  ASSERT_TRUE(Compile({Plugin("refuses")}, Values()).ok());
  const Status status = RunValues({1, 2, 3}).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              HasSubstr("map[0] plugin refuses of faulty_plugin.so: it "
                        "returned 7: xxx"));
  EXPECT_LT(status.message().size(), 1200u);
  ASSERT_TRUE(Compile({Plugin("says_nothing")}, Values()).ok());
  EXPECT_THAT(RunValues({1, 2, 3}).status().message(),
              HasSubstr("it returned -1"));
}

TEST_F(RowFunctionTest, APluginIsFoundOrTheWayOutNamed) {
  PluginOp op = Plugin("refuses");
  op.library = "missing.so";
  const Status missing = Compile({op}, Values());
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("no library 'missing.so'"));
  // The function must be exported by the library itself, not by one it is
  // linked with.
  for (const char* name : {"nothing", "hidden", "abort", "malloc"}) {
    EXPECT_THAT(Compile({Plugin(name)}, Values()).message(),
                HasSubstr(std::string("has no PENSTOCK_PLUGIN_FUNCTION(") +
                          name + ")"));
  }
  options_.plugin_dir = folder_;
  Write("text.so", "not a library");
  op.library = "text.so";
  EXPECT_THAT(Compile({op}, Values()).message(), HasSubstr("text.so"));
  options_.plugin_dir.clear();
  EXPECT_THAT(Compile({op}, Values()).message(),
              HasSubstr("this broker loads no plugins"));
}

// ---- trust

TEST_F(RowFunctionTest, CodeIsTakenFromWhereOthersCannotWrite) {
  constexpr mode_t kService = 0022;
  constexpr mode_t kPrivate = 0002;
  EXPECT_TRUE(CheckTrusted(folder_, kService).ok());
  ASSERT_EQ(chmod(folder_.c_str(), 0775), 0);
  EXPECT_TRUE(CheckTrusted(folder_, kPrivate).ok());
  EXPECT_EQ(CheckTrusted(folder_, kService).status().code(),
            StatusCode::kFailedPrecondition);
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  EXPECT_THAT(CheckTrusted(folder_, kPrivate).status().message(),
              HasSubstr("others can write '" + folder_ + "' (mode 0777"));
  // The folders above it count as well, and links are resolved once.
  std::filesystem::create_directory(folder_ + "/inner");
  EXPECT_THAT(CheckTrusted(folder_ + "/inner", kPrivate).status().message(),
              HasSubstr("others can write '" + folder_ + "'"));
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  ASSERT_EQ(chmod((folder_ + "/inner").c_str(), 0755), 0);
  std::filesystem::create_symlink("inner", folder_ + "/link");
  EXPECT_EQ(*CheckTrusted(folder_ + "/link", kService), folder_ + "/inner");
  EXPECT_EQ(CheckTrusted(folder_ + "/none", kPrivate).status().code(),
            StatusCode::kNotFound);
  EXPECT_THAT(
      CheckTrusted(folder_ + "/functions.py", kPrivate).status().message(),
      HasSubstr("is not a folder"));
}

TEST_F(RowFunctionTest, AFileThatOthersCanWriteIsNotRun) {
  ASSERT_EQ(chmod((folder_ + "/functions.py").c_str(), 0666), 0);
  EXPECT_THAT(Compile({Python("functions:double")}, Values()).message(),
              HasSubstr("others can write " + folder_ + "/functions.py"));
  options_.plugin_dir = folder_;
  std::filesystem::copy(PENSTOCK_BUILD_DIR "/tests/plugins/faulty_plugin.so",
                        folder_);
  EXPECT_TRUE(Compile({Plugin("refuses")}, Values()).ok());
  ASSERT_EQ(chmod((folder_ + "/faulty_plugin.so").c_str(), 0777), 0);
  EXPECT_THAT(Compile({Plugin("refuses")}, Values()).message(),
              HasSubstr("others can write"));
}

}  // namespace penstock::row_function_test
