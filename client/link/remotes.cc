#include "client/link/remotes.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "client/link/connection.h"
#include "common/quantity.h"
#include "common/text_file.h"

namespace penstock {
namespace {

constexpr size_t kFileBytesMax = 64 << 10;
constexpr size_t kNameBytesMax = 256;

StatusOr<RemoteMaker> ParseMaker(const std::string& text) {
  RemoteMaker maker;
  const size_t colon = text.rfind(':');
  const bool has_port = colon != std::string::npos &&
                        text.find(']', colon) == std::string::npos &&
                        (text[0] == '[' || text.find(':') == colon);
  maker.host = text.substr(0, has_port ? colon : std::string::npos);
  maker.port = has_port ? text.substr(colon + 1) : kLinkPort;
  if (maker.host.starts_with('[') && maker.host.ends_with(']')) {
    maker.host = maker.host.substr(1, maker.host.size() - 2);
  }
  const auto odd = [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == '/' || c == ',';
  };
  if (maker.host.empty() || !ParseCount(maker.port, kPortMax, 1).ok() ||
      std::any_of(maker.host.begin(), maker.host.end(), odd)) {
    return InvalidArgumentError("'{}' is no address: wanted HOST:PORT", text);
  }
  maker.address = maker.host;
  maker.name = Format("{}:{}", maker.host, maker.port);
  if (maker.name.size() > kNameBytesMax) {
    return InvalidArgumentError("'{}' is too long for an address", text);
  }
  return maker;
}

StatusOr<std::vector<RemoteMaker>> ParseList(const std::string& text,
                                             char separator) {
  std::vector<RemoteMaker> makers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, separator);) {
    constexpr std::string_view kBlanks = " \t\r";
    part.erase(std::min(part.find('#'), part.size()));
    part.erase(0, std::min(part.find_first_not_of(kBlanks), part.size()));
    part.erase(part.find_last_not_of(kBlanks) + 1);
    if (part.empty()) continue;
    PENSTOCK_ASSIGN_OR_RETURN(RemoteMaker maker, ParseMaker(part));
    if (makers.size() == Remotes::kMakersMax) {
      return InvalidArgumentError("more than {} makers", Remotes::kMakersMax);
    }
    makers.push_back(std::move(maker));
  }
  return makers;
}

}  // namespace

StatusOr<Remotes> Remotes::Parse(const std::string& text) {
  Remotes remotes;
  constexpr std::string_view kDnsPrefix = "dns:";
  constexpr std::string_view kFilePrefix = "file:";
  if (text.starts_with(kFilePrefix)) {
    remotes.kind = Kind::kFile;
    remotes.path = text.substr(kFilePrefix.size());
    return remotes;
  }
  if (text.starts_with(kDnsPrefix)) {
    remotes.kind = Kind::kDns;
    PENSTOCK_ASSIGN_OR_RETURN(remotes.name,
                              ParseMaker(text.substr(kDnsPrefix.size())));
    return remotes;
  }
  PENSTOCK_ASSIGN_OR_RETURN(remotes.list, ParseList(text, ','));
  if (remotes.list.empty()) {
    return InvalidArgumentError(
        "--remote '{}': wanted HOST:PORT,..., dns:NAME or file:PATH", text);
  }
  return remotes;
}

asio::awaitable<StatusOr<std::vector<RemoteMaker>>> Remotes::Find(
    asio::io_context& context) const {
  if (kind == Kind::kList) co_return list;
  if (kind == Kind::kFile) {
    // It may be on shared storage that hangs.
    const auto text = std::make_shared<StatusOr<std::string>>("");
    std::function<void()> read = [text, path = path] {
      *text = ReadTextFile("list of makers", path, kFileBytesMax);
    };
    co_await OnThread(context, std::move(read));
    if (!text->ok()) co_return text->status();
    co_return ParseList(**text, '\n');
  }
  std::vector<Tcp::endpoint> found;
  std::string error;
  try {
    found = co_await Resolve(context, name.host, name.port);
  } catch (const std::runtime_error& thrown) {
    error = thrown.what();
  }
  if (!error.empty()) co_return UnavailableError("dns:{}", error);
  std::vector<RemoteMaker> makers;
  for (const Tcp::endpoint& each : found) {
    RemoteMaker maker = name;
    maker.address = each.address().to_string();
    const bool is_v6 = each.address().is_v6();
    maker.name = Format(
        "{}:{}", is_v6 ? "[" + maker.address + "]" : maker.address, maker.port);
    if (makers.size() < kMakersMax) makers.push_back(std::move(maker));
  }
  co_return makers;
}

}  // namespace penstock
