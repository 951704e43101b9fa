// What does a row of each ranged source cost the broker beside a bare loop over
// the same bytes with the same library?
//
// Method. A penstockd with one worker, one rank that only drains; rows in a
// global shuffle, the files in the page cache. A run's cost is the CPU time of
// the whole penstockd process (control thread, journal and clock included) per
// row taken, over two seconds. The bare loop runs in this process: the same
// rows in a shuffled order, one pread each by offsets known beforehand, then
// the library, into rows of a buffer of 64 MiB. Its library: nothing for
// tokens, npy and text; this tree's CRC-32C and parser of tf.train.Example for
// tfrecord; simdjson for JSON; from_chars for CSV; a copy for members of a tar.
//
// Isolation. Each run has a penstockd of its own. Files are made here, once, in
// --folder (0.9 GB).
//
// Limits. The bare loop has nothing to shuffle, check, publish or share, and
// reads record after record; the broker's rows are ready for any rank, checked,
// and their indices with them.
//
//   source_benchmark --folder DIR [--runs N] [--json] [--only TEXT]
#include <fcntl.h>
#include <simdjson.h>
#include <time.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "bench/job_ranks.h"
#include "bench/side_by_side.h"
#include "broker/source/example.h"
#include "common/crc32c.h"
#include "tests/support/broker_process.h"

