// penstock metrics: the broker's status for Prometheus, once or over HTTP.
#include <poll.h>

#include <memory>
#include <string>

#include "client/command/http_server.h"
#include "client/command/job_options.h"
#include "client/command/metrics.h"
#include "client/command/output_file.h"
#include "client/command/subcommand.h"
#include "client/private_broker/control_call.h"
#include "common/command_line.h"

namespace penstock {
namespace {

// Prometheus gives up after 10 s.
constexpr int kAnswer_ms = 5000;

struct MetricsOptions {
  std::string socket;
  std::string textfile;
  std::string listen;
  bool dashboard = false;
};

StatusOr<nlohmann::json> AskStatus(const std::string& socket) {
  return CallBroker(socket, {{"op", "status"}}, [](int fd) {
    pollfd entry{fd, POLLIN, 0};
    const int ready = poll(&entry, 1, kAnswer_ms);
    if (ready == 0) {
      return DeadlineExceededError("the broker has not answered for {} s",
                                   kAnswer_ms / 1000);
    }
    return OkStatus();
  });
}

StatusOr<int> Serve(const MetricsOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> server,
                            HttpServer::Listen(options.listen));
  Print(stderr, "penstock: http://{}/metrics\n", server->address());
  std::string said;  // an error is told once, not with each scrape
  server->Run([&](const HttpRequest& request) {
    HttpAnswer answer;
    if (request.target == "/") {
      answer.type = "text/html; charset=utf-8";
      answer.body =
          "<!doctype html><title>Penstock</title><a "
          "href=\"/metrics\">metrics</a>\n";
    } else if (request.target != "/metrics") {
      answer = {404, answer.type, "only /metrics is here\n"};
    } else {
      const StatusOr<nlohmann::json> status = AskStatus(options.socket);
      const std::string error = status.ok() ? "" : status.status().message();
      if (error != said && !error.empty()) PrintError(error);
      said = error;
      answer.type = "text/plain; version=0.0.4; charset=utf-8";
      answer.body = MetricsText(status.ok() ? *status : nlohmann::json());
    }
    return answer;
  });
  return 0;
}

StatusOr<int> Show(const MetricsOptions& options) {
  if (options.dashboard) {
    Print(stdout, "{}", DashboardText());
    return 0;
  }
  if (!options.listen.empty()) return Serve(options);
  const StatusOr<nlohmann::json> status = AskStatus(options.socket);
  if (!options.textfile.empty()) {
    // Also of a broker that does not answer: old values would look like its
    // own.
    PENSTOCK_RETURN_IF_ERROR(
        WriteWhole(options.textfile,
                   MetricsText(status.ok() ? *status : nlohmann::json())));
  }
  if (!status.ok()) return status.status();
  if (options.textfile.empty()) Print(stdout, "{}", MetricsText(*status));
  return 0;
}

}  // namespace

Subcommand AddMetrics(Command parent) {
  Command metrics = parent.AddCommand(
      "metrics", "Export a running broker's metrics for Prometheus");
  const auto options = std::make_shared<MetricsOptions>();
  AddSocketOption(metrics, &options->socket);
  const CommandOption textfile =
      metrics
          .AddOption("--textfile", &options->textfile,
                     "Write this file whole, for node_exporter's textfile "
                     "collector")
          .Type("FILE.prom");
  const CommandOption listen =
      metrics
          .AddOption("--listen", &options->listen,
                     "Serve http://HOST:PORT/metrics until a signal comes")
          .Type("HOST:PORT");
  const CommandOption dashboard =
      metrics.AddFlag("--dashboard", &options->dashboard,
                      "Print a Grafana dashboard of these metrics, to import");
  textfile.Excludes(listen).Excludes(dashboard);
  listen.Excludes(dashboard);
  metrics.SetFooter(R"(
Without an option the metrics are printed. A broker that does not answer
is `penstock_up 0` over HTTP and in the file.

Examples:
  penstock metrics
  penstock metrics --listen 127.0.0.1:10147
  penstock metrics --textfile /var/lib/prometheus/node-exporter/penstock.prom
  penstock metrics --dashboard > penstock.json)");
  return {metrics, [options] { return Show(*options); }};
}

}  // namespace penstock
