#include "client/link/serve.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include "client/link/remotes.h"
#include "client/link/wire.h"
#include "client/penstock.h"
#include "client/private_broker/interrupt.h"
#include "common/crc32c.h"
#include "common/format.h"
#include "common/message.h"
#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {
namespace {

using Seconds = LinkConnection::Seconds;
// From one request to the next; connections of a job that needs no help are
// idle.
constexpr Seconds kIdle{3600};
constexpr Seconds kHandshake{10};
constexpr Seconds kReceive{10};  // the rest of a request
constexpr Seconds kRequest{30};  // to answer one
constexpr double kOpen_s = 3600;
// A job whose link has died is over so soon.
constexpr double kWait_s = 10;
// Where nothing says that a batch is ready.
constexpr Seconds kLook{0.5};

struct HttpError {
  unsigned status;
  std::string text;
};

// A job of the broker here, whose rows are asked for.
class AskedJob {
 public:
  AskedJob() = default;
  AskedJob(const AskedJob&) = delete;
  AskedJob& operator=(const AskedJob&) = delete;
  ~AskedJob() {
    if (reader_ != nullptr) penstock_detach(reader_);
  }

  // On a thread of its own.
  Status Open(const ServeOptions& options, const DatasetRequest& request,
              const std::string& name) {
    name_ = name;
    form_ = request;
    PENSTOCK_ASSIGN_OR_RETURN(auto spec, ParseSpecOfLink(request.spec));
    if (spec.value("asked", nlohmann::ordered_json()) != true) {
      return InvalidArgumentError("{}", kNotOfLink);
    }
    MapPaths(options.paths, &spec);
    PENSTOCK_ASSIGN_OR_RETURN(control_,
                              ConnectControl(SocketPath(options.socket)));
    auto plain = spec;
    plain.erase("asked");
    // A spec that another host has checked still has to fit this broker.
    const Deadline deadline = std::chrono::steady_clock::now() +
                              std::chrono::seconds(static_cast<int>(kOpen_s));
    PENSTOCK_ASSIGN_OR_RETURN(
        const Message index,
        Request(control_.get(),
                {{"op", "index"},
                 {"spec", plain.dump()},
                 {"file", ""},
                 {"base", "/"}},
                {}, deadline,
                [this](const nlohmann::json&) { return !Cancelled(); }));
    PENSTOCK_RETURN_IF_ERROR(Compare(index.json, request));
    penstock_options attach = PENSTOCK_OPTIONS_INIT;
    const std::string text = spec.dump();
    attach.spec = text.c_str();
    attach.spec_generated = 1;
    attach.job = name_.c_str();
    attach.socket = options.socket.empty() ? nullptr : options.socket.c_str();
    attach.rank = 0;
    attach.world_size = 1;
    attach.local_world_size = 1;
    attach.replicas = 1;
    attach.replica = 0;
    attach.timeout_s = kOpen_s;
    attach.wait_s = kWait_s;
    attach.reconnect_s = -1;
    attach.cancelled = [](void* job) {
      return static_cast<AskedJob*>(job)->Cancelled() ? 1 : 0;
    };
    attach.cancelled_context = this;
    const int code = penstock_attach(&attach, &reader_);
    if (code == PENSTOCK_OK) return OkStatus();
    return Status(static_cast<StatusCode>(-code), penstock_error());
  }

  // Nobody waits for Open any more.
  void Cancel() { cancelled_.store(true); }
  const DatasetRequest& form() const { return form_; }

