// Promise: source idx gives the records of MNIST's format, plain or gzip, and
// refuses files whose header or length is wrong without taking memory for them.
// Method: files made here, cut at every byte, and the real Fashion-MNIST.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "broker/source/kinds.h"

namespace penstock::idx_source_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kFashionMnist[] = "/usr/share/datasets/fashion-mnist/";

class IdxSourceTest : public testing::Test {
 protected:
  IdxSourceTest() {
    std::string pattern = testing::TempDir() + "penstock-idx-XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern + "/";
  }
  ~IdxSourceTest() override { std::filesystem::remove_all(folder_); }

  static std::string Header(uint8_t type, const std::vector<uint32_t>& dims) {
    std::string text = {0, 0, static_cast<char>(type),
                        static_cast<char>(dims.size())};
    for (const uint32_t dim : dims) {
      for (int shift = 24; shift >= 0; shift -= 8) {
        text += static_cast<char>(dim >> shift);
      }
    }
    return text;
  }

  std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + name, std::ios::binary) << content;
    return folder_ + name;
  }

  static std::string Gzip(const std::string& content) {
    z_stream stream = {};
    EXPECT_EQ(deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, 0), Z_OK);
    std::string out(deflateBound(&stream, content.size()) + 64, '\0');
    stream.next_in =
        reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
    stream.avail_in = static_cast<uInt>(content.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
    out.resize(stream.total_out);
    deflateEnd(&stream);
    return out;
  }

  std::unique_ptr<Source> Open(const std::string& images,
                               const std::string& labels = "") {
    auto source = OpenSource(IdxSource{images, labels}, &progress_);
    EXPECT_TRUE(source.ok()) << source.status().message();
    return source.ok() ? *std::move(source) : nullptr;
  }

  std::string OpenFails(StatusCode code, const std::string& images,
                        const std::string& labels = "") {
    const auto source = OpenSource(IdxSource{images, labels}, &progress_);
    EXPECT_EQ(source.status().code(), code) << source.status().message();
    return source.status().message();
  }

  // Returns the features of a record; reads with pread.
  std::vector<std::string> Record(const Source& source, uint64_t record) {
    ReadRequest request;
    source.Locate(record, &request);
    std::vector<std::byte> read(request.bytes);
    if (request.kind == ReadRequest::Kind::kRange) {
      EXPECT_EQ(pread(request.fd, read.data(), read.size(),
                      static_cast<off_t>(request.offset)),
                static_cast<ssize_t>(read.size()));
    }
    std::vector<std::byte> scratch;
    RawRecord raw;
    const Status status = source.Unpack(record, {read}, &scratch, &raw);
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<std::string> features;
    for (const auto& bytes : raw) {
      features.emplace_back(reinterpret_cast<const char*>(bytes.data()),
                            bytes.size());
    }
    return features;
  }

  int64_t Label(const Source& source, uint64_t record) {
    int64_t label = -1;
    std::memcpy(&label, Record(source, record).at(1).data(), sizeof(label));
    return label;
  }

  std::string folder_;
  OpenProgress progress_;
};

