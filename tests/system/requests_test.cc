// Promise: the broker takes and answers what its requests declare, no more and
// no less, and so do the pages of common/requests/. Method: each declared field
// is sent to a broker with values of every wrong type and beyond each bound;
// each request is sent once as it should be and its answer compared; the tables
// of the pages are made again from the declaration.
#include "broker/request/requests.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "common/deadline.h"
#include "common/element_spec.h"
#include "common/segment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/answer_fields.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::requests_test {

using nlohmann::json;
using testing::HasSubstr;

// The smallest and the largest value that the field may have.
std::vector<json> GoodValues(const FieldValue& value) {
  switch (value.type) {
    case FieldType::kText:
      if (!value.words.empty())
        return {value.words.front(), value.words.back()};
      return {"", std::string(value.max, 'x')};
    case FieldType::kCount:
      return {value.min, value.max};
    case FieldType::kSeconds:
      return {1e-3, value.max};
    case FieldType::kFlag:
      return {false, true};
    case FieldType::kNumbers:
      return {json::array(), std::vector<uint64_t>(value.max, UINT64_MAX)};
    case FieldType::kObject:
      return {json::object()};
    default:
      return {json::array()};
  }
}

// As nlohmann::json calls it.
std::string_view KindOf(FieldType type) {
  switch (type) {
    case FieldType::kText:
      return "string";
    case FieldType::kFlag:
      return "boolean";
    case FieldType::kNumbers:
    case FieldType::kList:
      return "array";
    case FieldType::kObject:
      return "object";
    default:
      return "number";
  }
}

std::vector<json> BadValues(const FieldValue& value) {
  std::vector<json> bad;
  for (const json& each : {json(nullptr), json(true), json(1), json("1"),
                           json::array(), json::object()}) {
    if (each.type_name() != KindOf(value.type)) bad.push_back(each);
  }
  switch (value.type) {
    case FieldType::kText:
      bad.push_back(std::string(value.max + 1, 'x'));
      break;
    case FieldType::kCount:
      bad.insert(bad.end(), {-1, INT64_MIN, 1.5, 1e300});
      if (value.min > 0) bad.push_back(value.min - 1);
      if (value.max < UINT64_MAX) bad.push_back(value.max + 1);
      break;
    case FieldType::kSeconds:
      bad.insert(bad.end(), {-1, 0, value.max + 1, 1e300});
      break;
    case FieldType::kNumbers:
      for (const json& item : {json(-1), json(0.5), json("1"), json(nullptr)}) {
        bad.push_back(json::array({0, item}));
      }
      bad.push_back(std::vector<uint64_t>(value.max + 1));
      break;
    default:
      break;
  }
  return bad;
}

std::vector<RequestField> FieldsOf(const DeclaredRequest& request) {
  std::vector<RequestField> fields(request.fields.begin(),
                                   request.fields.end());
  fields.insert(fields.end(), request.shared.begin(), request.shared.end());
  return fields;
}

// With what must be there, and beside it the field's companions.
json Smallest(const DeclaredRequest& request, std::string_view with = "") {
  json smallest = {{"op", request.op}};
  for (const RequestField& field : FieldsOf(request)) {
    if (field.needed == kAlways || field.key == with ||
        (!field.needed.empty() && field.needed == with)) {
      smallest[std::string(field.key)] = GoodValues(field.value)[0];
    }
  }
  return smallest;
}

