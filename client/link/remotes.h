// Where makers are found: the value of `penstock link use --remote`.
//
//   HOST:PORT,HOST:PORT   these
//   dns:NAME[:PORT]       every address of this name (a headless service)
//   file:PATH             the lines of this file, HOST:PORT each
#ifndef CLIENT_LINK_REMOTES_H_
#define CLIENT_LINK_REMOTES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/link/asio.h"
#include "common/status.h"

namespace penstock {

inline constexpr char kLinkPort[] = "10148";
inline constexpr uint32_t kPortMax = 65535;

struct RemoteMaker {
  std::string name;  // HOST:PORT, for people
  std::string host;  // that its certificate has to name
  std::string address;
  std::string port;
  bool operator==(const RemoteMaker&) const = default;
};

struct Remotes {
  enum class Kind { kList, kDns, kFile };
  static constexpr size_t kMakersMax = 256;

  Kind kind = Kind::kList;
  std::vector<RemoteMaker> list;
  std::string path;  // of the file
  RemoteMaker name;  // of DNS

  // InvalidArgument: it is none of these.
  static StatusOr<Remotes> Parse(const std::string& text);
  // Those there are now. Errors: the file's; Unavailable: DNS has no answer.
  asio::awaitable<StatusOr<std::vector<RemoteMaker>>> Find(
      asio::io_context& context) const;
};

}  // namespace penstock
#endif  // CLIENT_LINK_REMOTES_H_
