#include "client/link/use.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <list>
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
constexpr Seconds kAnswer{35};  // longer than a maker takes to give up
constexpr Seconds kFind{5};  // how often makers are looked for
constexpr Seconds kTell{1};  // and told of
constexpr Seconds kRetryFirst{0.5};
constexpr Seconds kRetryLast{15};
// A dataset that a maker has refused, or could not open now.
constexpr std::chrono::seconds kRefusedAgain{60};
constexpr std::chrono::seconds kOpenAgain{15};
constexpr Seconds kBroker{1};
// An ask that no maker takes is the broker's again.
constexpr std::chrono::seconds kAskKept{5};
// Asks of a connection, the one that it answers included.
constexpr uint32_t kAsksOfConnection = 2;
constexpr size_t kErrorBytesMax = 300;  // of another host's
constexpr char kNoLink[] = "the answer is not one of `penstock link serve`";

// The answer is an error, or not one of `penstock link serve`.
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
  uint32_t connected = 0;  // connections
  std::string error;       // the last one
  // By number of the job.
  std::set<uint64_t> opening;                   // by one of its connections
  std::map<uint64_t, Clock::time_point> again;  // it opens none before then
  uint64_t rows = 0;
  uint64_t bytes = 0;
  uint64_t bytes_told = 0;

  const char* state() const {
    return distrusted      ? "distrusted"
           : connected > 0 ? (again.empty() ? "connected" : "refuses")
                           : "away";
  }
};

class RowFetcher {
 public:
  RowFetcher(const UseOptions& options, LinkIdentity identity)
      : options_(options), identity_(std::move(identity)) {}
  void Run();

 private:
  asio::awaitable<void> FindMakers();
  asio::awaitable<void> TellOfMakers();
  asio::awaitable<void> KeepBroker();
  asio::awaitable<void> Listen();
  void OnMessage(Message message);
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

  asio::awaitable<void> StayConnected(std::shared_ptr<Maker> maker);
  asio::awaitable<void> UseConnection(std::shared_ptr<Maker> maker);
  // By the number of a job: how its maker knows it.
  using Datasets =
      std::map<uint64_t, std::pair<std::shared_ptr<Lent>, uint32_t>>;
  // The maker may be opening them.
  using Unanswered = std::set<std::shared_ptr<Lent>>;
  std::optional<Ask> TakeAsk(const Datasets& datasets);
  struct Waiting {
    LinkEvent* event;
    const Datasets* datasets;
  };
  void NotifyAll();
  static void Failed(Maker* maker, const std::string& error);
  asio::awaitable<bool> OpenNext(LinkConnection& connection, Maker* maker,
                                 Datasets* datasets, Unanswered* unanswered);
  asio::awaitable<nlohmann::json> Post(LinkConnection& connection,
                                       const Maker& maker,
                                       std::string_view target,
                                       const nlohmann::json& request);
  asio::awaitable<std::vector<uint64_t>> Fetch(LinkConnection& connection,
                                               const Maker& maker,
                                               const Ask& ask,
                                               uint32_t dataset);
  std::string Header(std::string_view target, const std::string& type,
                     size_t bytes, const Maker& maker) const;

  const UseOptions options_;
  const LinkIdentity identity_;
  Fd broker_;
  std::map<uint64_t, std::shared_ptr<Lent>> lent_;
  std::deque<Ask> asks_;
  std::deque<nlohmann::json> out_;  // to the broker
  bool flushing_ = false;
  std::string broker_error_;  // printed
  std::vector<std::shared_ptr<Maker>> makers_;
  std::set<std::string> distrusted_;  // names of makers
  size_t opened_ = 0;                 // datasets
  // Connections without an ask, in the order in which they began to wait.
  std::list<Waiting> waiting_;
  // Last: its coroutines use the others until it is destroyed.
  asio::io_context context_{1};
};

void RowFetcher::Run() {
  asio::posix::stream_descriptor interrupt(context_, dup(InterruptFd()));
  interrupt.async_wait(asio::posix::stream_descriptor::wait_read,
                       [this](const ErrorCode&) { context_.stop(); });
  asio::co_spawn(context_, KeepBroker(), kRethrow);
  asio::co_spawn(context_, FindMakers(), kRethrow);
  asio::co_spawn(context_, TellOfMakers(), kRethrow);
  context_.run();
  broker_.Reset();  // nothing is told while connections are destroyed
}

// ---- the broker

