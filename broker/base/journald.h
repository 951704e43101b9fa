// systemd's journal as a program writes it: entries of fields, by its native
// protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL), which systemd promises to
// keep. Not libsystemd, for the reason of service_protocol.h.
#ifndef BROKER_BASE_JOURNALD_H_
#define BROKER_BASE_JOURNALD_H_

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"

namespace penstock {

inline constexpr char kJournalSocket[] = "/run/systemd/journal/socket";

// Names are of A-Z, 0-9 and '_', values of any bytes.
using JournalFields = std::vector<std::pair<std::string, std::string>>;

// Whether this descriptor is a stream to the journal, by which systemd starts a
// service (JOURNAL_STREAM).
bool IsJournal(int fd);

// Thread-safe.
class Journald {
 public:
  explicit Journald(const std::string& socket);

  // An entry. Returns 0, or why it is not taken: EAGAIN: the journal has not
  // read others for kWait; others: there is no journal.
  int Send(const JournalFields& fields);

 private:
  const std::string path_;
  const Fd socket_;
  // Relaxed: it orders nothing else.
  std::atomic<bool> waits_{true};
};

}  // namespace penstock
#endif  // BROKER_BASE_JOURNALD_H_