  // Throws HttpError.
  asio::awaitable<penstock_batch*> Take(asio::io_context& context,
                                        const std::vector<RowKey>& rows) {
    std::vector<uint64_t> numbers;
    for (uint32_t i = 0; i < form_.rows; ++i) {
      // A batch is whole.
      const RowKey& row = rows[std::min<size_t>(i, rows.size() - 1)];
      numbers.push_back(row.record);
      numbers.push_back(row.pass);
    }
    const nlohmann::json ask = {{"penstock", kProtocolVersion},
                                {"op", "ask"},
                                {"job", name_},
                                {"rows", std::move(numbers)}};
    const auto until =
        std::chrono::steady_clock::now() +
        std::chrono::duration_cast<std::chrono::nanoseconds>(kRequest);
    LinkEvent pause(context);
    Status sent = SendMessage(control_.get(), ask);
    while (sent.code() == StatusCode::kResourceExhausted &&
           std::chrono::steady_clock::now() < until) {
      co_await pause.Wait(std::chrono::milliseconds(1));
      sent = SendMessage(control_.get(), ask);
    }
    if (!sent.ok()) throw HttpError{503, sent.message()};
    // The timer's handler may still be queued when this returns.
    const auto ready = std::make_shared<asio::posix::stream_descriptor>(
        context, dup(penstock_fileno(reader_)));
    asio::steady_timer timer(context);
    while (std::chrono::steady_clock::now() < until) {
      penstock_batch* batch = nullptr;
      const int code = penstock_next_ready(reader_, &batch);
      if (code == PENSTOCK_OK) co_return batch;
      if (code != PENSTOCK_DEADLINE_EXCEEDED) {
        throw HttpError{503, code > 0 ? "the job is over" : penstock_error()};
      }
      const auto refused = ReceiveMessage(control_.get());
      if (!refused.ok()) throw HttpError{503, refused.status().message()};
      if (*refused) {
        throw HttpError{503, StatusOfAnswer((*refused)->json).message()};
      }
      timer.expires_after(
          std::chrono::duration_cast<asio::steady_timer::duration>(kLook));
      timer.async_wait([ready](const ErrorCode& error) {
        if (!error) ready->cancel();
      });
      ErrorCode looked;
      co_await ready->async_wait(
          asio::posix::stream_descriptor::wait_read,
          asio::redirect_error(asio::use_awaitable, looked));
      timer.cancel();
    }
    throw HttpError{503, "the rows were not made in time"};
  }

  // Where the bytes of a row of the batch are, with what is between them.
  void AddRow(const penstock_batch* batch, uint64_t row,
              std::vector<std::span<const std::byte>>* pieces) const {
    static const std::byte kZeros[64] = {};
    uint64_t at = 0;
    const auto fill = [&](uint64_t to) {
      for (; at < to; at += std::min<uint64_t>(to - at, sizeof(kZeros))) {
        pieces->emplace_back(kZeros,
                             std::min<uint64_t>(to - at, sizeof(kZeros)));
      }
    };
    for (size_t i = 0; i < form_.features.size(); ++i) {
      fill(form_.offsets[i]);
      const uint64_t bytes = form_.features[i].RowBytes();
      const auto* const data = static_cast<const std::byte*>(
          penstock_batch_data(batch, static_cast<uint32_t>(i)));
      pieces->emplace_back(data + row * bytes, bytes);
      at += bytes;
    }
    fill(form_.row_bytes);
  }

 private:
  static Status Compare(const nlohmann::json& here,
                        const DatasetRequest& there) {
    const std::string fingerprint = here.value("source_fingerprint", "");
    const uint64_t records = here.value("source_records", uint64_t{0});
    if (records != there.records || fingerprint != there.fingerprint) {
      return FailedPreconditionError(
          "the files here are not those of the other host: {} of fingerprint "
          "{} here, {} of {} there",
          Counted(records, "record"), fingerprint, there.records,
          there.fingerprint);
    }
    const nlohmann::json features = ElementSpecToJson(there.features);
    if (here.value("element_spec", nlohmann::json()) == features) {
      return OkStatus();
    }
    return FailedPreconditionError(
        "rows are {} here and {} there: is it another version of Penstock?",
        here.value("element_spec", nlohmann::json()).dump(), features.dump());
  }

  bool Cancelled() const { return cancelled_.load() || InterruptSignal() != 0; }

  std::atomic<bool> cancelled_{false};
  std::string name_;
  DatasetRequest form_;
  Fd control_;  // for asks
  penstock_reader* reader_ = nullptr;
};

class Server {
 public:
  Server(const ServeOptions& options, LinkIdentity identity)
      : options_(options), identity_(std::move(identity)) {}

  Status Listen();
  void Run();

 private:
  asio::awaitable<void> Accept();
  asio::awaitable<void> Serve(std::shared_ptr<LinkConnection> connection);
  // What a connection has asked for, open or not yet.
  struct Dataset {
    explicit Dataset(asio::io_context& context) : changed(context) {}
    std::string request;
    uint32_t number = 0;
    std::shared_ptr<AskedJob> job = std::make_shared<AskedJob>();
    std::optional<Status> status;  // nullopt: it opens
    LinkEvent changed;
  };
  using Datasets = std::vector<std::shared_ptr<Dataset>>;
  void Greet(const std::string& hello) const;
  void Tell(const std::string& peer, const std::string& text);
  asio::awaitable<std::string> Open(const std::string& peer,
                                    const std::string& body,
                                    Datasets* datasets);
  asio::awaitable<void> OpenOnThread(std::shared_ptr<Dataset> dataset,
                                     DatasetRequest request, std::string name);
  asio::awaitable<void> SendRows(LinkConnection& connection,
                                 const std::string& body,
                                 const Datasets& datasets);

