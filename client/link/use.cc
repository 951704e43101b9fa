#include "client/link/use.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>

#include "client/link/wire.h"
#include "client/penstock.h"
#include "client/private_broker/interrupt.h"
#include "common/format.h"
#include "common/message.h"
#include "common/printable.h"

namespace penstock {
namespace {

using Seconds = LinkConnection::Seconds;
using Clock = std::chrono::steady_clock;

constexpr Seconds kConnect{5};
constexpr Seconds kOpen{3600};  // an index may take long
constexpr Seconds kRows{10};
constexpr Seconds kFind{5};  // how often makers are looked for
constexpr Seconds kTell{1};  // and told of
constexpr Seconds kRetryFirst{0.5};
constexpr Seconds kRetryLast{15};
constexpr Seconds kBroker{1};
// An ask that no maker takes is the broker's again.
constexpr std::chrono::seconds kAskKept{5};
// Asks of a connection, the one that it answers included.
constexpr uint32_t kAsksOfConnection = 2;

// The answer of another host is none of a link, or an error.
struct BadAnswer {
  unsigned status = 0;
  std::string text;
};

// A job whose rows are asked for.
struct Lent {
  uint64_t number = 0;
  DatasetRequest request;
  uint32_t places = 0;
  std::byte* memory = nullptr;
  uint32_t ready = 0;  // connections whose maker has the dataset open

  ~Lent() {
    if (memory != nullptr) munmap(memory, places * request.row_bytes);
  }
};

struct Ask {
  std::shared_ptr<Lent> lent;
  uint64_t number = 0;
  std::vector<RowKey> rows;
  std::vector<uint32_t> places;
  Clock::time_point since;
};

struct Maker {
  RemoteMaker at;
  bool gone = false;  // it is not listed any more
  bool distrusted = false;
  uint32_t connected = 0;      // connections
  std::string error;           // the last one
  std::set<uint64_t> refused;  // jobs of which it makes no rows
  uint64_t rows = 0;
  uint64_t bytes = 0;
  uint64_t bytes_told = 0;

  const char* state() const {
    return distrusted      ? "distrusted"
           : connected > 0 ? (refused.empty() ? "connected" : "refuses")
                           : "away";
  }
};

class User {
 public:
  User(const UseOptions& options, LinkIdentity identity)
      : options_(options), identity_(std::move(identity)) {}
  void Run();

 private:
  asio::awaitable<void> FindMakers();
  asio::awaitable<void> TellOfMakers();
  asio::awaitable<void> KeepBroker();
  asio::awaitable<void> Listen();
  void Hear(Message message);
  void Lend(const nlohmann::json& event, Fd memory);
  void Made(const Ask& ask, const std::string& maker,
            const std::vector<uint64_t>& rows);
  void TellBroker(nlohmann::json message);
  void Flush();
  // The broker may ask for as many of its rows as there are connections.
  void Credit(const Lent& lent);
  bool Has(const Lent& lent) const {
    const auto found = lent_.find(lent.number);
    return found != lent_.end() && found->second.get() == &lent;
  }

  asio::awaitable<void> Keep(std::shared_ptr<Maker> maker);
  asio::awaitable<void> Talk(std::shared_ptr<Maker> maker);
  // By the number of a job: how its maker knows it.
  using Datasets =
      std::map<uint64_t, std::pair<std::shared_ptr<Lent>, uint32_t>>;
  std::optional<Ask> TakeAsk(const Datasets& datasets);
  asio::awaitable<bool> OpenNext(LinkConnection& connection, Maker* maker,
                                 Datasets* datasets);
  asio::awaitable<uint32_t> OpenDataset(LinkConnection& connection,
                                        const Lent& lent);
  asio::awaitable<std::vector<uint64_t>> Fetch(LinkConnection& connection,
                                               const Ask& ask,
                                               uint32_t dataset);
  std::string Header(std::string_view target, const std::string& type,
                     size_t bytes, const Maker& maker) const;

