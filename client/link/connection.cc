#include "client/link/connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "common/format.h"
#include "common/text_file.h"

namespace penstock {
namespace {

constexpr size_t kTokenBytesMax = 4096;
constexpr size_t kTokenBytesMin = 16;
constexpr size_t kPemBytesMax = 1 << 20;

// A host that has died, or that a firewall cuts off, says nothing: probes are
// sent, and a connection without answers ends.
constexpr int kProbeAfter_s = 10;
constexpr int kProbeEvery_s = 5;
constexpr int kProbes = 3;

}  // namespace

void PrepareSocket(int socket) {
  const auto set = [socket](int level, int option, int value) {
    // An option that the kernel does not have leaves its own, longer time.
    setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfter_s);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeEvery_s);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  // Also where what was sent is not acknowledged.
  set(IPPROTO_TCP, TCP_USER_TIMEOUT,
      1000 * (kProbeAfter_s + kProbes * kProbeEvery_s));
}

asio::awaitable<void> OnThread(asio::io_context& context,
                               std::function<void()> work) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw std::runtime_error("no more pipes can be made");
  }
  asio::posix::stream_descriptor over(context, ends[0]);
  std::thread([work = std::move(work), end = Fd(ends[1])] { work(); }).detach();
  co_await over.async_wait(asio::posix::stream_descriptor::wait_read,
                           asio::use_awaitable);
}

struct ResolvedName {
  int error = 0;  // of getaddrinfo
  std::vector<Tcp::endpoint> endpoints;
};

// Asio's own resolver wants threads of its own (BOOST_ASIO_DISABLE_THREADS).
asio::awaitable<std::vector<Tcp::endpoint>> Resolve(asio::io_context& context,
                                                    std::string host,
                                                    std::string port) {
  ErrorCode is_name;
  const auto literal = asio::ip::make_address(host, is_name);
  if (!is_name) {
    const auto number = static_cast<uint16_t>(std::stoul(port));
    co_return std::vector<Tcp::endpoint>{{literal, number}};
  }
  const auto answer = std::make_shared<ResolvedName>();
  std::function<void()> ask = [answer, host, port] {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    addrinfo* found = nullptr;
    answer->error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    if (answer->error != 0) return;
    for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
      Tcp::endpoint endpoint;
      if (each->ai_addrlen > endpoint.capacity()) continue;
      std::memcpy(endpoint.data(), each->ai_addr, each->ai_addrlen);
      endpoint.resize(each->ai_addrlen);
      answer->endpoints.push_back(endpoint);
    }
    freeaddrinfo(found);
  };
  co_await OnThread(context, std::move(ask));
  if (answer->error != 0) {
    throw std::runtime_error(
        Format("{}: {}", host, gai_strerror(answer->error)));
  }
  co_return std::move(answer->endpoints);
}

StatusOr<LinkIdentity> LinkIdentity::Read(const LinkSecurity& security,
                                          bool is_server) {
  LinkIdentity identity;
  if (!security.token_file.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(
        identity.token,
        ReadTextFile("token file", security.token_file, kTokenBytesMax));
    while (identity.token.ends_with('\n')) identity.token.pop_back();
    if (identity.token.size() < kTokenBytesMin) {
      return InvalidArgumentError("{}: a token has {} characters or more",
                                  security.token_file, kTokenBytesMin);
    }
    if (std::any_of(identity.token.begin(), identity.token.end(), [](char c) {
          return static_cast<unsigned char>(c) <= ' ' || c == 0x7f;
        })) {
      return InvalidArgumentError(
          "{}: a token has no blanks and no control characters",
          security.token_file);
    }
  }
  if (security.certificate.empty() != security.key.empty() ||
      security.key.empty() != security.authority.empty()) {
    return InvalidArgumentError(
        "--cert, --key and --ca belong together: both sides show a certificate "
        "that --ca has signed");
  }
  if (!security.tls()) return identity;
  identity.tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls);
  asio::ssl::context& tls = *identity.tls;
  for (const std::string& file :
       {security.certificate, security.key, security.authority}) {
    // OpenSSL does not say that there is none.
    PENSTOCK_RETURN_IF_ERROR(ReadTextFile("file", file, kPemBytesMax).status());
  }
  // Nobody is there to be asked.
  tls.set_password_callback(
      [](size_t, asio::ssl::context::password_purpose) { return ""; });
  const std::string* file = &security.certificate;
  try {
    tls.use_certificate_chain_file(security.certificate);
    file = &security.key;
    tls.use_private_key_file(security.key, asio::ssl::context::pem);
    file = &security.authority;
    tls.load_verify_file(security.authority);
    tls.set_verify_mode(asio::ssl::verify_peer |
                        asio::ssl::verify_fail_if_no_peer_cert);
  } catch (const boost::system::system_error& error) {
    return InvalidArgumentError("{}: {}", *file, error.code().message());
  }
  SSL_CTX_set_min_proto_version(tls.native_handle(), TLS1_3_VERSION);
  const X509* const own = SSL_CTX_get0_certificate(tls.native_handle());
  if (X509_cmp_current_time(X509_get0_notAfter(own)) < 0) {
    return InvalidArgumentError("{}: the certificate has expired",
                                security.certificate);
  }
  if (is_server) {
    SSL_CTX_set_session_cache_mode(tls.native_handle(), SSL_SESS_CACHE_OFF);
  }
  return identity;
}

