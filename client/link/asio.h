// Boost's networking as the files of this room use it: coroutines of one
// thread.
#ifndef CLIENT_LINK_ASIO_H_
#define CLIENT_LINK_ASIO_H_

// As in command/http_server.cc: one thread, no fences; header-only.
#define BOOST_ASIO_DISABLE_THREADS
#define BOOST_ERROR_CODE_HEADER_ONLY

// clang-format off: awaitable.hpp of Boost 1.74 needs it and does not say so.
#include <utility>
// clang-format on

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>

namespace penstock {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

}  // namespace penstock
#endif  // CLIENT_LINK_ASIO_H_
