// penstock link: rows that other hosts make.
#include <memory>
#include <string>
#include <vector>

#include "client/command/job_options.h"
#include "client/command/subcommand.h"
#include "client/link/serve.h"
#include "client/link/use.h"
#include "client/link/wire.h"
#include "client/private_broker/control_call.h"
#include "client/private_broker/process.h"
#include "common/command_line.h"

namespace penstock {
namespace {

struct LinkOptions {
  std::string socket;
  std::string listen = ServeOptions().listen;
  std::vector<std::string> maps;
  std::string remote;
  uint32_t connections = UseOptions().connections;
  LinkSecurity security;
};

StatusOr<int> Serve(const LinkOptions& options) {
  RaiseDescriptorLimit();
  ServeOptions serve;
  PENSTOCK_ASSIGN_OR_RETURN(serve.socket, RunningBroker(options.socket));
  serve.listen = options.listen;
  serve.security = options.security;
  for (const std::string& text : options.maps) {
    PENSTOCK_ASSIGN_OR_RETURN(auto paths, ParsePathMap(text));
    serve.paths.push_back(std::move(paths));
  }
  PENSTOCK_RETURN_IF_ERROR(ServeLinks(serve));
  return 0;
}

StatusOr<int> Use(const LinkOptions& options) {
  RaiseDescriptorLimit();
  UseOptions use;
  PENSTOCK_ASSIGN_OR_RETURN(use.socket, RunningBroker(options.socket));
  use.connections = options.connections;
  use.security = options.security;
  PENSTOCK_ASSIGN_OR_RETURN(use.remotes, Remotes::Parse(options.remote));
  PENSTOCK_RETURN_IF_ERROR(UseLinks(use));
  return 0;
}

void AddSecurity(Command command, LinkSecurity* security) {
  command
      .AddOption("--cert", &security->certificate,
                 "This side's certificate (PEM)")
      .Type("FILE");
  command.AddOption("--key", &security->key, "Its private key").Type("FILE");
  command
      .AddOption("--ca", &security->authority,
                 "CA that must have signed the peer's certificate (PEM)")
      .Type("FILE");
  command
      .AddOption("--token-file", &security->token_file,
                 "A secret that both sides know; without --cert it is sent in "
                 "the clear")
      .Type("FILE");
}

}  // namespace

Subcommand AddLink(Command parent) {
  Command link = parent.AddCommand("link", "Have rows made on other hosts");
  const auto options = std::make_shared<LinkOptions>();
  link.RequireCommand();
  Command serve = link.AddCommand(
      "serve", "Run on a CPU host: make rows for training hosts");
  AddSocketOption(serve, &options->socket);
  serve.AddOption("--listen", &options->listen, "The address to listen on")
      .Type("HOST:PORT")
      .ShowDefault();
  serve
      .AddOption("--map", &options->maps,
                 "A folder of the other hosts, and what it is called here")
      .Type("/THERE=/HERE")
      .OneValueEachTime();
  AddSecurity(serve, &options->security);
  Command use = link.AddCommand(
      "use", "Run on a training host: fetch rows from CPU hosts");
  AddSocketOption(use, &options->socket);
  use.AddOption(
         "--remote", &options->remote,
         "The hosts that make them: HOST:PORT,..., dns:NAME or file:PATH")
      .Type("WHERE")
      .Required();
  use.AddOption("--connections", &options->connections,
                "Connections to each of them")
      .Type("N")
      .InRange(uint32_t{1}, uint32_t{64})
      .ShowDefault();
  AddSecurity(use, &options->security);
  link.SetFooter(R"(
A training host with too few cores for its GPUs asks hosts without GPUs
for rows. Its own workers come first: only rows that they would not have
made in time are asked for, and rows that do not arrive in time are made
locally. Batches, their order and their bytes are the same as without.

The broker has no network access; this program, beside it on each host,
does the networking. Both hosts need the same files, at the same paths or
with --map. Beyond one machine, give --cert, --key and --ca on both
sides: each then verifies the other.

Examples:
  penstock link serve --listen 0.0.0.0:10148 --cert c.pem --key k.pem --ca ca.pem
  penstock link use --remote cpu1:10148,cpu2:10148 --cert c.pem --key k.pem --ca ca.pem
  penstock link use --remote dns:makers.training.svc --token-file token)");
  return {link, [options, serve] {
            return serve.parsed() ? Serve(*options) : Use(*options);
          }};
}

}  // namespace penstock