  const ServeOptions options_;
  const LinkIdentity identity_;
  asio::io_context context_{1};
  Tcp::acceptor acceptor_{context_};
  size_t open_ = 0;
  uint32_t last_dataset_ = 0;
  std::map<std::string, std::chrono::steady_clock::time_point> told_;
};

Status Server::Listen() {
  if (identity_.tls == nullptr && identity_.token.empty()) {
    return InvalidArgumentError(
        "give --cert, --key and --ca, or at least --token-file, on loopback "
        "too: whoever connects can read the files of this user");
  }
  const std::string& address = options_.listen;
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (colon == std::string::npos ||
      !ParseCount(address.substr(colon + 1), kPortMax, 0).ok()) {
    return InvalidArgumentError(
        "'{}' is no address to listen on: wanted HOST:PORT", address);
  }
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  }
  ErrorCode error;
  Tcp::resolver resolver(context_);
  const auto found = resolver.resolve(
      host, address.substr(colon + 1),
      Tcp::resolver::passive | Tcp::resolver::numeric_service, error);
  if (error) {
    return InvalidArgumentError("cannot listen on '{}': {}", address,
                                error.message());
  }
  Tcp::endpoint endpoint = found.begin()->endpoint();
  for (const auto& each : found) {
    if (host.empty() && each.endpoint().address().is_v6()) {
      endpoint = each.endpoint();
    }
  }
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(Tcp::acceptor::reuse_address(true), error);
  if (!error && endpoint.address().is_v6()) {
    acceptor_.set_option(asio::ip::v6_only(false), error);
  }
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) {
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
  }
  if (!error) endpoint = acceptor_.local_endpoint(error);
  if (error) {
    return InvalidArgumentError("cannot listen on '{}': {}", address,
                                error.message());
  }
  const std::string text = endpoint.address().to_string();
  Print(stderr, "penstock: makes rows at {}:{}\n",
        endpoint.address().is_v6() ? "[" + text + "]" : text, endpoint.port());
  return OkStatus();
}

void Server::Run() {
  asio::posix::stream_descriptor interrupt(context_, dup(InterruptFd()));
  interrupt.async_wait(asio::posix::stream_descriptor::wait_read,
                       [this](const ErrorCode&) { context_.stop(); });
  asio::co_spawn(context_, Accept(), kRethrow);
  context_.run();
}

asio::awaitable<void> Server::Accept() {
  for (;;) {
    ErrorCode error;
    Tcp::socket socket(context_);
    co_await acceptor_.async_accept(
        socket, asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      LinkEvent pause(context_);
      co_await pause.Wait(std::chrono::milliseconds(200));
      continue;
    }
    auto connection =
        std::make_shared<LinkConnection>(std::move(socket), identity_);
    if (open_ == ServeOptions::kConnections) {
      Tell(connection->peer(),
           Format("refused: {} connections are open, the maximum", open_));
      continue;
    }
    asio::co_spawn(context_, Serve(std::move(connection)), asio::detached);
  }
}

std::string AnswerText(unsigned status, const std::string& body,
                       bool keep_alive) {
  http::response<http::string_body> response;
  response.result(status);
  response.version(11);
  response.keep_alive(keep_alive);
  response.set(http::field::content_type, "application/json");
  response.body() = body;
  response.prepare_payload();
  std::ostringstream text;
  text << response;
  return text.str();
}

// Repeats a message once a minute at most: strangers may connect at will.
void Server::Tell(const std::string& peer, const std::string& text) {
  constexpr size_t kToldMax = 256;
  constexpr std::chrono::minutes kTellAgain{1};
  if (told_.size() == kToldMax) told_.clear();
  const auto now = std::chrono::steady_clock::now();
  auto& told = told_[peer + text];
  if (told != decltype(now)() && now - told < kTellAgain) return;
  told = now;
  Print(stderr, "penstock: {}: {}\n", peer, PrintableLines(text));
}

