#include "broker/fetch/fetcher.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "broker/base/log.h"
#include "broker/fetch/python_fetcher_program.h"
#include "common/packet.h"

namespace penstock {
namespace {

constexpr size_t kPacketBytesMax = 64 << 10;
constexpr size_t kRangesOfPacket = 1024;
constexpr std::chrono::milliseconds kLookInterval{100};
// More than the deepest answer has: the rates of a trial.
constexpr int kDepthMax = 8;
// The two bits of each of its blocks (io/remote_file.h) are 4 GiB.
constexpr uint64_t kCopyBytesMax = uint64_t{1} << 46;
// Processes that end without an answer before everything asked fails.
constexpr uint64_t kEndsMax = 3;
// A copy's number is that of its process, then so many bits of its own.
constexpr int kProcessShift = 32;
// As the process packs it.
constexpr size_t kNumbersOfRange = 4;
enum : uint64_t { kKept = 1, kPasses = 2 };

constexpr std::string_view kOddAnswer = "malformed answer from the fetcher";

// {"error": [code, text]}
Status ErrorOf(const nlohmann::json& answer) {
  const auto error = answer.find("error");
  if (error == answer.end()) return OkStatus();
  if (!error->is_array() || error->size() != 2 ||
      !(*error)[0].is_number_unsigned() || !(*error)[1].is_string()) {
    return UnavailableError("{}", kOddAnswer);
  }
  const auto code = (*error)[0].get<uint64_t>();
  const bool known = code > static_cast<uint64_t>(StatusCode::kOk) &&
                     code <= static_cast<uint64_t>(StatusCode::kDataLoss);
  return Status(
      known ? static_cast<StatusCode>(code) : StatusCode::kUnavailable,
      (*error)[1].get<std::string>());
}

uint64_t NumberOf(const nlohmann::json& answer, const char* key) {
  const auto found = answer.find(key);
  return found != answer.end() && found->is_number_unsigned()
             ? found->get<uint64_t>()
             : 0;
}

nlohmann::json JsonOf(std::optional<uint64_t> number) {
  return number ? nlohmann::json(*number) : nlohmann::json();
}

std::string TextOf(const nlohmann::json& answer, const char* key) {
  const auto found = answer.find(key);
  return found != answer.end() && found->is_string() ? found->get<std::string>()
                                                     : std::string();
}

FetchSpan SpanOf(const nlohmann::json& span) {
  return {static_cast<uint32_t>(NumberOf(span, "lane")),
          static_cast<uint32_t>(NumberOf(span, "retries")),
          NumberOf(span, "bytes"),
          NumberOf(span, "asked"),
          NumberOf(span, "begin"),
          NumberOf(span, "end")};
}

}  // namespace

std::string_view Fetcher::Program() { return kPythonFetcherProgram; }

StatusOr<std::unique_ptr<Fetcher>> Fetcher::Make(FunctionOptions options,
                                                 std::string folder) {
  return Make([options = std::move(options), folder = std::move(folder)](
                  const Cancelled& cancelled) -> StatusOr<Link> {
    const nlohmann::json argument = {{"folder", folder}};
    GrowingMemory memory;
    PENSTOCK_RETURN_IF_ERROR(memory.Reserve(1));
    Link link;
    PENSTOCK_ASSIGN_OR_RETURN(
        link.process, PythonProcess::Start(options, Program(), argument.dump(),
                                           memory, cancelled));
    // That of another broker serves this one, too.
    link.connection = link.process->TakeGreetingFd();
    if (link.connection) link.process.reset();
    return link;
  });
}

StatusOr<std::unique_ptr<Fetcher>> Fetcher::Connect(std::string socket) {
  return Make([path = std::move(socket)](const Cancelled&) -> StatusOr<Link> {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path)) {
      return FailedPreconditionError("fetcher: '{}' is too long", path);
    }
    std::memcpy(address.sun_path, path.data(), path.size());
    Link link;
    link.connection = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!link.connection) return ErrnoError(errno, "socket");
    if (connect(link.connection.get(),
                reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) != 0) {
      return FailedPreconditionError(
          "this service reads object stores by penstock-fetch.service, whose "
          "socket {} does not answer ({}): systemctl enable --now "
          "penstock-fetch.socket (if it has failed, journalctl -u "
          "penstock-fetch says why)",
          path, std::strerror(errno));
    }
    return link;
  });
}