  const UseOptions options_;
  const LinkIdentity identity_;
  asio::io_context context_{1};
  Fd broker_;
  std::map<uint64_t, std::shared_ptr<Lent>> lent_;
  std::deque<Ask> asks_;
  std::deque<nlohmann::json> out_;  // to the broker
  bool flushing_ = false;
  std::vector<std::shared_ptr<Maker>> makers_;
  std::set<LinkEvent*> waiting_;  // connections without an ask
};

void User::Run() {
  asio::posix::stream_descriptor interrupt(context_, dup(InterruptFd()));
  interrupt.async_wait(asio::posix::stream_descriptor::wait_read,
                       [this](const ErrorCode&) { context_.stop(); });
  asio::co_spawn(context_, KeepBroker(), asio::detached);
  asio::co_spawn(context_, FindMakers(), asio::detached);
  asio::co_spawn(context_, TellOfMakers(), asio::detached);
  context_.run();
}

// ---- the broker

asio::awaitable<void> User::KeepBroker() {
  const std::string path = SocketPath(options_.socket);
  std::string said;
  for (;;) {
    StatusOr<Fd> socket = ConnectControl(path);
    std::string error;
    if (socket.ok()) {
      broker_ = *std::move(socket);
      out_.clear();
      TellBroker({{"op", "link"}, {"asks", 0}});
      if (!said.empty()) Print(stderr, "penstock: the broker answers\n");
      said.clear();
      try {
        co_await Listen();
      } catch (const std::exception& thrown) {
        error = thrown.what();
      }
      broker_.Reset();
      lent_.clear();
      asks_.clear();
    } else {
      error = socket.status().message();
    }
    if (error != said) {
      Print(stderr, "penstock: {}\n", PrintableLines(error));
    }
    said = error;
    LinkEvent pause(context_);
    co_await pause.Wait(kBroker);
  }
}

asio::awaitable<void> User::Listen() {
  asio::posix::stream_descriptor ready(context_, dup(broker_.get()));
  for (;;) {
    co_await ready.async_wait(asio::posix::stream_descriptor::wait_read,
                              asio::use_awaitable);
    for (;;) {
      StatusOr<std::optional<Message>> message = ReceiveMessage(broker_.get());
      if (!message.ok()) {
        throw std::runtime_error(message.status().message());
      }
      if (!*message) break;
      Hear(**std::move(message));
    }
  }
}

void User::Hear(Message message) {
  const nlohmann::json& json = message.json;
  const std::string event = json.value("event", "");
  if (event.empty()) {
    const Status status = StatusOfAnswer(json);
    if (!status.ok()) throw std::runtime_error(status.message());
  } else if (event == "lend") {
    if (message.fds.empty()) throw std::runtime_error("no memory was lent");
    Lend(json, std::move(message.fds[0]));
  } else if (event == "unlend") {
    const uint64_t number = json.at("lent");
    lent_.erase(number);
    std::erase_if(asks_,
                  [&](const Ask& ask) { return ask.lent->number == number; });
    for (const auto& maker : makers_) maker->refused.erase(number);
  } else if (event == "distrust") {
    const std::string name = json.at("maker");
    for (const auto& maker : makers_) {
      if (maker->at.name != name || std::exchange(maker->distrusted, true)) {
        continue;
      }
      Print(stderr,
            "penstock: {} makes other rows than this host: it is asked "
            "for nothing more\n",
            name);
    }
  } else if (event == "make") {
    const auto found = lent_.find(json.at("lent").get<uint64_t>());
    if (found == lent_.end()) return;
    Ask ask = {found->second, json.at("ask"), {}, {}, Clock::now()};
    const auto rows = json.at("rows").get<std::vector<uint64_t>>();
    for (size_t i = 0; i + 2 < rows.size(); i += 3) {
      ask.rows.push_back({rows[i], rows[i + 1]});
      ask.places.push_back(static_cast<uint32_t>(rows[i + 2]));
    }
    asks_.push_back(std::move(ask));
    for (LinkEvent* const waiting : waiting_) waiting->Notify();
  }
}

void User::Lend(const nlohmann::json& event, Fd memory) {
  nlohmann::json form = event;
  form["version"] = penstock_version();
  StatusOr<DatasetRequest> request = DatasetRequest::FromJson(form);
  if (!request.ok()) throw std::runtime_error(request.status().message());
  const auto lent = std::make_shared<Lent>();
  lent->number = event.at("lent");
  lent->request = *std::move(request);
  lent->places = event.at("places");
  const uint64_t bytes = lent->places * lent->request.row_bytes;
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) {
    throw std::runtime_error("the memory that was lent cannot be mapped");
  }
  lent->memory = static_cast<std::byte*>(mapped);
  lent_[lent->number] = lent;
  for (LinkEvent* const waiting : waiting_) waiting->Notify();
}

void User::TellBroker(nlohmann::json message) {
  if (!broker_) return;
  message["penstock"] = kProtocolVersion;
  out_.push_back(std::move(message));
  if (!flushing_) Flush();
}

void User::Flush() {
  flushing_ = false;
  while (broker_ && !out_.empty()) {
    const Status status = SendMessage(broker_.get(), out_.front());
    if (status.code() == StatusCode::kResourceExhausted) {
      flushing_ = true;
      const auto timer = std::make_shared<asio::steady_timer>(
          context_, std::chrono::milliseconds(1));
      timer->async_wait([this, timer](const ErrorCode&) { Flush(); });
      return;
    }
    // Whatever else is wrong, Listen hears of.
    out_.pop_front();
  }
}

void User::Credit(const Lent& lent) {
  if (!Has(lent)) return;
  TellBroker({{"op", "link"},
              {"lent", lent.number},
              {"asks", lent.ready * kAsksOfConnection}});
}

void User::Made(const Ask& ask, const std::string& maker,
                const std::vector<uint64_t>& rows) {
  // The broker may be another one by now.
  if (!Has(*ask.lent)) return;
  TellBroker({{"op", "made"},
              {"lent", ask.lent->number},
              {"ask", ask.number},
              {"maker", maker},
              {"rows", rows}});
}

// ---- makers

asio::awaitable<void> User::FindMakers() {
  std::string said;
  for (;;) {
    const StatusOr<std::vector<RemoteMaker>> found =
        co_await options_.remotes.Find(context_);
    const std::string error = found.ok() ? "" : found.status().message();
    if (error != said && !error.empty()) {
      Print(stderr, "penstock: {}\n", PrintableLines(error));
    }
    said = error;
    if (found.ok()) {
      for (const auto& maker : makers_) {
        maker->gone =
            std::find(found->begin(), found->end(), maker->at) == found->end();
      }
      std::erase_if(makers_, [](const auto& maker) { return maker->gone; });
      for (const RemoteMaker& at : *found) {
        if (std::any_of(makers_.begin(), makers_.end(),
                        [&](const auto& maker) { return maker->at == at; })) {
          continue;
        }
        const auto maker = std::make_shared<Maker>();
        maker->at = at;
        makers_.push_back(maker);
        for (uint32_t i = 0; i < options_.connections; ++i) {
          asio::co_spawn(context_, Keep(maker), asio::detached);
        }
      }
      // Those that are gone leave when they look.
      for (LinkEvent* const waiting : waiting_) waiting->Notify();
    }
    LinkEvent pause(context_);
    co_await pause.Wait(kFind);
  }
}

asio::awaitable<void> User::TellOfMakers() {
  for (;;) {
    LinkEvent pause(context_);
    co_await pause.Wait(kTell);
    const auto now = Clock::now();
    while (!asks_.empty() && now - asks_.front().since > kAskKept) {
      Made(asks_.front(), "", {});
      asks_.pop_front();
    }
    nlohmann::json makers = nlohmann::json::array();
    for (const auto& maker : makers_) {
      const uint64_t bytes = maker->bytes - maker->bytes_told;
      maker->bytes_told = maker->bytes;
      makers.push_back(
          {{"maker", maker->at.name},
           {"state", maker->state()},
           {"error", maker->error},
           {"connections", maker->connected},
           {"rows", maker->rows},
           {"bytes", maker->bytes},
           {"bytes_per_s", static_cast<double>(bytes) / kTell.count()}});
    }
    if (out_.empty()) TellBroker({{"op", "makers"}, {"makers", makers}});
  }
}

asio::awaitable<void> User::Keep(std::shared_ptr<Maker> maker) {
  Seconds pause = kRetryFirst;
  while (!maker->gone && !maker->distrusted) {
    const uint64_t rows = maker->rows;
    std::string error;
    try {
      co_await Talk(maker);
    } catch (const BadAnswer& answer) {
      error = answer.text;
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    if (!error.empty() && error != maker->error) {
      Print(stderr, "penstock: {}: {}\n", maker->at.name,
            PrintableLines(error));
    }
    if (!error.empty()) maker->error = error;
    pause = maker->rows > rows ? kRetryFirst : std::min(2 * pause, kRetryLast);
    LinkEvent wait(context_);
    co_await wait.Wait(pause);
  }
}

std::optional<Ask> User::TakeAsk(const Datasets& datasets) {
  for (auto ask = asks_.begin(); ask != asks_.end(); ++ask) {
    if (!datasets.contains(ask->lent->number)) continue;
    Ask taken = std::move(*ask);
    asks_.erase(ask);
    return taken;
  }
  return std::nullopt;
}

// Opens a dataset that was lent and is not open. False: there is none.
asio::awaitable<bool> User::OpenNext(LinkConnection& connection, Maker* maker,
                                     Datasets* datasets) {
  std::shared_ptr<Lent> next;
  for (const auto& [number, lent] : lent_) {
    if (datasets->contains(number) || maker->refused.contains(number)) continue;
    next = lent;
    break;
  }
  if (next == nullptr) co_return false;
  try {
    const uint32_t dataset = co_await OpenDataset(connection, *next);
    (*datasets)[next->number] = {next, dataset};
  } catch (const BadAnswer& answer) {
    constexpr unsigned kConflict = 409;
    if (answer.status == kConflict) maker->refused.insert(next->number);
    throw;
  }
  ++next->ready;
  Credit(*next);
  co_return true;
}

asio::awaitable<void> User::Talk(std::shared_ptr<Maker> maker) {
  const std::vector<Tcp::endpoint> addresses =
      co_await Resolve(context_, maker->at.address, maker->at.port);
  LinkConnection connection(context_, identity_);
  co_await connection.Connect(addresses, maker->at.host, kConnect);
  struct Connected {
    User* user;
    Maker* maker;
    Datasets datasets;
    ~Connected() {
      --maker->connected;
      for (const auto& [number, dataset] : datasets) {
        --dataset.first->ready;
        user->Credit(*dataset.first);
      }
    }
  };
  ++maker->connected;
  Connected connected = {this, maker.get(), {}};
  Datasets& datasets = connected.datasets;
  while (!maker->gone && !maker->distrusted) {
    // The maker ends a job with the connection: it is made anew.
    if (std::any_of(datasets.begin(), datasets.end(), [this](const auto& each) {
          return !Has(*each.second.first);
        })) {
      co_return;
    }
    if (co_await OpenNext(connection, maker.get(), &datasets)) continue;
    std::optional<Ask> ask = TakeAsk(datasets);
    if (!ask) {
      LinkEvent event(context_);
      waiting_.insert(&event);
      co_await event.Wait();
      waiting_.erase(&event);
      continue;
    }
    std::vector<uint64_t> made;
    std::exception_ptr error;
    try {
      made = co_await Fetch(connection, *ask,
                            datasets.at(ask->lent->number).second);
    } catch (...) {
      error = std::current_exception();
    }
    Made(*ask, maker->at.name, made);
    if (error != nullptr) std::rethrow_exception(error);
    maker->error.clear();
    maker->rows += made.size() / 2;
    maker->bytes += made.size() / 2 * ask->lent->request.row_bytes;
  }
}

std::string User::Header(std::string_view target, const std::string& type,
                         size_t bytes, const Maker& maker) const {
  const std::string token =
      identity_.token.empty()
          ? ""
          : Format("Authorization: Bearer {}\r\n", identity_.token);
  return Format(
      "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: {}\r\n{}"
      "Content-Length: {}\r\n\r\n",
      target, maker.at.name, type, token, bytes);
}

// The header of an answer; what has come of its body with it is in *buffer.
asio::awaitable<uint64_t> ReadAnswer(LinkConnection& connection,
                                     beast::flat_buffer& buffer) {
  http::response_parser<http::empty_body> parser;
  parser.header_limit(kHeaderBytesMax);
  parser.body_limit(kRowsBytesMax + kBodyBytesMax);
  co_await connection.ReadHeader(buffer, parser);
  const auto length = parser.content_length();
  if (!length) throw BadAnswer{0, "its answer is none of a link of Penstock"};
  const unsigned status = parser.get().result_int();
  constexpr unsigned kOk = 200;
  if (status == kOk) co_return *length;
  std::string text(std::min<uint64_t>(*length, kBodyBytesMax), '\0');
  const size_t here = std::min(buffer.size(), text.size());
  std::memcpy(text.data(), buffer.data().data(), here);
  buffer.consume(here);
  if (here < text.size()) {
    std::vector<asio::mutable_buffer> rest = {
        asio::buffer(text.data() + here, text.size() - here)};
    co_await connection.Read(std::move(rest));
  }
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const bool is_ours =
      json.is_object() && json.contains("error") && json["error"].is_string();
  throw BadAnswer{
      status, is_ours ? json["error"].get<std::string>()
                      : Format("HTTP {}: it is no link of Penstock", status)};
}

asio::awaitable<uint32_t> User::OpenDataset(LinkConnection& connection,
                                            const Lent& lent) {
  const std::string body = lent.request.ToJson().dump();
  const std::string header =
      Header(kDatasetTarget, "application/json", body.size(), Maker());
  connection.SetTime(kOpen);
  const std::string request = header + body;
  co_await connection.Write(asio::buffer(request));
  beast::flat_buffer buffer(kHeaderBytesMax + kBodyBytesMax);
  const uint64_t bytes = co_await ReadAnswer(connection, buffer);
  if (bytes > kBodyBytesMax) throw BadAnswer{0, "its answer is too long"};
  std::string text(bytes, '\0');
  const size_t here = std::min<size_t>(buffer.size(), bytes);
  std::memcpy(text.data(), buffer.data().data(), here);
  if (here < bytes) {
    std::vector<asio::mutable_buffer> rest = {
        asio::buffer(text.data() + here, bytes - here)};
    co_await connection.Read(std::move(rest));
  }
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("dataset") ||
      !json["dataset"].is_number_unsigned()) {
    throw BadAnswer{0, "its answer is none of a link of Penstock"};
  }
  co_return json["dataset"].get<uint32_t>();
}

// Reads so many bytes to the places, those first that came with the header.
asio::awaitable<void> ReadInto(LinkConnection& connection,
                               beast::flat_buffer& buffer,
                               std::vector<asio::mutable_buffer> places) {
  size_t at = 0;
  while (at < places.size() && buffer.size() > 0) {
    const size_t here = std::min(buffer.size(), places[at].size());
    std::memcpy(places[at].data(), buffer.data().data(), here);
    buffer.consume(here);
    places[at] += here;
    if (places[at].size() == 0) ++at;
  }
  places.erase(places.begin(), places.begin() + static_cast<ptrdiff_t>(at));
  co_await connection.Read(std::move(places));
}

asio::awaitable<std::vector<uint64_t>> User::Fetch(LinkConnection& connection,
                                                   const Ask& ask,
                                                   uint32_t dataset) {
  const RowsRequest request = {dataset, ask.rows};
  const std::string body = request.ToBytes();
  const std::string text =
      Header(kRowsTarget, "application/octet-stream", body.size(), Maker()) +
      body;
  connection.SetTime(kRows);
  co_await connection.Write(asio::buffer(text));
  beast::flat_buffer buffer(kHeaderBytesMax + kBodyBytesMax);
  const uint64_t bytes = co_await ReadAnswer(connection, buffer);
  std::vector<RowResult> results(ask.rows.size());
  std::vector<asio::mutable_buffer> places = {
      asio::buffer(results.data(), results.size() * sizeof(RowResult))};
  if (bytes < places[0].size()) throw BadAnswer{0, "its answer is too short"};
  co_await ReadInto(connection, buffer, std::move(places));
  const Lent& lent = *ask.lent;
  const uint64_t row_bytes = lent.request.row_bytes;
  std::vector<uint64_t> made;
  std::vector<asio::mutable_buffer> rows;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].is_made == 0) continue;
    if (ask.places[i] >= lent.places) {
      throw BadAnswer{0, "the broker asked for a place that it has not lent"};
    }
    rows.emplace_back(lent.memory + ask.places[i] * row_bytes, row_bytes);
    made.push_back(ask.places[i]);
    made.push_back(results[i].checksum);
  }
  if (bytes != results.size() * sizeof(RowResult) + rows.size() * row_bytes) {
    throw BadAnswer{0, "its answer has another length than its rows"};
  }
  co_await ReadInto(connection, buffer, std::move(rows));
  co_return made;
}

}  // namespace

Status UseLinks(const UseOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(LinkIdentity identity,
                            LinkIdentity::Read(options.security, false));
  User user(options, std::move(identity));
  user.Run();
  return OkStatus();
}

}  // namespace penstock