namespace penstock {
namespace {

using Seconds = std::chrono::duration<double>;
using Row = std::span<std::byte>;

[[noreturn]] void Die(const std::string& what) {
  Print(stderr, "source_benchmark: {}\n", what);
  std::exit(1);
}

double CpuSeconds(clockid_t clock) {
  timespec now{};
  if (clock_gettime(clock, &now) != 0) Die("no CPU clock");
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

struct Place {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// A file of records, and how a bare loop makes a row of one.
struct Case {
  std::string name;
  std::string source;  // the rest of the spec's source
  uint64_t rows = 0;
  uint64_t row_bytes = 0;
  std::string head;  // of the file
  // Appends record i to the file and returns where the bare loop reads.
  std::function<Place(uint64_t i, std::string* file)> write;
  // Makes a row of what was read. Without it, reads go into the row.
  std::function<void(std::span<std::byte> read, Row row)> parse;
};

std::mt19937_64 random_bits(1);

std::string Words(size_t bytes) {
  std::string text;
  while (text.size() < bytes) {
    text += static_cast<char>('a' + random_bits() % 26);
    if (random_bits() % 6 == 0) text += ' ';
  }
  return text;
}

float RandomFloat() {
  return static_cast<float>(random_bits() % 2'000'000) / 1e6F - 1;
}

template <typename T>
std::string Bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

template <typename T>
T At(std::span<std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

Case Tokens() {
  constexpr uint64_t kLength = 1024;
  return {.name = "tokens, uint16, 1,024 a row",
          .source = "tokens: {sequence_length: 1024, files: ",
          .rows = 40'000,
          .row_bytes = kLength * 16,
          .head = Bytes(uint16_t{1}),  // so that the last row has a target
          .write =
              [](uint64_t i, std::string* file) {
                for (uint64_t j = 0; j < kLength; ++j) {
                  *file += Bytes(static_cast<uint16_t>(random_bits()));
                }
                return Place{i * kLength * 2, (kLength + 1) * 2};
              },
          .parse =
              [](std::span<std::byte> read, Row row) {
                const auto* const tokens =
                    reinterpret_cast<const uint16_t*>(read.data());
                auto* const to = reinterpret_cast<int64_t*>(row.data());
                for (uint64_t i = 0; i < kLength; ++i) to[i] = tokens[i];
                for (uint64_t i = 0; i < kLength; ++i) {
                  to[kLength + i] = tokens[i + 1];
                }
              }};
}

// NEP 1: the header of format 1.0.
std::string NpyHead(uint64_t rows, uint64_t row_bytes) {
  std::string text =
      Format("{{'descr': '|u1', 'fortran_order': False, 'shape': ({}, {}), }}",
             rows, row_bytes);
  text.append(64 - (10 + text.size() + 1) % 64, ' ');
  text += '\n';
  return "\x93NUMPY" + std::string("\x01\0", 2) +
         Bytes(static_cast<uint16_t>(text.size())) + text;
}

Case Npy(uint64_t row_bytes, uint64_t rows) {
  return {.name = Format("npy, {} bytes a row", row_bytes),
          .source = "npy: {features: {x: FILE}",
          .rows = rows,
          .row_bytes = row_bytes,
          .write = [row_bytes](uint64_t, std::string* file) {
            const Place place = {file->size(), row_bytes};
            for (uint64_t j = 0; j < row_bytes; j += 8) {
              *file += Bytes(random_bits());
            }
            return place;
          }};
}

Case TextLines() {
  return {.name = "text_lines, 400 bytes",
          .source = "text_lines: {max_bytes: 512, files: ",
          .rows = 200'000,
          .row_bytes = 520,
          .write =
              [](uint64_t, std::string* file) {
                const std::string text = Words(350 + random_bits() % 100);
                const Place place = {file->size(), text.size()};
                *file += text + '\n';
                return place;
              },
          .parse =
              [](std::span<std::byte> read, Row row) {
                std::memcpy(row.data(), read.data(), read.size());
                std::memset(row.data() + read.size(), 0, 512 - read.size());
                const uint64_t bytes = read.size();
                std::memcpy(row.data() + 512, &bytes, 8);
              }};
}

Case JsonLines() {
  return {.name = "json_lines, 450 bytes: text, int64, float64",
          .source =
              "json_lines: {fields: {text: {max_bytes: 512}, label: {dtype: "
              "int64}, score: {dtype: float64}}, files: ",
          .rows = 200'000,
          .row_bytes = 536,
          .write =
              [](uint64_t i, std::string* file) {
                const std::string line = Format(
                    "{{\"id\": {}, \"text\": \"{}\", \"label\": {}, \"score\": "
                    "{:.16f}}}",
                    i, Words(350 + random_bits() % 100), i % 1000,
                    static_cast<double>(random_bits() % 1000) / 997);
                const Place place = {file->size(), line.size()};
                *file += line + '\n';
                return place;
              },
          .parse =
              [](std::span<std::byte> read, Row row) {
                thread_local simdjson::dom::parser parser;
                std::memset(read.data() + read.size(), ' ',
                            simdjson::SIMDJSON_PADDING);
                simdjson::dom::element line;
                std::string_view text;
                int64_t label = 0;
                double score = 0;
                if (parser
                        .parse(reinterpret_cast<const char*>(read.data()),
                               read.size(), false)
                        .get(line) ||
                    line["text"].get(text) || line["label"].get(label) ||
                    line["score"].get(score)) {
                  Die("not JSON");
                }
                std::memcpy(row.data(), text.data(), text.size());
                std::memset(row.data() + text.size(), 0, 512 - text.size());
                const uint64_t bytes = text.size();
                std::memcpy(row.data() + 512, &bytes, 8);
                std::memcpy(row.data() + 520, &label, 8);
                std::memcpy(row.data() + 528, &score, 8);
              }};
}

constexpr int kColumns = 16;

Case Csv() {
  std::string columns;
  std::string head;
  for (int i = 0; i < kColumns; ++i) {
    columns += Format("{}c{}: {{dtype: float32}}", i == 0 ? "" : ", ", i);
    head += Format("{}c{}", i == 0 ? "" : ",", i);
  }
  return {.name = "csv, 16 float32 columns, 150 bytes",
          .source = "csv: {columns: {" + columns + "}, files: ",
          .rows = 300'000,
          .row_bytes = kColumns * 4,
          .head = head + "\n",
          .write =
              [](uint64_t, std::string* file) {
                const Place place = {file->size(), 0};
                for (int i = 0; i < kColumns; ++i) {
                  *file += Format("{}{:.6f}", i == 0 ? "" : ",", RandomFloat());
                }
                *file += '\n';
                return Place{place.offset, file->size() - place.offset - 1};
              },
          .parse =
              [](std::span<std::byte> read, Row row) {
                const char* at = reinterpret_cast<const char*>(read.data());
                const char* const end = at + read.size();
                for (int i = 0; i < kColumns; ++i) {
                  float value = 0;
                  const auto [rest, error] = std::from_chars(at, end, value);
                  if (error != std::errc{}) Die("not a number");
                  at = rest + 1;
                  std::memcpy(row.data() + i * 4, &value, 4);
                }
              }};
}

// ---- TFRecord: length, its checksum, a tf.train.Example, its checksum

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) {
    bytes += static_cast<char>(value | 0x80);
  }
  return bytes + static_cast<char>(value);
}
std::string Field(int number, const std::string& content) {
  return Varint(static_cast<uint64_t>(number) << 3 | 2) +
         Varint(content.size()) + content;
}
std::string ExampleFeature(const std::string& name, int kind,
                           const std::string& list) {
  return Field(1, Field(1, name) + Field(2, Field(kind, list)));
}
std::string MaskedCrc(std::string_view bytes) {
  const uint32_t crc = Crc32c(std::as_bytes(std::span(bytes)));
  return Bytes(((crc >> 15) | (crc << 17)) + 0xa282ead8);
}

// x: of a float_list or a bytes_list; label: of an int64_list.
Case Tfrecord(const std::string& name, DType dtype, int64_t values,
              uint64_t rows) {
  const RecordFeatures features = {
      {.feature = {"x", dtype, {values}}, .key = "", .otherwise = {}},
      {.feature = {"label", DType::kInt64, {}}, .key = "", .otherwise = {}}};
  const uint64_t bytes = features[0].feature.RowBytes();
  const int kind = dtype == DType::kFloat32 ? 2 : 1;
  return {.name = name,
          .source = Format("tfrecord: {{features: {{x: {{dtype: {}, shape: "
                           "[{}]}}, label: {{dtype: int64, shape: []}}}}, "
                           "files: ",
                           DTypeName(dtype), values),
          .rows = rows,
          .row_bytes = bytes + 8,
          .write =
              [kind, bytes](uint64_t, std::string* file) {
                std::string values;
                while (values.size() < bytes) values += Bytes(RandomFloat());
                const std::string example = Field(
                    1,
                    ExampleFeature("x", kind, Field(1, values)) +
                        ExampleFeature("label", 3,
                                       Field(1, Varint(random_bits() % 100))));
                const std::string length = Bytes(uint64_t{example.size()});
                *file += length + MaskedCrc(length);
                const Place place = {file->size(), example.size() + 4};
                *file += example + MaskedCrc(example);
                return place;
              },
          .parse =
              [example = std::make_shared<ExampleFeatures>(features)](
                  std::span<std::byte> read, Row row) {
                const auto data = read.first(read.size() - 4);
                const uint32_t crc = Crc32c(data);
                if (((crc >> 15) | (crc << 17)) + 0xa282ead8 !=
                    At<uint32_t>(read, data.size())) {
                  Die("wrong checksum");
                }
                thread_local std::vector<std::byte> scratch;
                thread_local RawRecord found;
                if (!example->Unpack(data, &scratch, &found).ok()) {
                  Die("no Example");
                }
                std::byte* to = row.data();
                for (const std::span<const std::byte> each : found) {
                  to = std::copy(each.begin(), each.end(), to);
                }
              }};
}

// ---- tar: a header of 512 bytes, then the content, in blocks of 512

std::string TarMember(const std::string& name, const std::string& content) {
  std::string block(512, '\0');
  block.replace(0, name.size(), name);
  block.replace(100, 7, "0000644");
  block.replace(124, 11, Format("{:011o}", content.size()));
  block[156] = '0';
  block.replace(257, 5, "ustar");
  block.replace(263, 2, "00");
  block.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  block.replace(148, 8, Format("{:06o}", sum) + std::string("\0 ", 2));
  block += content;
  block.resize((block.size() + 511) / 512 * 512);
  return block;
}

Case Webdataset(uint64_t bytes, uint64_t rows) {
  return {
      .name = Format("webdataset, {} bytes and a cls", bytes),
      .source = Format("webdataset: {{features: {{x: {{dtype: uint8, shape: "
                       "[{}], member: bin}}, cls: {{dtype: int64, shape: "
                       "[]}}}}, files: ",
                       bytes),
      .rows = rows,
      .row_bytes = bytes + 8,
      .write =
          [bytes](uint64_t i, std::string* file) {
            std::string content;
            while (content.size() < bytes) content += Bytes(random_bits());
            const uint64_t at = file->size() + 512;
            *file += TarMember(Format("{:08}.bin", i), content);
            *file += TarMember(Format("{:08}.cls", i), "7");
            return Place{at, file->size() - 511 - at};
          },
      .parse =
          [bytes](std::span<std::byte> read, Row row) {
            std::memcpy(row.data(), read.data(), bytes);
            int64_t label = 0;
            const char* const text =
                reinterpret_cast<const char*>(read.data()) + read.size() - 1;
            if (std::from_chars(text, text + 1, label).ec != std::errc{}) {
              Die("not a number");
            }
            std::memcpy(row.data() + bytes, &label, 8);
          }};
}

// ---- the two sides

struct Data {
  std::string path;
  std::vector<Place> places;
};

Data Make(const Case& which, const std::filesystem::path& folder,
          size_t number) {
  Data data = {.path = folder / Format("case-{}", number), .places = {}};
  if (which.name.starts_with("npy")) data.path += ".npy";
  random_bits.seed(number);
  std::string content = which.head;
  for (uint64_t i = 0; i < which.rows; ++i) {
    data.places.push_back(which.write(i, &content));
  }
  if (which.name.starts_with("webdataset")) content.append(1024, '\0');
  if (which.name.starts_with("tokens")) {  // the head is the first token
    std::rotate(content.begin(), content.begin() + 2, content.end());
  }
  std::ofstream file(data.path, std::ios::binary);
  if (!(file << content << std::flush)) Die("cannot write " + data.path);
  std::shuffle(data.places.begin(), data.places.end(), std::mt19937_64(2));
  return data;
}

// us of CPU a row.
double BareLoop(const Case& which, const Data& data) {
  const int fd = open(data.path.c_str(), O_RDONLY | O_CLOEXEC);
  const uint64_t rows = std::max<uint64_t>(1, (64 << 20) / which.row_bytes);
  std::vector<std::byte> memory(rows * which.row_bytes);
  std::vector<std::byte> buffer((2 << 20));
  const double begin = CpuSeconds(CLOCK_THREAD_CPUTIME_ID);
  for (size_t i = 0; i < data.places.size(); ++i) {
    const auto [offset, bytes] = data.places[i];
    const Row row(memory.data() + i % rows * which.row_bytes, which.row_bytes);
    std::byte* const to = which.parse ? buffer.data() : row.data();
    if (pread(fd, to, bytes, static_cast<off_t>(offset)) !=
        static_cast<ssize_t>(bytes)) {
      Die("cannot read " + data.path);
    }
    if (which.parse) which.parse({to, bytes}, row);
  }
  const double end = CpuSeconds(CLOCK_THREAD_CPUTIME_ID);
  close(fd);
  return (end - begin) * 1e6 / static_cast<double>(data.places.size());
}

double Broker(const Case& which, const Data& data, bool tiny) {
  std::string source = which.source;
  if (const size_t at = source.find("FILE"); at != source.npos) {
    source.replace(at, 4, data.path);
    source += "}";
  } else {
    source += data.path + "}";
  }
  const uint64_t batch = std::max<uint64_t>(16, (4 << 20) / which.row_bytes);
  const std::string spec = Format(
      "dataset: rows\nsource: {{{}}}\nshuffle: {{seed: 1}}\nbatch: {{size: "
      "{}}}\nepochs: forever\n",
      source, std::min(batch, which.rows));
  const BrokerProcess broker({"--workers", "1"});
  const JobRanks job(broker.socket(), "rows", spec, 1,
                     std::chrono::microseconds(0));
  while (job.rows() == 0) std::this_thread::sleep_for(Seconds(0.01));
  std::this_thread::sleep_for(Seconds(tiny ? 0.05 : 0.5));
  clockid_t clock{};
  if (clock_getcpuclockid(broker.pid(), &clock) != 0) Die("no CPU clock");
  const double begin = CpuSeconds(clock);
  const uint64_t rows = job.rows();
  std::this_thread::sleep_for(Seconds(tiny ? 0.1 : 2));
  const uint64_t taken = job.rows() - rows;
  return (CpuSeconds(clock) - begin) * 1e6 / static_cast<double>(taken);
}

int Main(int argc, char** argv) {
  CommandLine line("source_benchmark",
                   "The cost of a row of each source, beside a bare loop");
  SideBySideOptions options;
  std::filesystem::path folder;
  std::string source;
  line.AddOption("--folder", &folder,
                 "Folder for files (0.9 GB), which are kept")
      .Required();
  line.AddOption("--source", &source, "Only sources whose name contains this");
  AddSideBySideOptions(line, &options);
  line.ParseOrExit(argc, argv);
  std::filesystem::create_directories(folder);
  setenv("PENSTOCK_CACHE_DIR", (folder / "cache").c_str(), 1);

  std::vector<Case> cases = {
      Tokens(),
      Npy(64, 1'000'000),
      Npy(12'288, 20'000),
      TextLines(),
      JsonLines(),
      Csv(),
      Tfrecord("tfrecord, 16 floats and a label", DType::kFloat32, 16, 300'000),
      Tfrecord("tfrecord, 12,288 bytes and a label", DType::kUint8, 12'288,
               20'000),
      Webdataset(1024, 100'000),
      Webdataset(49'152, 4'000),
  };
  std::erase_if(cases, [&source](const Case& each) {
    return each.name.find(source) == each.name.npos;
  });
  std::vector<Data> data;
  std::vector<SideBySide> tables;
  for (Case& each : cases) {
    if (options.tiny) each.rows = 64;
    if (each.name.starts_with("npy"))
      each.head = NpyHead(each.rows, each.row_bytes);
    data.push_back(Make(each, folder, data.size()));
    tables.emplace_back(each.name, "us of CPU a row");
  }
  std::vector<SideBySide*> pointers;
  for (size_t i = 0; i < cases.size(); ++i) {
    tables[i].Add("broker",
                  [&, i] { return Broker(cases[i], data[i], options.tiny); });
    tables[i].Add("bare loop", [&, i] { return BareLoop(cases[i], data[i]); });
    pointers.push_back(&tables[i]);
  }
  RunSideBySide(pointers, options);
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