StatusOr<std::unique_ptr<Fetcher>> Fetcher::Make(
    std::function<StatusOr<Link>(const Cancelled&)> connect) {
  Fd news(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!news) return ErrnoError(errno, "eventfd");
  return std::unique_ptr<Fetcher>(
      new Fetcher(std::move(connect), std::move(news)));
}

Fetcher::Fetcher(std::function<StatusOr<Link>(const Cancelled&)> connect,
                 Fd news)
    : connect_(std::move(connect)),
      news_(std::move(news)),
      thread_([this] { Run(); }) {}

Fetcher::~Fetcher() {
  stops_.store(true);
  Notify();
  thread_.join();
}

void Fetcher::Notify() {
  const uint64_t one = 1;
  // Full is as good.
  (void)!write(news_.get(), &one, sizeof(one));
}

// ---- what others ask

StatusOr<std::shared_ptr<Fetcher::Call>> Fetcher::Ask(
    nlohmann::json message, const std::atomic<bool>& cancel) {
  const auto call = std::make_shared<Call>();
  std::unique_lock lock(mutex_);
  const uint64_t number = ++last_call_;
  message["call"] = number;
  call->asked = std::move(message);
  calls_[number] = call;
  packets_.push_back(call->asked.dump());
  Notify();
  while (!call->over) {
    answered_.wait_for(lock, kLookInterval);
    if (!call->over && cancel.load()) {
      calls_.erase(number);
      packets_.push_back(nlohmann::json({{"cancel", number}}).dump());
      Notify();
      return CancelledError("nobody waits for it");
    }
  }
  if (!call->status.ok()) return call->status;
  return call;
}

StatusOr<std::vector<std::string>> Fetcher::List(
    const std::string& pattern, const std::atomic<bool>& cancel) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Call> call,
                            Ask({{"list", pattern}}, cancel));
  std::vector<std::string> urls;
  for (const nlohmann::json& answer : call->answers) {
    const auto more = answer.find("urls");
    if (more == answer.end() || !more->is_array()) {
      return UnavailableError("{}: {}", pattern, kOddAnswer);
    }
    for (const nlohmann::json& url : *more) {
      if (!url.is_string()) {
        return UnavailableError("{}: {}", pattern, kOddAnswer);
      }
      urls.push_back(url.get<std::string>());
    }
  }
  return urls;
}

// The file that the last answer has opened.
StatusOr<std::shared_ptr<RemoteFile>> Fetcher::FileOf(
    const std::string& url, std::optional<uint64_t> room, Call* call) {
  const nlohmann::json& answer = call->answers.back();
  if (!call->fd || NumberOf(answer, "bytes") > kCopyBytesMax) {
    return UnavailableError("{}: {}", url, kOddAnswer);
  }
  const uint64_t copy = NumberOf(answer, "copy");
  const auto file = std::make_shared<RemoteFile>(
      RemoteFile::Opened{url, TextOf(answer, "version"), TextOf(answer, "path"),
                         NumberOf(answer, "bytes"), copy, unit_bytes_,
                         NumberOf(answer, "ahead"), NumberOf(answer, "room"),
                         NumberOf(answer, "kept"), room},
      std::move(call->fd),
      [this](RemoteFile::Ask ask, uint64_t of, const RemoteFile::Range& range) {
        const std::lock_guard lock(mutex_);
        if (ask == RemoteFile::Ask::kClose) {
          files_.erase(of);
          lost_.erase(of);
        }
        if (asked_.empty()) Notify();
        asked_.push_back({ask, of, range});
      });
  const std::lock_guard lock(mutex_);
  if (copy >> kProcessShift == processes_) {
    files_[copy] = file;
  } else {  // that process has ended since it answered
    OpenAgain(copy, file);
    Notify();
  }
  return file;
}

StatusOr<std::shared_ptr<RemoteFile>> Fetcher::Open(
    const std::string& url, std::optional<uint64_t> room,
    const std::atomic<bool>& cancel) {
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::shared_ptr<Call> call,
      Ask({{"open", url}, {"room", JsonOf(room)}}, cancel));
  return FileOf(url, room, call.get());
}