asio::awaitable<void> Server::Serve(
    std::shared_ptr<LinkConnection> connection) {
  ++open_;
  const std::string peer = connection->peer();
  Datasets datasets;
  std::string said;
  try {
    co_await connection->Accept(kHandshake);
    beast::flat_buffer buffer(kHeaderBytesMax + kBodyBytesMax);
    for (bool greeted = false;;) {
      http::request_parser<http::string_body> parser;
      parser.header_limit(kHeaderBytesMax);
      parser.body_limit(kBodyBytesMax);
      connection->SetTime(greeted ? kIdle : kHandshake);
      co_await connection->ReadHeader(buffer, parser);
      const http::request<http::string_body>& request = parser.get();
      std::optional<HttpError> error;
      bool goes_on = false;
      std::string body;
      const std::string target(request.target().data(),
                               request.target().size());
      const auto authorization = request[http::field::authorization];
      std::string shown(authorization.data(), authorization.size());
      constexpr std::string_view kBearer = "Bearer ";
      if (shown.starts_with(kBearer)) shown.erase(0, kBearer.size());
      if (identity_.Accepts(shown)) {
        connection->SetTime(kReceive);
        co_await connection->ReadMessage(buffer, parser);
      } else {
        error = HttpError{401, "the token is not the one of this link"};
      }
      if (error) {
        // Its body is not read.
      } else if (request.method() != http::verb::post ||
                 (greeted ? target != kDatasetTarget && target != kRowsTarget
                          : target != kHelloTarget)) {
        error = HttpError{404, "this is a link of Penstock"};
      } else {
        try {
          if (!greeted) {
            Greet(request.body());
            greeted = true;
            body = "{}";
          } else if (target == kRowsTarget) {
            connection->SetTime(2 * kRequest);
            co_await SendRows(*connection, request.body(), datasets);
            continue;
          } else {
            connection->SetTime(2 * kRequest);
            goes_on = true;  // whether it opens or not
            body = co_await Open(peer, request.body(), &datasets);
          }
        } catch (const HttpError& thrown) {
          error = thrown;
        }
      }
      if (error) {
        body =
            nlohmann::json({{"error", error->text}})
                .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
        Tell(peer, error->text);
      }
      const std::string text =
          AnswerText(error ? error->status : 200, body, !error || goes_on);
      connection->SetTime(kRequest);
      co_await connection->Write(asio::buffer(text));
      if (error && !goes_on) break;
    }
  } catch (const boost::system::system_error& error) {
    if (error.code() != beast::error::timeout &&
        error.code() != http::error::end_of_stream &&
        error.code() != asio::error::eof &&
        error.code() != asio::error::connection_reset) {
      said = error.what();
    }
  } catch (const std::exception& error) {
    said = error.what();
  }
  if (!said.empty()) Tell(peer, said);
  for (const auto& dataset : datasets) dataset->job->Cancel();
  connection->Close();
  --open_;
}

void Server::Greet(const std::string& hello) const {
  const nlohmann::json json = nlohmann::json::parse(hello, nullptr, false);
  if (!json.is_object() || !json.contains("version") ||
      !json["version"].is_string()) {
    throw HttpError{400, "a request without a version"};
  }
  const std::string& there = json["version"].get_ref<const std::string&>();
  if (there != penstock_version()) {
    throw HttpError{409, Format("Penstock {} here, {} there: install one "
                                "version on all hosts",
                                penstock_version(), there)};
  }
  const Status broker = ConnectControl(SocketPath(options_.socket)).status();
  if (!broker.ok()) throw HttpError{503, broker.message()};
}

