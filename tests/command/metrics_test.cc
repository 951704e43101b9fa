// Promise: `penstock metrics` exports every field it lists, once, with help,
// type and few labels; the dashboard names only these metrics; HTTP serves them
// to any client, whatever it sends. Method: the pure functions on made-up
// answers; the server in this process. metrics_scrape_test.py has Prometheus
// itself.
#include "client/command/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "client/command/http_server.h"
#include "client/private_broker/interrupt.h"
#include "common/fd.h"
#include "common/format.h"
#include "common/status_fields.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::metrics_test {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

// A number, text or list for every field that status_fields.h declares.
Json Made(std::string_view object) {
  Json made = Json::object();
  for (const AnswerField& field : StatusObjectOf(object).fields) {
    const std::string key(field.key);
    switch (field.type) {
      case FieldType::kText:
        made[key] = key;
        break;
      case FieldType::kSeconds:
      case FieldType::kFraction:
      case FieldType::kNumber:
        made[key] = 0.25;
        break;
      case FieldType::kFlag:
        made[key] = true;
        break;
      case FieldType::kNumbers:
      case FieldType::kList:
        made[key] = Json::array({1, 2});
        break;
      case FieldType::kObject:
        made[key] = Json::object();
        break;
      default:
        made[key] = 7;
    }
  }
  return made;
}

Json MadeStatus() {
  Json status;
  status["broker"] = Made("broker");
  status["broker"]["nodes"] = Json::array({Made("node")});
  status["stores"] = Made("stores");
  status["makers"] = Json::array({Made("maker")});
  status["late_reads"] = Json::array({Made("late read")});
  Json job = Made("job");
  job["remote"] = Made("remote");
  job["remote_rows"] = Made("remote rows");
  job["slots"] = Made("slots");
  job["rows_failed"] = Made("rows failed");
  job["bottleneck"] = Made("bottleneck");
  job["ranks"] = Json::array({Made("rank")});
  job["parts"] = Json::array({Made("part")});
  job["producers"] = Json::array({Made("producer")});
  status["jobs"] = Json::array({job});
  return status;
}

TEST(MetricsTest, EachMetricIsOfADeclaredFieldAndIsWritten) {
  const std::string text = MetricsText(MadeStatus());
  std::set<std::string_view> names;
  for (const Metric& metric : Metrics()) {
    SCOPED_TRACE(metric.name);
    EXPECT_TRUE(names.insert(metric.name).second);
    EXPECT_THAT(text,
                HasSubstr(Format("# TYPE {} {}\n", metric.name,
                                 metric.counter() ? "counter" : "gauge")));
    EXPECT_THAT(
        text, HasSubstr(Format("# HELP {} {}\n", metric.name, HelpOf(metric))));
    EXPECT_THAT(text, testing::ContainsRegex(Format("\n{}[{{ ]", metric.name)));
    if (metric.kind == MetricKind::kCount ||
        metric.kind == MetricKind::kFields) {
      continue;
    }
    bool declared = false;
    for (const AnswerField& field : StatusObjectOf(metric.object).fields) {
      if (field.key != metric.key) continue;
      declared = true;
      // Base units, in the name.
      const std::string_view base =
          metric.counter() ? metric.name.substr(0, metric.name.size() - 6)
                           : metric.name;
      EXPECT_EQ(field.type == FieldType::kSeconds, base.ends_with("_seconds"));
      EXPECT_EQ(field.type == FieldType::kBytes, base.ends_with("_bytes"));
    }
    EXPECT_TRUE(declared);
  }
}

