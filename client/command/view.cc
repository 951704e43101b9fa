// penstock view: a page in the browser about a running broker, served on
// loopback by this command, or kept as a file.
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "client/command/http_server.h"
#include "client/command/job_batch.h"
#include "client/command/job_options.h"
#include "client/command/output_file.h"
#include "client/command/subcommand.h"
#include "client/command/view_page.h"
#include "client/private_broker/control_call.h"
#include "client/private_broker/interrupt.h"
#include "client/private_broker/json_field.h"
#include "common/command_line.h"
#include "common/deadline.h"
#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr int kPageSecondsMax = 300;  // samples that the page keeps
constexpr std::string_view kRecorded = "/*RECORDED*/null";
constexpr std::string_view kBatches = "/*BATCHES*/null";
constexpr size_t kBatchesKept = 4;  // jobs whose last batch a file has

struct ViewOptions {
  std::string socket;
  std::string out;
  int seconds = 10;
  int port = 0;
};

// Nobody else on this machine can guess it: loopback is open to all users.
StatusOr<std::string> MakeToken() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
    return ErrnoError(errno, "getrandom");
  }
  std::string token;
  for (const unsigned char byte : bytes) token += Format("{:02x}", byte);
  return token;
}

std::string KeyOf(const Json& job) {
  const std::optional<uint64_t> consumer = CountField(job, "consumer");
  return Format("{} / {} / {} / {}", TextField(job, "job"),
                TextField(job, "dataset"), CountField(job, "uid").value_or(0),
                consumer ? std::to_string(*consumer) : "");
}

StatusOr<Json> AskStatus(const ViewOptions& options) {
  return CallBroker(options.socket, {{"op", "status"}});
}

// The last batch of the job at this place of the status, as the page wants it.
Json BatchOf(const ViewOptions& options, const Json& job) {
  const StatusOr<Json> batch = LastBatch(
      options.socket, {TextField(job, "job"), TextField(job, "dataset"),
                       CountField(job, "world_size").value_or(1)});
  return batch.ok() ? *batch
                    : Json{{"error", Printable(batch.status().message())}};
}

// "a%20b": as encodeURIComponent writes it.
std::string Decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 3], byte, 16).ptr ==
            &text[i + 3]) {
      decoded += static_cast<char>(byte);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

// key: "job / dataset / uid / consumer", as the page names a job.
StatusOr<Json> JobOfKey(const ViewOptions& options, const std::string& key) {
  PENSTOCK_ASSIGN_OR_RETURN(const Json status, AskStatus(options));
  for (const Json& job : ArrayField(status, "jobs")) {
    if (KeyOf(job) == key) return job;
  }
  return NotFoundError("this job is over");
}

StatusOr<int> Serve(const ViewOptions& options) {
  // A broker that is not there is an error to read here.
  PENSTOCK_RETURN_IF_ERROR(AskStatus(options).status());
  PENSTOCK_ASSIGN_OR_RETURN(const std::string token, MakeToken());
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<HttpServer> server,
      HttpServer::Listen(Format("127.0.0.1:{}", options.port)));
  const std::string address = server->address();
  const std::string port = address.substr(address.rfind(':'));
  Print(stdout, "http://{}/{}/\n", address, token);
  std::fflush(stdout);
  server->Run([&](const HttpRequest& request) {
    // A page of another site, under a name that leads here (DNS rebinding).
    const bool host =
        request.host == address || request.host == "localhost" + port;
    const bool origin =
        request.origin.empty() || request.origin == "http://" + request.host;
    const std::string base = "/" + token + "/";
    HttpAnswer answer;
    if (!host || !origin) {
      answer = {403, answer.type, "not for this host or origin\n"};
    } else if (request.target == base) {
      answer.type = "text/html; charset=utf-8";
      answer.body = kViewPage;
    } else if (request.target == base + "status") {
      const StatusOr<Json> status = AskStatus(options);
      if (status.ok()) {
        answer.type = "application/json";
        answer.body = JsonLine(*status);
      } else {
        answer = {503, answer.type, Printable(status.status().message())};
      }
    } else if (request.target.starts_with(base + "batch?")) {
      const StatusOr<Json> job =
          JobOfKey(options, Decoded(request.target.substr(base.size() + 6)));
      answer.type = "application/json";
      answer.body = JsonLine(
          job.ok() ? BatchOf(options, *job)
                   : Json{{"error", Printable(job.status().message())}});
    } else {
      answer = {404, answer.type, "the address was printed at the start\n"};
    }
    return answer;
  });
  return 0;
}

std::string InScript(const Json& json) {
  std::string text;
  // "</script>" in a name would end the script.
  for (const char c : JsonLine(json)) {
    c == '<' ? text += "\\u003c" : text += c;
  }
  return text;
}

StatusOr<int> Keep(const ViewOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  Json samples = Json::array();
  for (int i = 0; i <= options.seconds; ++i) {
    pollfd interrupt{InterruptFd(), POLLIN, 0};
    poll(&interrupt, 1, MillisecondsUntil(begin + std::chrono::seconds(i)));
    PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
    PENSTOCK_ASSIGN_OR_RETURN(Json status, AskStatus(options));
    samples.push_back(
        {{"t", SecondsSince(begin)}, {"status", std::move(status)}});
  }
  Json batches = Json::object();
  for (const Json& job :
       ArrayField(FieldOf(samples.back(), "status"), "jobs")) {
    if (batches.size() == kBatchesKept) break;
    if (CountField(job, "uid") != uint64_t{geteuid()}) continue;
    batches[KeyOf(job)] = BatchOf(options, job);
    PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
  }
  std::string page(kViewPage);
  page.replace(page.find(kRecorded), kRecorded.size(), InScript(samples));
  page.replace(page.find(kBatches), kBatches.size(), InScript(batches));
  PENSTOCK_RETURN_IF_ERROR(WriteWhole(options.out, page));
  Print(stdout, "{}: {}\n", Printable(options.out),
        Counted(static_cast<uint64_t>(options.seconds), "second"));
  return 0;
}

}  // namespace

Subcommand AddView(Command parent) {
  Command view = parent.AddCommand(
      "view", "Show a running broker and its jobs in the browser");
  const auto options = std::make_shared<ViewOptions>();
  const CommandOption port =
      view.AddOption("--port", &options->port,
                     "Port on 127.0.0.1 (default: a free one)")
          .InRange(0, 65535)
          .Type("N");
  const CommandOption out =
      view.AddOption("--out", &options->out,
                     "Write the page as a file instead, with what it saw")
          .Type("FILE.html");
  view.AddOption("--seconds", &options->seconds,
                 "How long it looks for --out (default: 10)")
      .InRange(1, kPageSecondsMax)
      .Needs(out)
      .Type("N");
  port.Excludes(out);
  AddSocketOption(view, &options->socket);
  view.SetFooter(R"(
Prints the page's address, which has a secret in it, and serves it until Ctrl-C.
From another machine: ssh -L PORT:127.0.0.1:PORT HOST.

Examples:
  penstock view
  penstock view --out report.html --seconds 60)");
  return {view, [options]() -> StatusOr<int> {
            return options->out.empty() ? Serve(*options) : Keep(*options);
          }};
}

}  // namespace penstock
