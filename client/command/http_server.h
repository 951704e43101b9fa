// An HTTP server for pages that a browser or Prometheus reads: GET and HEAD.
//
// One thread: connections are served in turn, and a handler holds up all. A
// client is untrusted: a request has kSeconds and kHeaderBytes, no body, and
// there are kConnections at most.
#ifndef CLIENT_COMMAND_HTTP_SERVER_H_
#define CLIENT_COMMAND_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "common/status.h"

namespace penstock {

struct HttpRequest {
  std::string target;  // "/metrics?x=1"
  std::string host;    // of the header
  std::string origin;  // likewise; "": none
};

struct HttpAnswer {
  unsigned status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// Must not throw.
using HttpHandler = std::function<HttpAnswer(const HttpRequest&)>;

class HttpServer {
 public:
  static constexpr int kSeconds = 10;
  static constexpr int kHeaderBytes = 8 * 1024;
  static constexpr size_t kConnections = 64;

  // address: "127.0.0.1:10147", "[::1]:10147", ":10147" (all addresses); port 0
  // is any that is free. Errors: InvalidArgument; those of bind.
  static StatusOr<std::unique_ptr<HttpServer>> Listen(
      const std::string& address);
  ~HttpServer();

  // "127.0.0.1:10147", with the port that was taken.
  const std::string& address() const;
  // Serves until a signal comes (interrupt.h), which is how it ends.
  void Run(HttpHandler handler);

 private:
  struct Inside;
  explicit HttpServer(std::unique_ptr<Inside> inside);
  const std::unique_ptr<Inside> inside_;
};

}  // namespace penstock
#endif  // CLIENT_COMMAND_HTTP_SERVER_H_
