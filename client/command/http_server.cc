// One thread (http_server.h): no fences, which ThreadSanitizer does not know.
#define BOOST_ASIO_DISABLE_THREADS
#include "client/command/http_server.h"

// Header-only: no library of Boost is linked.
#define BOOST_ERROR_CODE_HEADER_ONLY

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "client/private_broker/interrupt.h"
#include "common/format.h"
#include "common/quantity.h"

namespace penstock {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// A client that keeps its connection, such as Prometheus, asks again within
// this time.
constexpr auto kIdle = std::chrono::minutes(2);
constexpr uint32_t kPortMax = 65535;
// After an accept that failed, for want of descriptors.
constexpr auto kAcceptPause = std::chrono::milliseconds(200);

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Tcp::socket socket, const HttpHandler& handler, size_t* open)
      : stream_(std::move(socket)), handler_(handler), open_(open) {
    ++*open_;
  }
  ~Connection() { --*open_; }

  // Each call keeps the connection alive until it has ended.
  void Read() {
    parser_.emplace();
    parser_->header_limit(HttpServer::kHeaderBytes);
    stream_.expires_after(answered_
                              ? std::chrono::seconds(kIdle)
                              : std::chrono::seconds(HttpServer::kSeconds));
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](ErrorCode error, size_t) {
                       if (!error) self->Answer();
                     });
  }

 private:
  void Answer() {
    const http::request<http::empty_body>& request = parser_->get();
    const bool is_head = request.method() == http::verb::head;
    const auto header = [&](http::field name) {
      const auto value = request[name];
      return std::string(value.data(), value.size());
    };
    HttpAnswer answer;
    if (request.method() != http::verb::get && !is_head) {
      answer = {405, "text/plain; charset=utf-8", "GET and HEAD only\n"};
    } else {
      answer = handler_(
          {std::string(request.target().data(), request.target().size()),
           header(http::field::host), header(http::field::origin)});
    }
    response_ = {};
    response_.result(answer.status);
    response_.version(request.version());
    response_.keep_alive(request.keep_alive());
    response_.set(http::field::content_type, answer.type);
    response_.set(http::field::cache_control, "no-store");
    response_.set("X-Content-Type-Options", "nosniff");
    // A page has all of it in one file, and tells nobody its address.
    response_.set(
        "Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src "
        "'unsafe-inline'; img-src data:; connect-src 'self'; frame-ancestors "
        "'none'");
    response_.set("Referrer-Policy", "no-referrer");
    response_.body() = std::move(answer.body);
    response_.prepare_payload();
    if (is_head) response_.body().clear();
    answered_ = true;
    stream_.expires_after(std::chrono::seconds(HttpServer::kSeconds));
    http::async_write(stream_, response_,
                      [self = shared_from_this()](ErrorCode error, size_t) {
                        if (!error && self->response_.keep_alive()) {
                          self->Read();
                        }
                      });
  }

  beast::tcp_stream stream_;
  const HttpHandler& handler_;
  size_t* const open_;
  beast::flat_buffer buffer_{2 * HttpServer::kHeaderBytes};
  std::optional<http::request_parser<http::empty_body>> parser_;
  http::response<http::string_body> response_;
  bool answered_ = false;
};

}  // namespace

struct HttpServer::Inside {
  size_t open = 0;  // connections; outlives them
  HttpHandler handler;
  asio::io_context context{1};
  Tcp::acceptor acceptor{context};
  asio::steady_timer pause{context};
  std::string address;

  void Accept() {
    acceptor.async_accept([this](ErrorCode error, Tcp::socket socket) {
      if (error) {
        pause.expires_after(kAcceptPause);
        pause.async_wait([this](ErrorCode) { Accept(); });
        return;
      }
      if (open < kConnections) {
        std::make_shared<Connection>(std::move(socket), handler, &open)->Read();
      }
      Accept();
    });
  }
};

HttpServer::HttpServer(std::unique_ptr<Inside> inside)
    : inside_(std::move(inside)) {}
HttpServer::~HttpServer() = default;

const std::string& HttpServer::address() const { return inside_->address; }

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(
    const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (colon == std::string::npos ||
      !ParseCount(address.substr(colon + 1), kPortMax, 0).ok()) {
    return InvalidArgumentError(
        "'{}' is no address to listen on: wanted HOST:PORT, such as "
        "127.0.0.1:10147",
        address);
  }
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  }
  auto inside = std::make_unique<Inside>();
  ErrorCode error;
  const auto failed = [&] {
    return Status(
        error == asio::error::access_denied    ? StatusCode::kPermissionDenied
        : error == asio::error::address_in_use ? StatusCode::kAlreadyExists
                                               : StatusCode::kInvalidArgument,
        Format("cannot listen on '{}': {}", address, error.message()));
  };
  Tcp::resolver resolver(inside->context);
  const auto found = resolver.resolve(
      host, address.substr(colon + 1),
      Tcp::resolver::passive | Tcp::resolver::numeric_service, error);
  if (error) return failed();
  Tcp::endpoint endpoint = found.begin()->endpoint();
  for (const auto& each : found) {
    // [::] takes connections to IPv4 addresses too.
    if (host.empty() && each.endpoint().address().is_v6()) {
      endpoint = each.endpoint();
    }
  }
  Tcp::acceptor& acceptor = inside->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(Tcp::acceptor::reuse_address(true), error);
  if (!error && endpoint.address().is_v6()) {
    acceptor.set_option(asio::ip::v6_only(false), error);
  }
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) endpoint = acceptor.local_endpoint(error);
  if (error) return failed();
  const std::string text = endpoint.address().to_string();
  inside->address =
      Format("{}:{}", endpoint.address().is_v6() ? "[" + text + "]" : text,
             endpoint.port());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(inside)));
}

void HttpServer::Run(HttpHandler handler) {
  inside_->handler = std::move(handler);
  asio::io_context& context = inside_->context;
  asio::posix::stream_descriptor interrupt(context, dup(InterruptFd()));
  interrupt.async_wait(asio::posix::stream_descriptor::wait_read,
                       [&](ErrorCode) { context.stop(); });
  inside_->Accept();
  context.run();
}

}  // namespace penstock