// An index may take long. A request that comes again meanwhile waits for the
// same opening.
asio::awaitable<std::string> Server::Open(const std::string& peer,
                                          const std::string& body,
                                          Datasets* datasets) {
  auto found =
      std::find_if(datasets->begin(), datasets->end(),
                   [&](const auto& each) { return each->request == body; });
  if (found == datasets->end()) {
    const nlohmann::json json = nlohmann::json::parse(body, nullptr, false);
    StatusOr<DatasetRequest> request = DatasetRequest::FromJson(json);
    if (!request.ok()) throw HttpError{400, request.status().message()};
    if (datasets->size() == kDatasetsMax) {
      throw HttpError{
          503, Format("a connection has {} datasets at most", kDatasetsMax)};
    }
    const auto dataset = std::make_shared<Dataset>(context_);
    dataset->request = body;
    dataset->number = ++last_dataset_;
    found = datasets->insert(datasets->end(), dataset);
    asio::co_spawn(
        context_,
        OpenOnThread(dataset, *std::move(request),
                     Format("link {} {}.{}", peer, getpid(), dataset->number)),
        kRethrow);
  }
  const std::shared_ptr<Dataset> dataset = *found;
  if (!dataset->status) co_await dataset->changed.Wait(kRequest);
  if (!dataset->status) throw HttpError{503, "it is still being opened"};
  if (!dataset->status->ok()) {
    std::erase(*datasets, dataset);
    const StatusCode code = dataset->status->code();
    const bool is_ours = code == StatusCode::kUnavailable ||
                         code == StatusCode::kResourceExhausted ||
                         code == StatusCode::kDeadlineExceeded;
    throw HttpError{is_ours ? 503u : 409u, dataset->status->message()};
  }
  co_return nlohmann::json({{"dataset", dataset->number}}).dump();
}

asio::awaitable<void> Server::OpenOnThread(std::shared_ptr<Dataset> dataset,
                                           DatasetRequest request,
                                           std::string name) {
  const auto status = std::make_shared<Status>();
  std::function<void()> open = [job = dataset->job, status, request, name,
                                options = options_] {
    *status = job->Open(options, request, name);
  };
  try {
    co_await OnThread(context_, std::move(open));
  } catch (const std::exception& error) {
    *status = UnavailableError("{}", error.what());
  }
  if (status->ok()) Print(stderr, "penstock: opened '{}'\n", name);
  dataset->status = *status;
  dataset->changed.Notify();
}

asio::awaitable<void> Server::SendRows(LinkConnection& connection,
                                       const std::string& body,
                                       const Datasets& datasets) {
  const StatusOr<RowsRequest> request = RowsRequest::FromBytes(body);
  if (!request.ok()) throw HttpError{400, request.status().message()};
  const auto found =
      std::find_if(datasets.begin(), datasets.end(), [&](const auto& each) {
        return each->number == request->dataset && each->status &&
               each->status->ok();
      });
  if (found == datasets.end()) throw HttpError{404, "no such dataset is open"};
  const std::shared_ptr<AskedJob> job = (*found)->job;
  if (request->rows.size() > job->form().rows) {
    throw HttpError{
        400, Format("{} rows asked for, the dataset was opened for at most {}",
                    request->rows.size(), job->form().rows)};
  }
  penstock_batch* const taken = co_await job->Take(context_, request->rows);
  const std::unique_ptr<penstock_batch, void (*)(penstock_batch*)> batch(
      taken, &penstock_release);
  std::vector<RowKey> asked = request->rows;
  asked.resize(job->form().rows, asked.back());
  const std::vector<int64_t> rows =
      FindAsked(asked, {penstock_batch_ids(taken),
                        static_cast<size_t>(penstock_batch_valid_rows(taken))});
  std::vector<RowResult> results(request->rows.size());
  std::vector<std::span<const std::byte>> pieces;
  uint64_t made = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (rows[i] < 0) continue;
    const size_t first = pieces.size();
    job->AddRow(taken, static_cast<uint64_t>(rows[i]), &pieces);
    uint32_t checksum =
        Crc32c(std::as_bytes(std::span(&request->rows[i], size_t{1})));
    for (size_t at = first; at < pieces.size(); ++at) {
      checksum = Crc32c(pieces[at], checksum);
    }
    results[i] = {1, checksum};
    ++made;
  }
  const uint64_t bytes =
      results.size() * sizeof(RowResult) + made * job->form().row_bytes;
  const std::string header = Format(
      "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
      "Content-Length: {}\r\n\r\n",
      bytes);
  std::vector<asio::const_buffer> buffers = {
      asio::buffer(header),
      asio::buffer(results.data(), results.size() * sizeof(RowResult))};
  for (const auto& piece : pieces) {
    buffers.emplace_back(piece.data(), piece.size());
  }
  connection.SetTime(kRequest);
  co_await connection.Write(buffers);
}

}  // namespace

Status ServeLinks(const ServeOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(LinkIdentity identity,
                            LinkIdentity::Read(options.security, true));
  Server server(options, std::move(identity));
  PENSTOCK_RETURN_IF_ERROR(server.Listen());
  server.Run();
  return OkStatus();
}

}  // namespace penstock