bool LinkIdentity::Accepts(std::string_view shown) const {
  return token.empty() ||
         (shown.size() == token.size() &&
          CRYPTO_memcmp(shown.data(), token.data(), token.size()) == 0);
}

LinkConnection::LinkConnection(asio::io_context& context,
                               const LinkIdentity& identity)
    : LinkConnection(Tcp::socket(context), identity) {}

LinkConnection::LinkConnection(Tcp::socket socket,
                               const LinkIdentity& identity) {
  if (identity.tls != nullptr) {
    tls_ = std::make_unique<beast::ssl_stream<beast::tcp_stream>>(
        std::move(socket), *identity.tls);
  } else {
    plain_ = std::make_unique<beast::tcp_stream>(std::move(socket));
  }
}

void LinkConnection::SetTime(Seconds seconds) {
  stream().expires_after(
      std::chrono::duration_cast<asio::steady_timer::duration>(seconds));
}

asio::awaitable<void> LinkConnection::Handshake(
    asio::ssl::stream_base::handshake_type side) {
  ErrorCode error;
  co_await tls_->async_handshake(
      side, asio::redirect_error(asio::use_awaitable, error));
  if (!error) co_return;
  const long verified = SSL_get_verify_result(tls_->native_handle());
  if (verified != X509_V_OK) {
    throw boost::system::system_error(error,
                                      X509_verify_cert_error_string(verified));
  }
  throw boost::system::system_error(error);
}

asio::awaitable<void> LinkConnection::Connect(
    const std::vector<Tcp::endpoint>& addresses, const std::string& host,
    Seconds within) {
  // Each has its time: packets to the first may be dropped.
  for (size_t i = 0;; ++i) {
    ErrorCode error = asio::error::host_not_found;
    if (i < addresses.size()) {
      SetTime(within);
      co_await stream().async_connect(
          addresses[i], asio::redirect_error(asio::use_awaitable, error));
    }
    if (!error) break;
    if (i + 1 >= addresses.size()) throw boost::system::system_error(error);
    stream().close();
  }
  PrepareSocket(stream().socket().native_handle());
  SetTime(within);
  if (tls_ == nullptr) co_return;
  SSL* const ssl = tls_->native_handle();
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) != 1) {
    SSL_set_tlsext_host_name(ssl, host.c_str());
    SSL_set1_host(ssl, host.c_str());
  }
  co_await Handshake(asio::ssl::stream_base::client);
}

asio::awaitable<void> LinkConnection::Accept(Seconds within) {
  SetTime(within);
  PrepareSocket(stream().socket().native_handle());
  if (tls_ != nullptr) co_await Handshake(asio::ssl::stream_base::server);
}

void LinkConnection::WakeAt(size_t bytes) {
  if (bytes == wakes_at_) return;
  const int value = static_cast<int>(bytes);
  // Where it fails, there are more wakes.
  setsockopt(stream().socket().native_handle(), SOL_SOCKET, SO_RCVLOWAT, &value,
             sizeof(value));
  wakes_at_ = bytes;
}

// Bytes come in pieces of 64 KiB. With a wake for each, 0.9 MB took 14, and
// 0.5 to 0.7 CPU-seconds a GB; with one for 512 KiB 2, and 0.2.
asio::awaitable<void> LinkConnection::Read(
    std::vector<asio::mutable_buffer> places) {
  constexpr size_t kWake = 512 << 10;
  // With TLS, what is left may have been read from the socket already.
  const size_t read_ahead = tls_ != nullptr ? 64 << 10 : 0;
  for (size_t left = asio::buffer_size(places); left > 0;) {
    WakeAt(std::clamp<size_t>(left - std::min(left, read_ahead), 1, kWake));
    size_t got = 0;
    if (tls_ != nullptr) {
      got = co_await tls_->async_read_some(places, asio::use_awaitable);
    } else {
      got = co_await plain_->async_read_some(places, asio::use_awaitable);
    }
    left -= got;
    auto first = places.begin();
    for (; first != places.end() && got >= first->size(); ++first) {
      got -= first->size();
    }
    if (first != places.end()) *first += got;
    places.erase(places.begin(), first);
  }
  WakeAt(1);
}

void LinkConnection::CheckOpen() {
  char byte = 0;
  const ssize_t got = recv(stream().socket().native_handle(), &byte, 1,
                           MSG_PEEK | MSG_DONTWAIT);
  // With TLS, tickets may be there to be read.
  if (got > 0 || (got < 0 && errno == EAGAIN)) return;
  throw std::runtime_error(got == 0 ? "it has closed the connection"
                                    : std::strerror(errno));
}

void LinkConnection::Close() { stream().close(); }

std::string LinkConnection::peer() const {
  ErrorCode error;
  const beast::tcp_stream& lowest =
      tls_ != nullptr ? beast::get_lowest_layer(*tls_) : *plain_;
  const Tcp::endpoint end = lowest.socket().remote_endpoint(error);
  return error ? "?" : end.address().to_string();
}

}  // namespace penstock