asio::awaitable<void> RowFetcher::KeepBroker() {
  const std::string path = SocketPath(options_.socket);
  for (;;) {
    StatusOr<Fd> socket = ConnectControl(path);
    std::string error;
    if (socket.ok()) {
      broker_ = *std::move(socket);
      out_.clear();
      TellBroker({{"op", "link"}, {"asks", 0}});
      try {
        co_await Listen();
      } catch (const std::exception& thrown) {
        error = thrown.what();
      }
      broker_.Reset();
      // Another broker numbers its jobs anew.
      lent_.clear();
      asks_.clear();
      for (const auto& maker : makers_) maker->again.clear();
      NotifyAll();
    } else {
      error = socket.status().message();
    }
    if (error != broker_error_) {
      Print(stderr, "penstock: {}\n", PrintableLines(error));
    }
    broker_error_ = error;
    LinkEvent pause(context_);
    co_await pause.Wait(kBroker);
  }
}

asio::awaitable<void> RowFetcher::Listen() {
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
      OnMessage(**std::move(message));
    }
  }
}

void RowFetcher::OnMessage(Message message) {
  const nlohmann::json& json = message.json;
  const std::string event = json.value("event", "");
  if (event.empty()) {
    const Status status = StatusOfAnswer(json);
    if (!status.ok()) throw std::runtime_error(status.message());
    const std::string version = json.value("version", penstock_version());
    if (version != penstock_version()) {
      throw std::runtime_error(
          Format("penstockd is {}, this program {}: restart the older one",
                 version, penstock_version()));
    }
    if (!broker_error_.empty()) {
      Print(stderr, "penstock: the broker answers\n");
    }
    broker_error_.clear();
  } else if (event == "lend") {
    if (message.fds.empty()) throw std::runtime_error("no memory was lent");
    Lend(json, std::move(message.fds[0]));
  } else if (event == "unlend") {
    const uint64_t number = json.at("lent");
    lent_.erase(number);
    std::erase_if(asks_,
                  [&](const Ask& ask) { return ask.lent->number == number; });
    for (const auto& maker : makers_) maker->again.erase(number);
    NotifyAll();
  } else if (event == "distrust") {
    const std::string name = json.at("maker");
    if (!distrusted_.insert(name).second) return;
    for (const auto& maker : makers_) {
      if (maker->at.name == name) maker->distrusted = true;
    }
    Print(stderr,
          "penstock: {} makes other rows than this host: it is asked for "
          "nothing more\n",
          name);
    NotifyAll();
  } else if (event == "make") {
    const auto found = lent_.find(json.at("lent").get<uint64_t>());
    if (found == lent_.end()) return;
    Ask ask = {found->second, json.at("ask"), {}, {}, Clock::now()};
    const auto rows = json.at("rows").get<std::vector<uint64_t>>();
    for (size_t i = 0; i + 2 < rows.size(); i += 3) {
      ask.rows.push_back({rows[i], rows[i + 1]});
      ask.places.push_back(static_cast<uint32_t>(rows[i + 2]));
    }
    // The one that has waited longest, so that all makers have their part.
    const auto first = std::find_if(
        waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
          return waiting.datasets->contains(ask.lent->number);
        });
    if (first != waiting_.end()) {
      first->event->Notify();
      // The next ask wakes another.
      waiting_.splice(waiting_.end(), waiting_, first);
    }
    asks_.push_back(std::move(ask));
  }
}

void RowFetcher::Lend(const nlohmann::json& event, Fd memory) {
  StatusOr<DatasetRequest> request = DatasetRequest::FromJson(event);
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
  NotifyAll();
}

void RowFetcher::TellBroker(nlohmann::json message) {
  if (!broker_) return;
  message["penstock"] = kProtocolVersion;
  out_.push_back(std::move(message));
  if (!flushing_) Flush();
}

void RowFetcher::Flush() {
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
    // Whatever else is wrong, Listen notices.
    out_.pop_front();
  }
}

void RowFetcher::Credit(const Lent& lent) {
  if (!Has(lent)) return;
  TellBroker({{"op", "link"},
              {"lent", lent.number},
              {"asks", lent.ready * kAsksOfConnection}});
}

void RowFetcher::Made(const Ask& ask, const std::string& maker,
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

asio::awaitable<void> RowFetcher::FindMakers() {
  std::string said;
  for (;;) {
    StatusOr<std::vector<RemoteMaker>> found =
        UnavailableError("makers are not looked for");
    try {
      found = co_await options_.remotes.Find(context_);
    } catch (const std::exception& thrown) {
      found = UnavailableError("makers: {}", thrown.what());
    }
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
        maker->distrusted = distrusted_.contains(at.name);
        makers_.push_back(maker);
        for (uint32_t i = 0; i < options_.connections; ++i) {
          asio::co_spawn(context_, StayConnected(maker), kRethrow);
        }
      }
      // Those that are gone leave when they look.
      NotifyAll();
    }
    LinkEvent pause(context_);
    co_await pause.Wait(kFind);
  }
}

