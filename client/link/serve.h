// `penstock link serve`: makes rows for other hosts. Each connection has for
// each dataset a job of its own on the broker of this host, whose workers make
// the rows into the job's segment, from which they are sent.
//
// One thread, but for attaches, which may take as long as an index does.
// Bounds: kConnections; those of wire.h.
#ifndef CLIENT_LINK_SERVE_H_
#define CLIENT_LINK_SERVE_H_

#include <string>
#include <utility>
#include <vector>

#include "client/link/connection.h"
#include "common/status.h"

namespace penstock {

struct ServeOptions {
  static constexpr size_t kConnections = 256;

  std::string socket;  // of the broker
  std::string listen = "127.0.0.1:10148";
  // Folders of the other hosts, and what they are called here.
  std::vector<std::pair<std::string, std::string>> paths;
  LinkSecurity security;
};

// Until a signal comes. Tells what happens on standard error. InvalidArgument:
// an address or a file; an address that others reach, without security.
Status ServeLinks(const ServeOptions& options);

}  // namespace penstock
#endif  // CLIENT_LINK_SERVE_H_
