// The input is what a peer puts into a control socket: a byte of how, then the
// text of one datagram, or of one that travels in a memfd. Received as a
// request and as an answer. What is understood is sent again and comes back as
// the same; no descriptor stays open.
//
// The first byte: bits 0-2 how many descriptors go along (four may); bits 3-4
// the form (0, 1 a datagram; 2 a memfd; 3 a memfd that is not as it should be,
// the next byte says how); bits 5-7 all set fill the text up with spaces to
// about the largest datagram (slow: not often).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/message.h"
#include "tests/fuzz/require.h"
#include "tests/fuzz/send_raw.h"

namespace penstock {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

// The lowest number that is not taken: the same afterwards, if none stays open.
int LowestFreeFd() {
  const Fd fd(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  return fd.get();
}

struct Pair {
  Pair() {
    int fds[2];
    Require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0,
            "there are sockets");
    ours = Fd(fds[0]);
    theirs = Fd(fds[1]);
  }
  Fd ours;
  Fd theirs;
};

int DepthOf(const nlohmann::json& json) {
  if (!json.is_structured()) return 0;
  int depth = 0;
  for (const nlohmann::json& each : json) {
    depth = std::max(depth, DepthOf(each));
  }
  return depth + 1;
}

// What the peer sends.
struct Sent {
  std::string text;
  std::vector<int> fds;
  Fd memfd;
};

Sent SentOf(Input input) {
  const uint8_t how = input.Byte();
  const int form = how >> 3 & 3;
  const uint8_t flaw = form == 3 ? input.Byte() : 0;
  Sent sent;
  std::string text(input.Rest());
  if (how >> 5 == 7 && text.size() < kMessageBytesMax) {
    // One more, one less and just as many as may be.
    text.resize(kMessageBytesMax - 1 + text.size() % 3, ' ');
  }
  if (form < 2) {
    sent.text = std::move(text);
  } else {
    sent.memfd = Fd(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    Require(pwrite(sent.memfd.get(), text.data(), text.size(), 0) ==
                static_cast<ssize_t>(text.size()),
            "the memfd takes it");
    const int seals = (flaw & 1) != 0 ? F_SEAL_SHRINK : kSeals;
    Require(fcntl(sent.memfd.get(), F_ADD_SEALS, seals) == 0, "and is sealed");
    const uint64_t bytes = (flaw & 2) != 0 ? text.size() + 1 : text.size();
    sent.text =
        Format("{{\"large_bytes\":{}}}", (flaw & 4) != 0 ? UINT64_MAX : bytes);
    if ((flaw & 8) == 0) sent.fds.push_back(sent.memfd.get());
  }
  while (sent.fds.size() < (how & 7u)) sent.fds.push_back(STDERR_FILENO);
  return sent;
}

void CheckReceive(const Pair& pair, const Sent& sent) {
  Require(SendRaw(pair.theirs.get(), sent.text, sent.fds),
          "the socket takes it");
  StatusOr<std::optional<Message>> received = ReceiveMessage(pair.ours.get());
  if (!received.ok()) {
    Require(received.status().code() == StatusCode::kInvalidArgument ||
                (received.status().code() == StatusCode::kUnavailable &&
                 sent.text.empty()),
            "a protocol error is answered");
    return;
  }
  Require(received->has_value(), "a datagram is a message");
  const Message& message = **received;
  Require(message.json.is_object(), "a message is an object");
  Require(DepthOf(message.json) <= 32, "not nested too deeply");
  Require(message.fds.size() <= static_cast<size_t>(kMessageFdsMax),
          "with few descriptors");
  for (const Fd& fd : message.fds) {
    Require((fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0, "close-on-exec");
  }
  // What nobody sends: the word is the protocol's own.
  if (message.json.contains("large_bytes")) return;
  std::vector<int> fds;
  for (const Fd& fd : message.fds) fds.push_back(fd.get());
  const Status status = SendMessage(pair.theirs.get(), message.json, fds);
  if (!status.ok()) {
    Require(fds.size() == static_cast<size_t>(kMessageFdsMax) &&
                message.json.dump().size() > kMessageBytesMax,
            "what was understood can be sent");
    return;
  }
  StatusOr<std::optional<Message>> again = ReceiveMessage(pair.ours.get());
  Require(again.ok() && again->has_value(), "and is understood again");
  Require((*again)->json == message.json, "as the same");
  Require((*again)->fds.size() == fds.size(), "with the same descriptors");
}

// The same as the answer to a request.
void CheckAnswer(const Pair& pair, const Sent& sent) {
  Require(SendRaw(pair.theirs.get(), sent.text, sent.fds),
          "the socket takes it");
  (void)Request(pair.ours.get(), {{"op", "ping"}}, {},
                std::chrono::steady_clock::now(),
                [](const nlohmann::json&) { return true; });
}

void Check(const Input& input) {
  const int lowest = LowestFreeFd();
  {
    const Sent sent = SentOf(input);
    // Longer ones do not leave the peer.
    if (sent.text.size() <= kMessageBytesMax + 1) {
      CheckReceive(Pair(), sent);
      CheckAnswer(Pair(), sent);
    }
  }
  Require(LowestFreeFd() == lowest, "no descriptor stays open");
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check(penstock::Input(data, size));
  return 0;
}
