// What a rank says to the broker when it attaches: the trainer's options, and
// what the launcher and the environment say where they say nothing.
#ifndef CLIENT_ATTACH_ATTACH_REQUEST_H_
#define CLIENT_ATTACH_ATTACH_REQUEST_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "client/attach/launcher.h"
#include "common/status.h"

namespace penstock {

struct AttachOptions {
  std::string dataset;           // registered name or spec file
  std::string spec;              // or the text itself
  bool spec_generated = false;   // nobody has seen its lines
  std::string job;               // "": PENSTOCK_JOB, the launcher's, "default"
  std::string socket;            // "": PENSTOCK_SOCKET, the default
  int64_t rank = -1;             // -1: the launcher's
  int64_t world_size = 0;        // 0: the launcher's
  int64_t local_world_size = 0;  // 0: the launcher's
  double timeout_s = 0;          // 0: none
  bool repeat_first = false;
  std::string delivery;       // "": split
  std::string lag;            // "": block
  int64_t window = 0;         // 0: the spec's prefetch
  int64_t consumers = 0;      // 0: the local world size, 8 at least
  std::string on_rank_death;  // "": wait for split, else shrink
  bool full_epoch = false;
  bool per_host = false;
  double wait_s = 0;        // 0: the broker's
  double reconnect_s = -1;  // < 0: kReconnectSeconds; 0: never
  std::string state;        // JSON; "": from the beginning
  int64_t node = -1;        // NUMA; -1: PENSTOCK_NODE, else the broker finds it
  // Without a broker, one of this process's own is started.
  bool autostart = false;
  // Not empty: asked every kPause while a call waits; true: it is cancelled.
  std::function<bool()> cancelled;
};

struct AttachRequest {
  nlohmann::json job;    // of every attach of this reader, reconnects too
  nlohmann::json start;  // the fields of the first alone: where to begin
  bool repeat_first = false;
};

// InvalidArgument: numbers out of range or that contradict each other, no
// dataset, no state; else what reading the spec's or the state's file ended
// with.
StatusOr<AttachRequest> MakeAttachRequest(const AttachOptions& options,
                                          const Environment& environment);

// given, else PENSTOCK_JOB, else the launcher's; "default" when nobody says
// one.
std::string JobName(const std::string& given, const Environment& environment);

// Where this process runs: the broker takes memory near it. Each time it
// attaches: it may have been bound since.
void DescribePlacement(nlohmann::json* request);

}  // namespace penstock
#endif  // CLIENT_ATTACH_ATTACH_REQUEST_H_