asio::awaitable<void> RowFetcher::TellOfMakers() {
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

asio::awaitable<void> RowFetcher::StayConnected(std::shared_ptr<Maker> maker) {
  Seconds pause = kRetryFirst;
  while (!maker->gone && !maker->distrusted) {
    const uint64_t rows = maker->rows;
    std::string error;
    try {
      co_await UseConnection(maker);
    } catch (const BadAnswer& answer) {
      error = answer.text;
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    if (!error.empty()) Failed(maker.get(), error);
    NotifyAll();  // it may have been woken for an ask
    if (error.empty() || maker->rows > rows) pause = kRetryFirst;
    LinkEvent wait(context_);
    co_await wait.Wait(pause);
    pause = std::min(2 * pause, kRetryLast);
  }
}

void RowFetcher::Failed(Maker* maker, const std::string& error) {
  if (std::exchange(maker->error, error) == error) return;
  Print(stderr, "penstock: {}: {}\n", maker->at.name, PrintableLines(error));
}

void RowFetcher::NotifyAll() {
  for (Waiting& waiting : waiting_) waiting.event->Notify();
}

std::optional<Ask> RowFetcher::TakeAsk(const Datasets& datasets) {
  for (auto ask = asks_.begin(); ask != asks_.end(); ++ask) {
    if (!datasets.contains(ask->lent->number)) continue;
    Ask taken = std::move(*ask);
    asks_.erase(ask);
    return taken;
  }
  return std::nullopt;
}

// Opens a dataset that was lent and is not open. False: there is none.
asio::awaitable<bool> RowFetcher::OpenNext(LinkConnection& connection,
                                           Maker* maker, Datasets* datasets,
                                           Unanswered* unanswered) {
  std::vector<std::shared_ptr<Lent>> closed;
  const auto now = Clock::now();
  for (const auto& [number, lent] : lent_) {
    const auto again = maker->again.find(number);
    if (!datasets->contains(number) && !maker->opening.contains(number) &&
        (again == maker->again.end() || again->second < now)) {
      closed.push_back(lent);
    }
  }
  if (closed.empty() || datasets->size() == kDatasetsMax) co_return false;
  // Jobs beyond kDatasetsMax are shared out over the connections.
  const std::shared_ptr<Lent> next = closed[opened_++ % closed.size()];
  struct Opening {
    Maker* maker;
    uint64_t number;
    ~Opening() { maker->opening.erase(number); }
  };
  maker->opening.insert(next->number);
  const Opening opening = {maker, next->number};
  // Opening takes long: others take the asks that this connection was woken
  // for.
  NotifyAll();
  try {
    connection.SetTime(kAnswer);
    const nlohmann::json answer = co_await Post(
        connection, *maker, kDatasetTarget, next->request.ToJson());
    if (!answer.contains("dataset") ||
        !answer["dataset"].is_number_unsigned()) {
      throw BadAnswer{0, kNoLink};
    }
    (*datasets)[next->number] = {next, answer["dataset"].get<uint32_t>()};
  } catch (const BadAnswer& answer) {
    constexpr unsigned kConflict = 409;
    constexpr unsigned kUnavailable = 503;
    if (answer.status != kConflict && answer.status != kUnavailable) throw;
    if (answer.status == kUnavailable) unanswered->insert(next);
    if (Has(*next)) {
      maker->again[next->number] =
          Clock::now() +
          (answer.status == kConflict ? kRefusedAgain : kOpenAgain);
    }
    Failed(maker, answer.text);
    co_return true;
  }
  maker->again.erase(next->number);
  unanswered->erase(next);
  // The others open it now.
  NotifyAll();
  ++next->ready;
  Credit(*next);
  co_return true;
}

asio::awaitable<void> RowFetcher::UseConnection(std::shared_ptr<Maker> maker) {
  const std::vector<Tcp::endpoint> addresses =
      co_await Resolve(context_, maker->at.address, maker->at.port);
  LinkConnection connection(context_, identity_);
  co_await connection.Connect(addresses, maker->at.host, kConnect);
  const nlohmann::json hello = {{"version", penstock_version()}};
  co_await Post(connection, *maker, kHelloTarget, hello);
  if (maker->again.empty()) maker->error.clear();
  struct Connected {
    RowFetcher* fetcher;
    Maker* maker;
    Datasets datasets;
    Unanswered unanswered;
    ~Connected() {
      --maker->connected;
      for (const auto& [number, dataset] : datasets) {
        --dataset.first->ready;
        fetcher->Credit(*dataset.first);
      }
    }
  };
  ++maker->connected;
  Connected connected = {this, maker.get(), {}, {}};
  Datasets& datasets = connected.datasets;
  while (!maker->gone && !maker->distrusted) {
    // The maker ends a job with the connection: it is made anew.
    if (std::any_of(
            datasets.begin(), datasets.end(),
            [this](const auto& each) { return !Has(*each.second.first); }) ||
        std::any_of(connected.unanswered.begin(), connected.unanswered.end(),
                    [this](const auto& each) { return !Has(*each); })) {
      co_return;
    }
    if (co_await OpenNext(connection, maker.get(), &datasets,
                          &connected.unanswered)) {
      continue;
    }
    std::optional<Ask> ask = TakeAsk(datasets);
    if (!ask) {
      LinkEvent event(context_);
      const auto waiting = waiting_.insert(waiting_.end(), {&event, &datasets});
      co_await event.Wait(kFind);
      waiting_.erase(waiting);
      connection.CheckOpen();
      continue;
    }
    std::vector<uint64_t> made;
    std::exception_ptr error;
    try {
      made = co_await Fetch(connection, *maker, *ask,
                            datasets.at(ask->lent->number).second);
    } catch (...) {
      error = std::current_exception();
    }
    Made(*ask, maker->at.name, made);
    if (error != nullptr) std::rethrow_exception(error);
    if (maker->again.empty()) maker->error.clear();
    maker->rows += made.size() / 2;
    maker->bytes += made.size() / 2 * ask->lent->request.row_bytes;
  }
}

std::string RowFetcher::Header(std::string_view target, const std::string& type,
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

// The header of an answer; what has come of its body with it is in *buffer.
asio::awaitable<uint64_t> ReadAnswer(LinkConnection& connection,
                                     beast::flat_buffer& buffer) {
  http::response_parser<http::empty_body> parser;
  parser.header_limit(kHeaderBytesMax);
  parser.body_limit(kRowsBytesMax + kBodyBytesMax);
  co_await connection.ReadHeader(buffer, parser);
  const auto length = parser.content_length();
  if (!length) throw BadAnswer{0, kNoLink};
  const unsigned status = parser.get().result_int();
  constexpr unsigned kOk = 200;
  if (status == kOk) co_return *length;
  std::string text(std::min<uint64_t>(*length, kBodyBytesMax), '\0');
  std::vector<asio::mutable_buffer> whole = {asio::buffer(text)};
  co_await ReadInto(connection, buffer, std::move(whole));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const bool is_ours =
      json.is_object() && json.contains("error") && json["error"].is_string();
  throw BadAnswer{
      status, is_ours
                  ? json["error"].get<std::string>().substr(0, kErrorBytesMax)
                  : Format("HTTP {}: not a Penstock link", status)};
}

// The answer is an object.
asio::awaitable<nlohmann::json> RowFetcher::Post(
    LinkConnection& connection, const Maker& maker, std::string_view target,
    const nlohmann::json& request) {
  const std::string text_of_request = request.dump();
  const std::string whole =
      Header(target, "application/json", text_of_request.size(), maker) +
      text_of_request;
  co_await connection.Write(asio::buffer(whole));
  beast::flat_buffer buffer(kHeaderBytesMax + kBodyBytesMax);
  const uint64_t bytes = co_await ReadAnswer(connection, buffer);
  if (bytes > kBodyBytesMax) throw BadAnswer{0, "its answer is too long"};
  std::string text(bytes, '\0');
  std::vector<asio::mutable_buffer> body = {asio::buffer(text)};
  co_await ReadInto(connection, buffer, std::move(body));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) throw BadAnswer{0, kNoLink};
  co_return json;
}

asio::awaitable<std::vector<uint64_t>> RowFetcher::Fetch(
    LinkConnection& connection, const Maker& maker, const Ask& ask,
    uint32_t dataset) {
  const RowsRequest request = {dataset, ask.rows};
  const std::string body = request.ToBytes();
  const std::string text =
      Header(kRowsTarget, "application/octet-stream", body.size(), maker) +
      body;
  connection.SetTime(kAnswer);
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
  RowFetcher fetcher(options, std::move(identity));
  fetcher.Run();
  return OkStatus();
}

}  // namespace penstock