StatusOr<RemoteFolder> Fetcher::OpenFolder(const std::string& url,
                                           std::optional<uint64_t> room,
                                           const std::atomic<bool>& cancel) {
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::shared_ptr<Call> call,
      Ask({{"folder", url}, {"room", JsonOf(room)}}, cancel));
  RemoteFolder folder;
  PENSTOCK_ASSIGN_OR_RETURN(folder.file, FileOf(url, room, call.get()));
  call->answers.pop_back();
  for (const nlohmann::json& answer : call->answers) {
    const auto array = [&answer](const char* key) {
      const auto found = answer.find(key);
      return found != answer.end() && found->is_array()
                 ? *found
                 : nlohmann::json::array();
    };
    const nlohmann::json names = array("names");
    const nlohmann::json sizes = array("sizes");
    const nlohmann::json offsets = array("offsets");
    for (size_t i = 0; i < names.size(); ++i) {
      if (i >= sizes.size() || i >= offsets.size() || !names[i].is_string() ||
          !sizes[i].is_number_unsigned() || !offsets[i].is_number_unsigned()) {
        return UnavailableError("{}: {}", url, kOddAnswer);
      }
      folder.names.push_back(names[i].get<std::string>());
      folder.bytes.push_back(sizes[i].get<uint64_t>());
      folder.offsets.push_back(offsets[i].get<uint64_t>());
      const uint64_t all = folder.file->bytes();
      if (folder.offsets.back() > all ||
          folder.bytes.back() > all - folder.offsets.back()) {
        return UnavailableError("{}: {}", url, kOddAnswer);
      }
    }
  }
  if (!std::is_sorted(folder.names.begin(), folder.names.end())) {
    return UnavailableError("{}: {}", url, kOddAnswer);
  }
  return folder;
}

StatusOr<std::string> Fetcher::Version(const std::string& url) {
  static const std::atomic<bool> cancel{false};
  std::vector<std::shared_ptr<RemoteFile>> files;  // whose end takes the lock
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [copy, each] : lost_) files.push_back(each.lock());
  }
  for (const std::shared_ptr<RemoteFile>& file : files) {
    // Who has it open opens it anew.
    if (file == nullptr || file->url() != url) continue;
    return DataLossError("{}: its local copy is gone", url);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Call> call,
                            Ask({{"version", url}}, cancel));
  return TextOf(call->answers.front(), "version");
}

Status Fetcher::Put(const std::string& file, const std::string& url) {
  static const std::atomic<bool> cancel{false};
  return Ask({{"put", url}, {"from", file}}, cancel).status();
}

nlohmann::json Fetcher::UseJson() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

StatusOr<nlohmann::json> Fetcher::Try(const std::string& url, double seconds) {
  static const std::atomic<bool> cancel{false};
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Call> call,
                            Ask({{"try", url}, {"seconds", seconds}}, cancel));
  return call->answers.front().value("found", nlohmann::json::object());
}

// No process is started for it, and one that is started meanwhile tells
// nothing.
void Fetcher::Observe(std::function<void(const FetchSpan&)> observer) {
  const std::lock_guard lock(mutex_);
  observer_ = std::move(observer);
  if (use_.empty()) return;
  packets_.push_back(
      nlohmann::json({{"observe", observer_ != nullptr}}).dump());
  Notify();
}

// ---- the thread

void Fetcher::Run() {
  pthread_setname_np(pthread_self(), "fetcher");
  while (!stops_.load()) {
    pollfd ready[] = {{news_.get(), POLLIN, 0},
                      {link_ ? link_->fd() : -1, POLLIN, 0}};
    if (!out_.empty()) ready[1].events |= POLLOUT;
    poll(ready, 2, -1);
    if (stops_.load()) return;
    if ((ready[0].revents & POLLIN) != 0) {
      uint64_t count;
      (void)!read(news_.get(), &count, sizeof(count));
    }
    if (!link_ && !Start()) continue;
    Begin();
    if (Send() && Receive()) continue;
    link_.reset();
    out_.clear();
    Ended(UnavailableError(
        "the fetcher died {} times in a row without an answer; its stderr "
        "says why",
        ends_ + 1));
  }
}

// Another process is started, unless too many have ended without an answer.
void Fetcher::Ended(const Status& status) {
  ++ends_;
  Log<"fetcher-ended">(processes_);
  if (ends_ >= kEndsMax) {
    EndAll(status);
  } else {
    Notify();
  }
}