class RequestsTest : public DeliveryTest {
 protected:
  StatusOr<Message> Try(json request, const std::vector<int>& fds = {}) {
    StatusOr<Fd> socket = ConnectControl(broker_.socket());
    if (!socket.ok()) return socket.status();
    socket_ = *std::move(socket);
    return Send(std::move(request), fds);
  }
  // On the same connection.
  StatusOr<Message> Send(json request, const std::vector<int>& fds = {}) {
    // A request that is taken although it is wrong may wait for others.
    constexpr double kPatience_s = 20;
    return Request(socket_.get(), std::move(request), fds,
                   DeadlineOf(kPatience_s));
  }
  // Compares the answer with the declaration.
  void Check(StatusOr<Message> answer, std::string_view op) {
    ASSERT_TRUE(answer.ok()) << op << ": " << answer.status().message();
    answer->json.erase("ok");
    for (const DeclaredRequest& request : DeclaredRequests()) {
      if (request.op != op) continue;
      CheckAnswer(std::string(op), answer->json, request.answer, &seen_);
      answered_.insert(op);
    }
  }
  void ExpectRefused(const json& request, std::string_view key) {
    const StatusOr<Message> answer = Try(request);
    EXPECT_EQ(answer.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(answer.status().message(),
                HasSubstr(Format("request: '{}' is ", key)))
        << request.dump().substr(0, 500);
  }

  Fd socket_;
  std::set<std::string> seen_;
  std::set<std::string_view> answered_;
};

TEST_F(RequestsTest, EachFieldThatIsWrongOrMissingIsRefusedByName) {
  for (const DeclaredRequest& request : DeclaredRequests()) {
    for (const RequestField& field : FieldsOf(request)) {
      const std::string key(field.key);
      for (const json& bad : BadValues(field.value)) {
        json wrong = Smallest(request, key);
        wrong[key] = bad;
        ExpectRefused(wrong, key);
      }
      if (field.needed.empty()) continue;
      json without = Smallest(request, field.needed);
      without.erase(key);
      ExpectRefused(without, key);
    }
  }
  // The broker still serves.
  EXPECT_TRUE(Try({{"op", "ping"}}).ok());
}

TEST_F(RequestsTest, EachFieldMayBeItsBounds) {
  for (const DeclaredRequest& request : DeclaredRequests()) {
    for (const RequestField& field : FieldsOf(request)) {
      for (const json& good : GoodValues(field.value)) {
        json right = Smallest(request, field.key);
        right[std::string(field.key)] = good;
        const Status status = CheckRequest(right);
        EXPECT_TRUE(status.ok()) << status.message();
      }
    }
  }
}

TEST_F(RequestsTest, WhatIsNotDeclaredIsIgnored) {
  EXPECT_TRUE(Try({{"op", "ping"}, {"fields of a newer client", {1, 2}}}).ok());
}

TEST_F(RequestsTest, OperationsThatAreNoneAreRefused) {
  EXPECT_THAT(Try({{"op", "no such"}}).status().message(),
              HasSubstr("unknown operation 'no such'"));
  ExpectRefused({{"op", 5}}, "op");
  ExpectRefused(json::object(), "op");
}

TEST_F(RequestsTest, FieldsThatOnlySomeNeedAreMissedByName) {
  ExpectRefused({{"op", "parse"}}, "dataset");
  for (const char* op : {"state", "stop", "weights", "fingerprint"}) {
    ExpectRefused({{"op", op}}, "job");
  }
  ExpectRefused({{"op", "evict"}, {"rank", 0}}, "job");
}

TEST_F(RequestsTest, AnswersHaveTheDeclaredFieldsAndNoOthers) {
  const json of_file = {{"spec",
                         "dataset: numbers\nsource: {mix: {parts: [{source: "
                         "{range: 64}}, {source: {range: 64}}]}}\nbatch: "
                         "{size: 8}\ncache: {memory: 1M}\n"},
                        {"file", "spec"},
                        {"base", "/"}};
  const auto with_spec = [&](json request) {
    request.update(of_file);
    return request;
  };
  Check(Try({{"op", "link"}, {"asks", 4}}), "link");
  ASSERT_TRUE(SendMessage(socket_.get(), {{"penstock", kProtocolVersion},
                                          {"op", "makers"},
                                          {"makers", {{{"maker", "a:1"}}}}})
                  .ok());
  EXPECT_TRUE(Send({{"op", "ping"}}).ok());  // it is heard by now
  const Fd link = std::move(socket_);
  for (const char* op : {"parse", "index", "register"}) {
    Check(Try(with_spec({{"op", op}})), op);
  }
  for (const char* op : {"ping", "datasets", "jobs", "status"}) {
    Check(Try({{"op", op}}), op);
  }
  Check(Try({{"op", "unregister"}, {"dataset", "numbers"}}), "unregister");
  Check(Try({{"op", "workers"}, {"workers", 1}}), "workers");

  // Parts of different shapes.
  json of_parts = {{"op", "index"},
                   {"spec",
                    "dataset: parts\nsource: {mix: {parts: [{source: {range: "
                    "9}}, {source: {range: 9}}]}}\nmap_by_part: [[one_hot: "
                    "{classes: 9}], [one_hot: {classes: 8}]]\nbatch: {by_part: "
                    "[2, 3]}\n"},
                   {"file", "spec"},
                   {"base", "/"},
                   {"row", 3}};
  EXPECT_THAT(Try(of_parts).status().message(),
              HasSubstr("request: 'epoch' is missing"));
  of_parts["epoch"] = 0;
  Check(Try(of_parts), "index");
  of_parts.update({{"op", "attach"},
                   {"job", "parts"},
                   {"rank", 0},
                   {"world_size", 1},
                   {"local_world_size", 1}});
  const auto other_page = CreateCursor();
  ASSERT_TRUE(other_page.ok());
  Check(Try(of_parts, {other_page->fd.get()}), "attach");

  json attach = with_spec({{"op", "attach"},
                           {"job", "numbers"},
                           {"rank", 0},
                           {"world_size", 2},
                           {"local_world_size", 2}});
  for (const char* key : {"rank", "full_epoch"}) {
    const auto page = CreateCursor();
    ASSERT_TRUE(page.ok());
    json wrong = attach;
    if (key == std::string("rank")) {
      wrong.erase("rank");
    } else {
      wrong.update({{"delivery", "broadcast"},
                    {"full_epoch", true},
                    {"incarnation", 1},
                    {"token", 1},
                    {"position", 0},
                    {"phase", 0},
                    {"owed", json::array()},
                    {"taken", 0}});
      key = "epochs_from";
    }
    const StatusOr<Message> answer = Try(wrong, {page->fd.get()});
    EXPECT_THAT(answer.status().message(),
                HasSubstr(Format("request: '{}' is missing", key)));
  }
  const auto page = CreateCursor();
  ASSERT_TRUE(page.ok());
  Check(Try(attach, {page->fd.get()}), "attach");
  // A rank need not name its own job.
  Check(Send({{"op", "state"}}), "state");
  Check(Send({{"op", "state"}, {"spec", true}}), "state");
  Check(Send({{"op", "fingerprint"}}), "fingerprint");
  Check(Send({{"op", "fingerprint"}, {"part", "source"}}), "fingerprint");
  Check(Send({{"op", "weights"}}), "weights");
  Check(Send({{"op", "weights"}, {"weights", {1, 4}}}), "weights");
  Check(Send({{"op", "trace"}, {"seconds", 0.01}}), "trace");
  Check(Send({{"op", "measure"}, {"seconds", 0.01}}), "measure");
  Check(Send({{"op", "failures"}}), "failures");
  Check(Send({{"op", "evict"}, {"rank", 0}}), "evict");
  Check(Send({{"op", "stop"}}), "stop");

  Options consumer = OptionsFor(
      "dataset: rows\nsource: {stream: {features: {value: {dtype: int64, "
      "shape: []}}}}\nbatch: {size: 4}\n",
      0, 1);
  const Reader reader(consumer);
  const json produce = {
      {"op", "produce"},
      {"job", consumer.job},
      {"features", ElementSpecToJson({{"value", DType::kInt64, {}}})},
      {"rows", 4}};
  Check(Try(produce), "produce");
  Check(Send({{"op", "put"}, {"place", 0}, {"rows", 1}}), "put");
  Check(Send({{"op", "finish"}}), "finish");
  Check(Try({{"op", "shutdown"}}), "shutdown");

  for (const DeclaredRequest& request : DeclaredRequests()) {
    // These are not answered.
    constexpr std::string_view kSilent[] = {"detach", "unmapped", "ask", "made",
                                            "makers"};
    EXPECT_NE(answered_.contains(request.op),
              std::find(std::begin(kSilent), std::end(kSilent), request.op) !=
                  std::end(kSilent))
        << request.op;
    for (const AnswerField& field : request.answer) {
      const std::string name = Format("{}.{}", request.op, field.key);
      // Only a producer that comes back, or a broker of object stores, has it.
      EXPECT_EQ(seen_.contains(name), name != "produce.finished" &&
                                          name != "status.stores" &&
                                          name != "index.remote")
          << name;
    }
  }
}

// ---- the pages of common/requests/

// Every list of fields once, under the requests that have it.
std::vector<std::string> FieldTables() {
  std::vector<std::string> tables;
  std::set<const RequestField*> seen;
  for (const DeclaredRequest& declared : DeclaredRequests()) {
    for (const auto& fields : {declared.fields, declared.shared}) {
      if (fields.empty() || !seen.insert(fields.data()).second) continue;
      std::vector<std::string> ops;
      for (const DeclaredRequest& each : DeclaredRequests()) {
        if (each.fields.data() == fields.data() ||
            each.shared.data() == fields.data()) {
          ops.push_back(Format("`{}`", each.op));
        }
      }
      std::string table = Format(
          "{}:\n\n| field | value | needed | meaning |\n|---|---|---|---|\n",
          JoinText(ops, ", "));
      for (const RequestField& field : fields) {
        const bool beside = !field.needed.empty() && field.needed != kAlways;
        table +=
            Format("| `{}` | {} | {} | {} |\n", field.key, field.value.Wanted(),
                   beside ? Format("with `{}`", field.needed)
                          : std::string(field.needed),
                   field.text);
      }
      tables.push_back(table);
    }
  }
  return tables;
}

TEST(RequestsPagesTest, TablesAreTheDeclaration) {
  std::string all =
      "| request | what for | its descriptors | those of the answer | events "
      "after it |\n|---|---|---|---|---|\n";
  std::vector<std::string> tables = FieldTables();
  for (const DeclaredRequest& each : DeclaredRequests()) {
    all += Format("| `{}` | {} | {} | {} | {} |\n", each.op, each.text,
                  each.descriptors, each.answer_descriptors, each.events);
    if (each.answer.empty()) continue;
    std::string answer =
        Format("Answer to `{}`:\n\n| field | meaning |\n|---|---|\n", each.op);
    for (const AnswerField& field : each.answer) {
      answer += Format("| `{}` | {} |\n", field.key, field.text);
    }
    tables.push_back(std::move(answer));
  }
  tables.push_back(std::move(all));
  std::stringstream text;
  for (const auto& page : std::filesystem::directory_iterator(
           PENSTOCK_SOURCE_DIR "/common/requests")) {
    text << std::ifstream(page.path()).rdbuf() << "\n";
  }
  const std::string pages = text.str();
  for (const std::string& table : tables) {
    EXPECT_NE(pages.find("\n" + table + "\n"), std::string::npos)
        << "a page of common/requests/ must have:\n\n"
        << table;
  }
}

}  // namespace penstock::requests_test
