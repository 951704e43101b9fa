// Promise: a link takes nothing from another that does not follow the protocol,
// and never puts a row in the place of another. Method: messages that are cut
// off, too large or made up; batches from which rows are missing.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "client/link/connection.h"
#include "client/link/remotes.h"
#include "client/link/wire.h"
#include "common/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::link_wire_test {

using testing::ElementsAre;
using testing::HasSubstr;

DatasetRequest Request() {
  DatasetRequest request;
  request.spec = "{}";
  request.fingerprint = "f";
  request.records = 7;
  request.features = {{"image", DType::kUint8, {4, 4, 3}},
                      {"label", DType::kInt64, {}}};
  request.offsets = {0, 48};
  request.row_bytes = 64;
  request.rows = 8;
  return request;
}

TEST(LinkWireTest, AConnectionToAHostThatSaysNothingEndsWithinAMinute) {
  const Fd fd(socket(AF_INET, SOCK_STREAM, 0));
  PrepareSocket(fd.get());
  const auto option = [&](int level, int name) {
    int value = 0;
    socklen_t size = sizeof(value);
    EXPECT_EQ(getsockopt(fd.get(), level, name, &value, &size), 0);
    return value;
  };
  EXPECT_NE(option(SOL_SOCKET, SO_KEEPALIVE), 0);
  EXPECT_LT(
      option(IPPROTO_TCP, TCP_KEEPIDLE) +
          option(IPPROTO_TCP, TCP_KEEPCNT) * option(IPPROTO_TCP, TCP_KEEPINTVL),
      60);
  const int unanswered_ms = option(IPPROTO_TCP, TCP_USER_TIMEOUT);
  EXPECT_GT(unanswered_ms, 0);
  EXPECT_LT(unanswered_ms, 60'000);
}

TEST(LinkWireTest, ADatasetComesAsItWasSent) {
  const auto read = DatasetRequest::FromJson(Request().ToJson());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->ToJson(), Request().ToJson());
}

TEST(LinkWireTest, ADatasetWhoseRowsOverflowIsRefused) {
  const auto refused = [](auto change) {
    DatasetRequest request = Request();
    change(&request);
    return !DatasetRequest::FromJson(request.ToJson()).ok();
  };
  EXPECT_TRUE(refused([](auto* r) { r->offsets = {0, 60}; }));
  EXPECT_TRUE(refused([](auto* r) { r->offsets = {0, 40}; }));
  EXPECT_TRUE(refused([](auto* r) { r->offsets = {0}; }));
  EXPECT_TRUE(refused([](auto* r) { r->offsets[1] = UINT64_MAX; }));
  EXPECT_TRUE(refused([](auto* r) { r->row_bytes = 0; }));
  EXPECT_TRUE(refused([](auto* r) { r->row_bytes = UINT64_MAX; }));
  EXPECT_TRUE(refused([](auto* r) { r->rows = 0; }));
  EXPECT_TRUE(refused([](auto* r) { r->rows = 100'000; }));
  EXPECT_TRUE(refused([](auto* r) { r->features.clear(); }));
  const nlohmann::json whole = Request().ToJson();
  for (const auto& [key, value] : whole.items()) {
    nlohmann::json json = whole;
    json.erase(key);
    EXPECT_FALSE(DatasetRequest::FromJson(json).ok()) << key;
    json[key] = nullptr;
    EXPECT_FALSE(DatasetRequest::FromJson(json).ok()) << key;
  }
  EXPECT_FALSE(DatasetRequest::FromJson("no").ok());
}

TEST(LinkWireTest, RowsComeAsTheyWereSent) {
  const RowsRequest request = {3, {{1, 2}, {5, 0}}};
  const auto read = RowsRequest::FromBytes(request.ToBytes());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->dataset, 3u);
  EXPECT_EQ(read->rows, request.rows);
}

TEST(LinkWireTest, RowsThatAreCutOffAreRefused) {
  const std::string bytes = RowsRequest{3, {{1, 2}, {5, 0}}}.ToBytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(RowsRequest::FromBytes(bytes.substr(0, i)).ok()) << i;
  }
  EXPECT_FALSE(RowsRequest::FromBytes(bytes + "x").ok());
  EXPECT_FALSE(RowsRequest::FromBytes(RowsRequest{3, {}}.ToBytes()).ok());
}

TEST(LinkWireTest, MissingRowsAreFoundByTheirIds) {
  const std::vector<RowKey> asked = {{4, 0}, {9, 0}, {2, 0}};
  EXPECT_THAT(FindAsked(asked, std::vector<int64_t>{4, 9, 2}),
              ElementsAre(0, 1, 2));
  EXPECT_THAT(FindAsked(asked, std::vector<int64_t>{4, 2}),
              ElementsAre(0, -1, 1));
  EXPECT_THAT(FindAsked(asked, std::vector<int64_t>{}),
              ElementsAre(-1, -1, -1));
}

TEST(LinkWireTest, ARowIsNotTakenForAnotherOfItsRecord) {
  const std::vector<RowKey> asked = {{4, 0}, {4, 1}, {2, 0}};
  EXPECT_THAT(FindAsked(asked, std::vector<int64_t>{4, 4, 2}),
              ElementsAre(0, 1, 2));
  EXPECT_THAT(FindAsked(asked, std::vector<int64_t>{4, 2}),
              ElementsAre(-1, -1, 1));
}

TEST(LinkWireTest, PathsAreMappedByWholeFolders) {
  nlohmann::ordered_json spec = {{"path", "/a/b/c"},
                                 {"list", {"/a/bc", "/a/b", "a/b"}}};
  MapPaths({*ParsePathMap("/a/b=/x/")}, &spec);
  EXPECT_EQ(spec["path"], "/x/c");
  EXPECT_THAT(spec["list"].dump(), HasSubstr(R"(["/a/bc","/x","a/b"])"));
  for (const char* wrong : {"", "/a", "=/a", "/a="}) {
    EXPECT_FALSE(ParsePathMap(wrong).ok()) << wrong;
  }
}

TEST(LinkWireTest, ASpecThatIsNestedTooDeeplyIsRefused) {
  EXPECT_TRUE(ParseSpecOfLink(R"({"a": [[1]]})").ok());
  const std::string deep(500'000, '[');
  EXPECT_FALSE(ParseSpecOfLink(deep).ok());
  EXPECT_FALSE(
      ParseSpecOfLink(R"({"a":)" + deep + "1" + std::string(500'000, ']') + "}")
          .ok());
  EXPECT_FALSE(ParseSpecOfLink("[1]").ok());
  EXPECT_FALSE(ParseSpecOfLink("").ok());
}

TEST(RemotesTest, AListAFileOrAName) {
  const auto list = Remotes::Parse("a:1,[::1]:2,b");
  ASSERT_TRUE(list.ok()) << list.status().message();
  ASSERT_EQ(list->list.size(), 3u);
  EXPECT_EQ(list->list[1].host, "::1");
  EXPECT_EQ(list->list[1].port, "2");
  EXPECT_EQ(list->list[2].port, kLinkPort);
  EXPECT_EQ(Remotes::Parse("file:/x")->path, "/x");
  EXPECT_EQ(Remotes::Parse("dns:makers:99")->name.port, "99");
  for (const char* wrong :
       {"", ",", "a:0", "a:70000", "a b", "http://x", "dns:", "a:b:c:d e"}) {
    EXPECT_FALSE(Remotes::Parse(wrong).ok()) << wrong;
  }
}

}  // namespace penstock::link_wire_test
