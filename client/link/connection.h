// A connection between two links, plain or with TLS, for coroutines of one
// thread. Calls throw boost::system::system_error; one that takes longer than
// its time ends the connection.
#ifndef CLIENT_LINK_CONNECTION_H_
#define CLIENT_LINK_CONNECTION_H_

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/link/asio.h"
#include "common/status.h"

namespace penstock {

// Runs it on a thread of its own, and waits for it. The thread may outlive the
// coroutine, when the program ends.
asio::awaitable<void> OnThread(asio::io_context& context,
                               std::function<void()> work);

// Disables Nagle's algorithm, and closes the connection once the peer has been
// silent, without even an ACK, for 25 s, idle or not.
void PrepareSocket(int socket);

// Ends the program: a loop of it has ended by an error that it should have
// handled, and its service starts it again.
inline constexpr auto kRethrow = [](const std::exception_ptr& error) {
  if (error != nullptr) std::rethrow_exception(error);
};

// Throws std::runtime_error: no such name.
asio::awaitable<std::vector<Tcp::endpoint>> Resolve(asio::io_context& context,
                                                    std::string host,
                                                    std::string port);

// Who may connect to whom.
struct LinkSecurity {
  std::string certificate;  // files of PEM; all three, or none
  std::string key;
  std::string authority;   // that has signed the certificates of the others
  std::string token_file;  // what a request has to show; "": nothing

  bool tls() const { return !certificate.empty(); }
};

// What LinkSecurity names, read.
struct LinkIdentity {
  std::unique_ptr<asio::ssl::context> tls;  // nullptr: plain
  std::string token;

  // InvalidArgument: one of the three is missing, or no such file.
  static StatusOr<LinkIdentity> Read(const LinkSecurity& security,
                                     bool is_server);
  // Takes the same time whatever differs.
  bool Accepts(std::string_view shown) const;
};

class LinkConnection {
 public:
  using Seconds = std::chrono::duration<double>;

  LinkConnection(asio::io_context& context, const LinkIdentity& identity);
  LinkConnection(Tcp::socket socket, const LinkIdentity& identity);

  // host: that its certificate has to name.
  asio::awaitable<void> Connect(const std::vector<Tcp::endpoint>& addresses,
                                const std::string& host, Seconds within);
  // For a server that has accepted it.
  asio::awaitable<void> Accept(Seconds within);

  // The calls that follow have so long, together.
  void SetTime(Seconds seconds);

  // As many bytes as fit into the places.
  asio::awaitable<void> Read(std::vector<asio::mutable_buffer> places);
  template <typename Buffers>
  asio::awaitable<void> Write(const Buffers& buffers) {
    // Asio's own limit is 64 KiB.
    const auto whole = [](const ErrorCode& error, size_t) -> size_t {
      return error ? 0 : kWrittenAtOnce;
    };
    if (tls_ != nullptr) {
      co_await asio::async_write(*tls_, buffers, whole, asio::use_awaitable);
    } else {
      co_await asio::async_write(*plain_, buffers, whole, asio::use_awaitable);
    }
  }
  template <typename Parser>
  asio::awaitable<void> ReadHeader(beast::flat_buffer& buffer, Parser& parser) {
    if (tls_ != nullptr) {
      co_await http::async_read_header(*tls_, buffer, parser,
                                       asio::use_awaitable);
    } else {
      co_await http::async_read_header(*plain_, buffer, parser,
                                       asio::use_awaitable);
    }
  }
  template <typename Parser>
  asio::awaitable<void> ReadMessage(beast::flat_buffer& buffer,
                                    Parser& parser) {
    if (tls_ != nullptr) {
      co_await http::async_read(*tls_, buffer, parser, asio::use_awaitable);
    } else {
      co_await http::async_read(*plain_, buffer, parser, asio::use_awaitable);
    }
  }
  // Throws if the peer has closed it while nothing was read.
  void CheckOpen();
  void Close();
  // The other side's address, for people.
  std::string peer() const;

 private:
  static constexpr size_t kWrittenAtOnce = 1 << 20;

  beast::tcp_stream& stream() {
    return tls_ != nullptr ? beast::get_lowest_layer(*tls_) : *plain_;
  }
  // Readable is what has so many bytes, or has ended.
  void WakeAt(size_t bytes);
  // What is wrong with the other's certificate, if that is the error.
  asio::awaitable<void> Handshake(asio::ssl::stream_base::handshake_type side);

  std::unique_ptr<beast::tcp_stream> plain_;
  std::unique_ptr<beast::ssl_stream<beast::tcp_stream>> tls_;
  size_t wakes_at_ = 1;
};

// Wakes coroutines that wait for something to change: they look again.
class LinkEvent {
 public:
  explicit LinkEvent(asio::io_context& context) : timer_(context) {}
  asio::awaitable<void> Wait(
      std::chrono::duration<double> at_most = std::chrono::hours(1)) {
    ErrorCode cancelled;
    timer_.expires_after(
        std::chrono::duration_cast<asio::steady_timer::duration>(at_most));
    co_await timer_.async_wait(
        asio::redirect_error(asio::use_awaitable, cancelled));
  }
  void Notify() { timer_.cancel(); }

 private:
  asio::steady_timer timer_;
};

}  // namespace penstock
#endif  // CLIENT_LINK_CONNECTION_H_