TEST(MetricsTest, SeriesHaveTheNamesOfTheirJobAndNothingElse) {
  Json status = MadeStatus();
  status["jobs"][0]["job"] = "a \"job\"\n\\";
  const std::string text = MetricsText(status);
  EXPECT_THAT(text, HasSubstr("penstock_up 1\n"));
  EXPECT_THAT(text, HasSubstr("penstock_build_info{version=\"version\"} 1\n"));
  EXPECT_THAT(
      text,
      HasSubstr("penstock_rank_wait_seconds_total{job_name=\"a \\\"job\\\"\\n"
                "\\\\\",dataset=\"dataset\",uid=\"7\",consumer=\"7\","
                "rank=\"7\",replica=\"7\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("state=\"quarantined\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("penstock_late_reads 1\n"));
  const std::set<std::string> allowed = {
      "job_name", "dataset", "uid",     "consumer", "rank",    "producer",
      "node",     "state",   "kind",    "what",     "version", "read_backend",
      "delivery", "sandbox", "replica", "part",     "source",  "maker"};
  const std::regex label("[{,]([a-z_]+)=\"");
  for (std::sregex_iterator each(text.begin(), text.end(), label), end;
       each != end; ++each) {
    EXPECT_TRUE(allowed.contains((*each)[1].str())) << (*each)[1];
  }
}

TEST(MetricsTest, NoSeriesComesTwiceAndRanksAreBounded) {
  Json status = MadeStatus();
  // A job that ends, and the next of its name.
  status["jobs"].push_back(status["jobs"][0]);
  status["jobs"][1]["rows"] = 8;
  Json& ranks = status["jobs"][1]["ranks"];
  for (size_t rank = 0; rank < kRanksExported + 5; ++rank) {
    Json each = ranks[0];
    each["rank"] = rank + 1000;
    ranks.push_back(each);
  }
  const std::string text = MetricsText(status);
  std::set<std::string> series;
  size_t begin = 0, of_ranks = 0;
  while (begin < text.size()) {
    const size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with('#')) continue;
    EXPECT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << line;
    of_ranks += line.starts_with("penstock_rank_waits_total{");
  }
  EXPECT_EQ(of_ranks, kRanksExported);
  EXPECT_THAT(text, HasSubstr("penstock_ranks_left_out 6\n"));
  EXPECT_THAT(
      text, testing::ContainsRegex("penstock_job_rows_total\\{[^\n]*\\} 8\n"));
}

TEST(MetricsTest, AnswersOfAnyShapeAreSafe) {
  EXPECT_EQ(MetricsText(Json()),
            "# HELP penstock_up penstockd: 1: the broker answers, 0: it does "
            "not\n# TYPE penstock_up gauge\npenstock_up 0\n");
  for (
      const char* text :
      {"{}", R"({"broker": 3, "jobs": {}})", R"({"jobs": [1, null, {}]})",
       R"({"jobs": [{"job": 5, "ranks": [{}, {"rank": -1}], "slots": []}]})"}) {
    EXPECT_THAT(MetricsText(Json::parse(text)), HasSubstr("penstock_up 1\n"));
  }
}

TEST(MetricsTest, TheDashboardNamesOnlyTheseMetricsAndIsTheFile) {
  std::set<std::string> known = {"penstock_up", "penstock_ranks_left_out"};
  for (const Metric& metric : Metrics()) known.emplace(metric.name);
  const std::string dashboard = DashboardText();
  const std::regex name("penstock_[a-z_]+");
  size_t found = 0;
  const Json json = Json::parse(dashboard);
  for (const Json& panel : json["panels"]) {
    for (const Json& target : panel["targets"]) {
      const std::string text = target["expr"];
      for (std::sregex_iterator each(text.begin(), text.end(), name), end;
           each != end; ++each, ++found) {
        EXPECT_TRUE(known.contains(each->str())) << each->str();
      }
    }
  }
  EXPECT_GT(found, 20u);
  EXPECT_EQ(json["templating"]["list"].size(), 3u);
  EXPECT_EQ(json["templating"]["list"][1]["name"], "instance");
  EXPECT_GT(json["panels"].size(), 10u);
  EXPECT_EQ(json["panels"][0]["gridPos"]["w"], 12);
  for (const Json& panel : json["panels"]) {
    EXPECT_FALSE(panel["targets"].empty());
    EXPECT_NE(panel["description"], "");
  }
  std::ifstream file(PENSTOCK_SOURCE_DIR "/systemd/penstock-dashboard.json");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), dashboard)
      << "penstock metrics --dashboard > systemd/penstock-dashboard.json";
}

// ---- HTTP