TEST_F(IdxSourceTest, FashionMnistIsWhatItIs) {
  const std::string prefix = kFashionMnist;
  if (!std::filesystem::exists(prefix)) {
    GTEST_SKIP() << "no Debian package dataset-fashion-mnist";
  }
  auto train = Open(prefix + "train-images-idx3-ubyte.gz",
                    prefix + "train-labels-idx1-ubyte.gz");
  ASSERT_NE(train, nullptr);
  EXPECT_EQ(train->record_count(), 60'000u);
  EXPECT_EQ(train->memory_bytes(), 60'000u * (784 + 8));
  ASSERT_EQ(train->raw_spec().size(), 2u);
  EXPECT_EQ(train->raw_spec()[0].feature.ToString(), "image uint8 [28, 28]");
  EXPECT_EQ(train->raw_spec()[1].feature.ToString(), "label int64 []");
  EXPECT_FALSE(train->raw_spec()[0].encoded);
  std::vector<int64_t> first;
  std::vector<int64_t> histogram(10);
  for (uint64_t i = 0; i < 5; ++i) first.push_back(Label(*train, i));
  for (uint64_t i = 0; i < 60'000; ++i) ++histogram.at(Label(*train, i));
  EXPECT_THAT(first, ElementsAre(9, 0, 0, 3, 0));
  EXPECT_THAT(histogram, testing::Each(6000));

  auto test = Open(prefix + "t10k-images-idx3-ubyte.gz",
                   prefix + "t10k-labels-idx1-ubyte.gz");
  ASSERT_NE(test, nullptr);
  EXPECT_EQ(test->record_count(), 10'000u);
  EXPECT_EQ(progress_.total.load(), 70'000u * (784 + 1));
  EXPECT_EQ(progress_.done.load(), progress_.total.load());
}

TEST_F(IdxSourceTest, PlainAndGzipGiveTheSameRecords) {
  std::string data(100 * 6, '\0');
  std::iota(data.begin(), data.end(), '\0');
  const std::string text = Header(0x08, {100, 2, 3}) + data;
  auto plain = Open(Write("plain.gz", text));  // the name does not matter
  auto gzip = Open(Write("gzip", Gzip(text)));
  ASSERT_TRUE(plain && gzip);
  EXPECT_EQ(plain->memory_bytes(), 0u);
  EXPECT_EQ(gzip->memory_bytes(), 600u);
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_THAT(Record(*plain, i), ElementsAre(data.substr(6 * i, 6)));
    EXPECT_EQ(Record(*plain, i), Record(*gzip, i));
  }
  EXPECT_EQ(plain->Describe(2), folder_ + "plain.gz, record 2 (offset 28)");
}

TEST_F(IdxSourceTest, BigEndianValuesBecomeTheHosts) {
  const std::string data = {0x01, 0x02, 0x03, 0x04,
                            0x40, 0x49, 0x0f, static_cast<char>(0xdb)};
  const std::string int32 = Header(0x0C, {1, 2}) + data;
  for (const std::string& text : {int32, Gzip(int32)}) {
    auto source = Open(Write("images", text));
    ASSERT_NE(source, nullptr);
    EXPECT_EQ(source->raw_spec()[0].feature.ToString(), "image int32 [2]");
    int32_t values[2];
    std::memcpy(values, Record(*source, 0).at(0).data(), sizeof(values));
    EXPECT_THAT(values, ElementsAre(0x01020304, 0x40490fdb));
  }
  auto floats = Open(Write("images", Header(0x0D, {2}) + data));
  ASSERT_NE(floats, nullptr);
  EXPECT_EQ(floats->raw_spec()[0].feature.ToString(), "image float32 []");
  float pi;
  std::memcpy(&pi, Record(*floats, 1).at(0).data(), sizeof(pi));
  EXPECT_FLOAT_EQ(pi, 3.14159274f);

  auto doubles = Open(Write("images", Header(0x0E, {1}) + data));
  ASSERT_NE(doubles, nullptr);
  uint64_t bits;
  std::memcpy(&bits, Record(*doubles, 0).at(0).data(), sizeof(bits));
  EXPECT_EQ(bits, 0x0102030440490fdbu);

  auto shorts = Open(Write("images", Header(0x0B, {4}) + data));
  ASSERT_NE(shorts, nullptr);
  EXPECT_EQ(Record(*shorts, 0).at(0), std::string({0x02, 0x01}));
}

TEST_F(IdxSourceTest, LabelsOfEveryTypeBecomeInt64) {
  const std::string images =
      Write("images", Header(0x08, {2, 1}) + std::string(2, 'x'));
  const auto labels = [&](const std::string& text) {
    auto source = Open(images, Write("labels", text));
    return source == nullptr
               ? std::vector<int64_t>()
               : std::vector<int64_t>{Label(*source, 0), Label(*source, 1)};
  };
  EXPECT_THAT(labels(Header(0x08, {2}) + "\x01\xff"), ElementsAre(1, 255));
  EXPECT_THAT(labels(Gzip(Header(0x09, {2}) + "\x01\xff")), ElementsAre(1, -1));
  EXPECT_THAT(labels(Header(0x0B, {2}) + "\x01\x02\xff\xff"),
              ElementsAre(258, -1));
  EXPECT_THAT(
      labels(Header(0x0D, {2}) + std::string("\x40\x40\0\0\xc0\x40\0\0", 8)),
      ElementsAre(3, -3));
  EXPECT_THAT(
      OpenFails(StatusCode::kInvalidArgument, images,
                Write("labels", Header(0x0D, {2}) + std::string("\x40\x40\0\0"
                                                                "\x7f\xc0\0\0",
                                                                8))),
      HasSubstr("record 1: label nan is not an integer"));
  EXPECT_THAT(OpenFails(StatusCode::kInvalidArgument, images,
                        Write("labels", Header(0x08, {2, 1}) + "ab")),
              HasSubstr("labels have one dimension, found [2, 1] uint8"));
}

TEST_F(IdxSourceTest, LabelsOfOtherImagesAreRefused) {
  const std::string images =
      Write("images", Header(0x08, {3, 1}) + std::string(3, 'x'));
  const std::string labels = Write("labels", Header(0x08, {2}) + "ab");
  EXPECT_THAT(OpenFails(StatusCode::kInvalidArgument, images, labels),
              AllOf(HasSubstr(images + " has 3 images"),
                    HasSubstr(labels + " has 2 labels")));
}

TEST_F(IdxSourceTest, HeaderThatLiesIsDataLoss) {
  const std::string more = Header(0x08, {10, 5}) + std::string(49, 'x');
  const std::string less = Header(0x08, {10, 5}) + std::string(51, 'x');
  EXPECT_THAT(
      OpenFails(StatusCode::kDataLoss, Write("images", more)),
      AllOf(HasSubstr(folder_ + "images: its header says [10, 5] uint8"),
            HasSubstr("wanted 62 bytes in all, found 61")));
  EXPECT_THAT(OpenFails(StatusCode::kDataLoss, Write("images", less)),
              HasSubstr("wanted 62 bytes in all, found 63"));
  EXPECT_THAT(OpenFails(StatusCode::kDataLoss, Write("images", Gzip(more))),
              HasSubstr("wanted 62 bytes in all, found 61"));
  EXPECT_THAT(OpenFails(StatusCode::kDataLoss, Write("images", Gzip(less))),
              HasSubstr("wanted 62 bytes in all, found more"));
}

TEST_F(IdxSourceTest, EveryTruncationOfAGzipIsDataLoss) {
  std::string data(500, '\0');
  std::iota(data.begin(), data.end(), '\0');
  const std::string whole = Gzip(Header(0x08, {100, 5}) + data);
  ASSERT_NE(Open(Write("images", whole)), nullptr);
  for (size_t bytes = 2; bytes < whole.size(); ++bytes) {
    OpenFails(StatusCode::kDataLoss, Write("images", whole.substr(0, bytes)));
  }
  EXPECT_THAT(OpenFails(StatusCode::kDataLoss,
                        Write("images", whole.substr(0, whole.size() - 100))),
              HasSubstr("the gzip stream ends early"));
  std::string flipped = whole;
  flipped[whole.size() - 6] ^= 1;  // in the CRC
  EXPECT_THAT(OpenFails(StatusCode::kDataLoss, Write("images", flipped)),
              HasSubstr("incorrect data check"));
}

TEST_F(IdxSourceTest, HostileHeadersTakeNoMemory) {
  const uint32_t max = 0xffffffff;
  EXPECT_THAT(OpenFails(StatusCode::kInvalidArgument,
                        Write("images", Header(0x08, {1, max, max, max}))),
              HasSubstr("has more than 268435456 bytes"));
  EXPECT_THAT(
      OpenFails(StatusCode::kDataLoss,
                Write("images", Gzip(Header(0x08, {max, 1 << 14, 1 << 14})))),
      HasSubstr("which cannot hold that"));
  EXPECT_THAT(OpenFails(StatusCode::kInvalidArgument,
                        Write("images", Header(0x08, {0, 28, 28}))),
              HasSubstr("the file has no records"));
  EXPECT_THAT(OpenFails(StatusCode::kInvalidArgument,
                        Write("images", Header(0x08, {}))),
              HasSubstr("0 dimensions; wanted 1 to 8"));
  EXPECT_THAT(OpenFails(StatusCode::kInvalidArgument,
                        Write("images", Gzip(std::string("\0\0\x08\xff", 4)))),
              HasSubstr("255 dimensions; wanted 1 to 8"));
}

TEST_F(IdxSourceTest, OtherFilesAreNamedAsSuch) {
  EXPECT_THAT(
      OpenFails(StatusCode::kInvalidArgument, Write("images", "\x89PNG....")),
      HasSubstr("not an idx file: starts with 89 50 4e 47"));
  OpenFails(StatusCode::kDataLoss, Write("images", ""));
  EXPECT_THAT(OpenFails(StatusCode::kNotFound, folder_ + "no/such"),
              HasSubstr(folder_ + "no is missing"));
  EXPECT_THAT(OpenFails(StatusCode::kDataLoss, folder_),
              HasSubstr("is a folder"));
  ASSERT_EQ(mkfifo((folder_ + "fifo").c_str(), 0600), 0);
  EXPECT_THAT(OpenFails(StatusCode::kDataLoss, folder_ + "fifo"),
              HasSubstr("is a FIFO"));
}

TEST_F(IdxSourceTest, PlainFileIsOpenForBlockingReads) {
  auto source = Open(Write("images", Header(0x08, {2, 1}) + "ab"));
  ASSERT_NE(source, nullptr);
  ReadRequest request;
  source->Locate(1, &request);
  EXPECT_EQ(fcntl(request.fd, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(fcntl(request.fd, F_GETFD), FD_CLOEXEC);
}

TEST_F(IdxSourceTest, OpeningCanBeCancelled) {
  progress_.cancel = true;
  OpenFails(StatusCode::kCancelled,
            Write("images", Gzip(Header(0x08, {2, 1}) + "ab")));
}

}  // namespace penstock::idx_source_test