// What was asked before is asked again, files that are open are opened again.
bool Fetcher::Start() {
  StatusOr<Link> link = connect_([this] { return stops_.load(); });
  if (!link.ok()) {
    if (link.status().code() == StatusCode::kUnavailable) {
      Ended(link.status());  // it was killed
    } else {
      EndAll(link.status());
    }
    return false;
  }
  link_ = *std::move(link);
  std::vector<std::shared_ptr<RemoteFile>> files;  // whose end takes the lock
  const std::lock_guard lock(mutex_);
  out_.push_back(
      nlohmann::json{{"first", ++processes_ << kProcessShift}}.dump());
  former_use_ = use_;
  first_use_ = nullptr;
  if (observer_ != nullptr) {
    out_.push_back(nlohmann::json{{"observe", true}}.dump());
  }
  asked_.clear();
  packets_.clear();
  for (auto& [number, call] : calls_) {
    call->answers.clear();
    packets_.push_back(call->asked.dump());
  }
  files_.merge(lost_);
  lost_.clear();
  for (const auto& [copy, each] : std::exchange(files_, {})) {
    files.push_back(each.lock());
    if (files.back() != nullptr) OpenAgain(copy, files.back());
  }
  return true;
}

// mutex_ is held.
void Fetcher::OpenAgain(uint64_t former,
                        const std::shared_ptr<RemoteFile>& file) {
  struct stat st = {};
  fstat(file->fd(), &st);
  const auto call = std::make_shared<Call>();
  call->asked = {{file->url().ends_with('/') ? "folder" : "open", file->url()},
                 {"room", JsonOf(file->asked_room_bytes())},
                 {"inode", st.st_ino},
                 {"had", file->version()},
                 {"call", ++last_call_}};
  call->again = file;
  call->former = former;
  calls_[last_call_] = call;
  packets_.push_back(call->asked.dump());
}

// Makes packets of what is asked.
void Fetcher::Begin() {
  std::vector<std::shared_ptr<RemoteFile>> files;  // whose end takes the lock
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t> numbers;
  const auto finish = [&] {
    if (numbers.empty()) return;
    out_.emplace_back(reinterpret_cast<const char*>(numbers.data()),
                      numbers.size() * sizeof(uint64_t));
    numbers.clear();
  };
  for (const Asked& each : asked_) {
    if (const auto lost = lost_.extract(each.copy)) {
      files.push_back(lost.mapped().lock());
      if (files.back() != nullptr) OpenAgain(each.copy, files.back());
      continue;
    }
    numbers.insert(numbers.end(), {static_cast<uint64_t>(each.ask), each.copy,
                                   each.range.offset, each.range.bytes});
    if (numbers.size() == kRangesOfPacket * kNumbersOfRange) finish();
  }
  finish();
  asked_.clear();
  // After the ends of files, which may be opened again.
  for (std::string& packet : packets_) out_.push_back(std::move(packet));
  packets_.clear();
}

