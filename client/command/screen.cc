#include "client/command/screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "client/private_broker/interrupt.h"
#include "common/fd.h"

namespace penstock {
namespace {

// xterm's sequences, which every terminal of today knows: the other screen, no
// cursor, no wrapping at the last column.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l";
constexpr std::string_view kLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr int kDeadly[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

termios g_before;  // of the terminal; for the handlers too
volatile std::sig_atomic_t g_stop = 0;

// Async-signal-safe.
void Leave() {
  [[maybe_unused]] const ssize_t written =
      write(STDOUT_FILENO, kLeave.data(), kLeave.size());
  tcsetattr(STDIN_FILENO, TCSADRAIN, &g_before);
}

void OnDeath(int signal) {
  Leave();
  raise(signal);  // SA_RESETHAND: it kills now
}

void OnStop(int) { g_stop = 1; }
void OnResize(int) {}

void SetHandler(int signal, void (*handler)(int), int flags = 0) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(signal, &action, nullptr);
}

Key KeyOf(std::string_view text) {
  static constexpr std::pair<std::string_view, Key> kKeys[] = {
      {"q", Key::kQuit},         {"Q", Key::kQuit},
      {"k", Key::kUp},           {"\x1b[A", Key::kUp},
      {"\x1bOA", Key::kUp},      {"j", Key::kDown},
      {"\x1b[B", Key::kDown},    {"\x1bOB", Key::kDown},
      {"\x1b[5~", Key::kPageUp}, {"\x1b[6~", Key::kPageDown},
      {"g", Key::kHome},         {"\x1b[H", Key::kHome},
      {" ", Key::kPause},        {"p", Key::kPause},
      {"r", Key::kRanks},        {"+", Key::kFaster},
      {"-", Key::kSlower}};
  for (const auto& [keys, key] : kKeys) {
    if (text == keys) return key;
  }
  return Key::kOther;
}

// Bytes of the first key: an escape sequence ends with a letter or '~'.
size_t KeyBytes(std::string_view text) {
  if (text.size() < 2 || text[0] != '\x1b') return 1;
  if (text[1] != '[' && text[1] != 'O') return 1;
  size_t end = 2;
  while (end < text.size() && (text[end] < '@' || text[end] > '~')) ++end;
  return std::min(end + 1, text.size());
}

}  // namespace

bool Screen::IsThere() {
  const char* const term = std::getenv("TERM");
  return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1 &&
         term != nullptr && std::string_view(term) != "dumb" && *term != '\0';
}

StatusOr<std::unique_ptr<Screen>> Screen::Open() {
  if (tcgetattr(STDIN_FILENO, &g_before) != 0) {
    return ErrnoError(errno, "the terminal");
  }
  std::unique_ptr<Screen> screen(new Screen());
  // They are taken while it waits, so that none is missed before.
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : {SIGTSTP, SIGWINCH, SIGCONT}) {
    sigaddset(&taken, signal);
  }
  sigprocmask(SIG_BLOCK, &taken, &screen->unblocked_);
  SetHandler(SIGTSTP, OnStop);
  SetHandler(SIGWINCH, OnResize);
  SetHandler(SIGCONT, OnResize);
  for (const int signal : kDeadly) SetHandler(signal, OnDeath, SA_RESETHAND);
  screen->Enter();
  return screen;
}

void Screen::Enter() {
  termios raw = g_before;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
  [[maybe_unused]] const ssize_t written =
      write(STDOUT_FILENO, kEnter.data(), kEnter.size());
}

Screen::~Screen() {
  Leave();
  for (const int signal : kDeadly) SetHandler(signal, SIG_DFL);
  for (const int signal : {SIGTSTP, SIGWINCH, SIGCONT}) {
    SetHandler(signal, SIG_DFL);
  }
  sigprocmask(SIG_SETMASK, &unblocked_, nullptr);
}

// Ctrl-Z: the shell has its terminal back until `fg`.
void Screen::Stop() {
  g_stop = 0;
  Leave();
  SetHandler(SIGTSTP, SIG_DFL);
  raise(SIGTSTP);
  sigset_t blocked;
  sigprocmask(SIG_SETMASK, &unblocked_, &blocked);  // stops here
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
  SetHandler(SIGTSTP, OnStop);
  Enter();
}

std::pair<size_t, size_t> Screen::Size() const {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 ||
      size.ws_row == 0) {
    return {80, 24};
  }
  return {size.ws_col, size.ws_row};
}

Status Screen::Draw(const std::vector<std::string>& lines) {
  std::string text = "\x1b[H";
  for (size_t i = 0; i < lines.size(); ++i) {
    // Cleared before: afterwards the cursor may stand on the last character.
    text += (i == 0 ? "\x1b[2K" : "\r\n\x1b[2K") + lines[i];
  }
  text += "\x1b[J";
  return WriteWholly(STDOUT_FILENO, text)
             ? OkStatus()
             : UnavailableError("the terminal is gone");
}

StatusOr<std::vector<Key>> Screen::Wait(int fd, int timeout_ms) {
  pollfd entries[] = {
      {STDIN_FILENO, POLLIN, 0}, {InterruptFd(), POLLIN, 0}, {fd, POLLIN, 0}};
  const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
  const int ready = ppoll(entries, 3, &timeout, &unblocked_);
  if (g_stop != 0) Stop();
  PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
  std::vector<Key> keys;
  if (ready <= 0) return keys;
  if ((entries[0].revents & POLLIN) != 0) {
    char buffer[256];
    const ssize_t count = read(STDIN_FILENO, buffer, sizeof(buffer));
    // A terminal that was closed is readable for ever.
    if (count == 0) return UnavailableError("the terminal is gone");
    std::string_view text(buffer, count < 0 ? 0 : static_cast<size_t>(count));
    while (!text.empty()) {
      const size_t bytes = KeyBytes(text);
      keys.push_back(KeyOf(text.substr(0, bytes)));
      text.remove_prefix(bytes);
    }
  } else if ((entries[0].revents & (POLLHUP | POLLERR)) != 0) {
    return UnavailableError("the terminal is gone");
  }
  return keys;
}

}  // namespace penstock