class HttpTest : public testing::Test {
 protected:
  // The server runs in a child, which a signal ends.
  void SetUp() override {
    int address[2];
    ASSERT_EQ(pipe(address), 0);
    const Fd from(address[0]);
    const Fd to(address[1]);
    child_ = fork();
    if (child_ != 0) {
      char text[64];
      const ssize_t count = read(from.get(), text, sizeof(text));
      ASSERT_GT(count, 0);
      address_.assign(text, static_cast<size_t>(count));
      return;
    }
    CatchInterrupts();
    const auto server = HttpServer::Listen("127.0.0.1:0");
    if (!server.ok()) _exit(2);
    const std::string& text = (*server)->address();
    if (write(to.get(), text.data(), text.size()) < 0) _exit(3);
    (*server)->Run([](const HttpRequest& request) {
      HttpAnswer answer;
      answer.body = request.target + " " + request.host + " " + request.origin;
      return answer;
    });
    _exit(InterruptSignal() == SIGTERM ? 0 : 1);
  }
  void TearDown() override {
    if (child_ <= 0) return;
    kill(child_, SIGTERM);
    int status = 0;
    waitpid(child_, &status, 0);
    EXPECT_EQ(status, 0);
  }

  Fd Connect() const {
    const uint16_t port = static_cast<uint16_t>(
        std::stoi(address_.substr(address_.rfind(':') + 1)));
    Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)),
              0);
    const timeval timeout{5, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    return fd;
  }
  // What it answers until it closes or `end` has come.
  static std::string Answer(const Fd& fd, const std::string& end = "") {
    std::string text;
    char buffer[4096];
    while (end.empty() || text.find(end) == std::string::npos) {
      const ssize_t count = recv(fd.get(), buffer, sizeof(buffer), 0);
      if (count <= 0) break;
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }
  static void Send(const Fd& fd, const std::string& text) {
    (void)!send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  std::string Ask(const std::string& request) const {
    const Fd fd = Connect();
    Send(fd, request);
    return Answer(fd);
  }

  std::string address_;
  pid_t child_ = -1;
};

TEST_F(HttpTest, GetsAndHeadsAreAnswered) {
  const std::string rest = "Host: here\r\nConnection: close\r\n\r\n";
  const std::string got = Ask("GET /metrics?x=1 HTTP/1.1\r\n" + rest);
  EXPECT_THAT(got, testing::StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(got, testing::EndsWith("\r\n\r\n/metrics?x=1 here "));
  const std::string head = Ask("HEAD / HTTP/1.1\r\n" + rest);
  EXPECT_THAT(head, HasSubstr("Content-Length: 7\r\n"));
  EXPECT_THAT(head, testing::EndsWith("\r\n\r\n"));
  EXPECT_THAT(Ask("DELETE / HTTP/1.1\r\n" + rest), HasSubstr(" 405 "));
  // One connection for many requests.
  const Fd kept = Connect();
  for (int i = 0; i < 3; ++i) {
    Send(kept, Format("GET /{} HTTP/1.1\r\nHost: here\r\n\r\n", i));
    EXPECT_THAT(Answer(kept, Format("/{} here", i)), HasSubstr(" 200 "));
  }
}

TEST_F(HttpTest, WhatAClientSendsHarmsNobodyElse) {
  const Fd silent = Connect();
  const Fd slow = Connect();
  Send(slow, "GET / HT");
  for (const std::string& text :
       {std::string("\0\xff\r\n\r\n", 6), std::string("GET\r\n\r\n"),
        "GET / HTTP/1.1\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n",
        std::string("POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"),
        "GET /" + std::string(70'000, 'y') + " HTTP/1.1\r\n\r\n"}) {
    EXPECT_THAT(Ask(text), Not(HasSubstr(" 200 "))) << text.substr(0, 20);
  }
  // More connections than it serves are closed.
  {
    std::vector<Fd> many;
    for (size_t i = 0; i < HttpServer::kConnections + 8; ++i) {
      many.push_back(Connect());
    }
    EXPECT_EQ(Answer(many.back()), "");
  }
  std::string got;
  for (int i = 0; i < 50 && got.empty(); ++i) {
    got = Ask("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    if (got.empty()) usleep(20'000);  // until it has seen those end
  }
  EXPECT_THAT(got, HasSubstr(" 200 "));
}

TEST(HttpServerTest, AddressesAreChecked) {
  for (const char* address : {"", "9100", "127.0.0.1:", "127.0.0.1:http",
                              "127.0.0.1:99999", "no.such.host.invalid:1"}) {
    EXPECT_FALSE(HttpServer::Listen(address).ok()) << address;
  }
  const auto first = HttpServer::Listen("127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  const auto second = HttpServer::Listen((*first)->address());
  // SO_REUSEADDR does not let two listen.
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr("in use"));
  EXPECT_TRUE(HttpServer::Listen(":0").ok());
}

}  // namespace penstock::metrics_test