bool Fetcher::Send() {
  while (!out_.empty()) {
    const std::string& packet = out_.front();
    const ssize_t sent = send(link_->fd(), packet.data(), packet.size(),
                              MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN;
    out_.pop_front();
  }
  return true;
}

bool Fetcher::Receive() {
  std::string text(kPacketBytesMax, '\0');
  for (;;) {
    std::optional<Packet> packet = ReceivePacket(link_->fd(), text, 1);
    if (!packet) return errno == EAGAIN;
    if (packet->bytes == 0 || (packet->flags & MSG_TRUNC) != 0) return false;
    ends_ = 0;
    const std::string_view got(text.data(), packet->bytes);
    if (got.front() != '{') {
      TakeRanges(got);
      continue;
    }
    // A copy of one calls itself for each of its levels.
    nlohmann::json answer = nlohmann::json::parse(
        got,
        [](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
          return depth < kDepthMax;
        },
        false);
    if (!answer.is_object()) return false;
    TakeCall(std::move(answer),
             packet->fds.empty() ? Fd() : std::move(packet->fds[0]));
  }
}

void Fetcher::TakeRanges(std::string_view packet) {
  uint64_t numbers[kNumbersOfRange];
  for (; packet.size() >= sizeof(numbers);
       packet.remove_prefix(sizeof(numbers))) {
    std::memcpy(numbers, packet.data(), sizeof(numbers));
    const auto [kind, copy, offset, bytes] = numbers;
    std::shared_ptr<RemoteFile> file;
    {
      const std::lock_guard lock(mutex_);
      const auto found = files_.find(copy);
      if (found != files_.end()) file = found->second.lock();
    }
    if (file != nullptr) file->Arrived({offset, bytes}, kind == kKept);
  }
}

// mutex_ is held.
void Fetcher::TakeUse(nlohmann::json use) {
  if (!use.is_object()) return;
  if (first_use_.is_null()) first_use_ = use;
  for (const char* key :
       {"bytes", "requests", "retries", "throttled", "hedged"}) {
    const uint64_t all = NumberOf(use, key);
    use[key] = NumberOf(former_use_, key) + all -
               std::min(all, NumberOf(first_use_, key));
  }
  use_ = std::move(use);
}

void Fetcher::TakeCall(nlohmann::json answer, Fd fd) {
  const Status status = ErrorOf(answer);
  std::shared_ptr<RemoteFile> file;
  RemoteFile::Range failed;
  {
    const std::lock_guard lock(mutex_);
    if (answer.contains("use")) {
      TakeUse(std::move(answer["use"]));
      return;
    }
    if (answer.contains("span")) {
      if (observer_ != nullptr) observer_(SpanOf(answer["span"]));
      return;
    }
    if (!answer.contains("call")) {
      const auto found = files_.find(NumberOf(answer, "copy"));
      if (found != files_.end()) file = found->second.lock();
      failed = {NumberOf(answer, "offset"), NumberOf(answer, "bytes")};
    } else {
      const uint64_t copy = NumberOf(answer, "copy");
      if (const uint64_t unit = NumberOf(answer, "unit"); unit > 0) {
        unit_bytes_->store(unit);  // in the order of the answers
      }
      const auto found = calls_.find(NumberOf(answer, "call"));
      if (found == calls_.end()) {
        // Nobody waits for it any more.
        if (copy > 0) asked_.push_back({RemoteFile::Ask::kClose, copy, {}});
        Notify();
        return;
      }
      const std::shared_ptr<Call> call = found->second;
      if (status.ok() && answer.contains("more") && answer["more"] == true) {
        // Who has it open already has the names.
        if (call->former == 0) call->answers.push_back(std::move(answer));
        return;
      }
      calls_.erase(found);  // the next process is not asked
      call->status = status;
      call->over = true;
      if (fd) call->fd = std::move(fd);
      file = call->again.lock();
      if (file != nullptr && status.ok() &&
          TextOf(answer, "version") == file->version()) {
        files_[copy] = file;
      } else {
        if (call->former != 0) {
          if (copy > 0) {  // changed, or closed meanwhile
            asked_.push_back({RemoteFile::Ask::kClose, copy, {}});
            Notify();
          }
          if (file == nullptr) return;
          lost_[call->former] = file;
          failed = {0, file->bytes()};
        } else {
          call->answers.push_back(std::move(answer));
          answered_.notify_all();
          return;
        }
      }
    }
  }
  if (file == nullptr) return;
  if (failed.bytes > 0) {
    file->Failed(
        failed,
        status.ok()
            ? DataLossError("{}: the object has changed since it was opened",
                            file->url())
            : status);
  } else {
    file->AskAgain(NumberOf(answer, "copy"));
  }
}

std::vector<std::shared_ptr<RemoteFile>> Fetcher::OpenFiles() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<RemoteFile>> files;
  for (const auto& [copy, each] : files_) {
    if (auto file = each.lock()) files.push_back(std::move(file));
  }
  return files;
}

void Fetcher::EndAll(const Status& status) {
  std::vector<std::shared_ptr<RemoteFile>> files = OpenFiles();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, call] : std::exchange(calls_, {})) {
      call->status = status;
      call->over = true;
      if (auto file = call->again.lock()) {
        lost_[call->former] = file;
        files.push_back(std::move(file));
      }
    }
    packets_.clear();
    asked_.clear();
    answered_.notify_all();
  }
  for (const auto& file : files) {
    file->Failed({0, file->bytes()}, status);
  }
}

}  // namespace penstock
