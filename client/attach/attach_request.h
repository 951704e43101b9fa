// The request of a rank that attaches: the trainer's options, completed from
// the launcher and the environment.
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
  std::string spec;              // or the spec's text
  bool spec_generated = false;   // a program wrote it: errors name keys
  std::string job;               // "": PENSTOCK_JOB, the launcher's, "default"
  std::string socket;            // "": PENSTOCK_SOCKET, the default
  int64_t rank = -1;             // -1: the launcher's
  int64_t world_size = 0;        // 0: the launcher's
  int64_t local_world_size = 0;  // 0: the launcher's
  int64_t replica = -1;          // -1: from the launcher's rank
  int64_t replicas = 0;          // 0: PENSTOCK_REPLICAS, else 1
  int64_t local_replicas = 0;    // 0: from the launcher's local world
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
  // Where no broker listens, start a private one.
  bool autostart = false;
  // Called every kPause while a call waits; true cancels the call.
  std::function<bool()> cancelled;
};

struct AttachRequest {
  nlohmann::json job;    // fields of every attach, reconnects included
  nlohmann::json start;  // fields of the first attach alone: where to begin
  bool repeat_first = false;
};

// InvalidArgument: numbers out of range or contradictory, no dataset, not a
// state; else the error of reading the spec's or the state's file.
StatusOr<AttachRequest> MakeAttachRequest(const AttachOptions& options,
                                          const Environment& environment);

// given, else PENSTOCK_JOB, else the launcher's, else "default".
std::string JobName(const std::string& given, const Environment& environment);

// Adds where this process runs, so that the broker takes memory near it. To be
// called at each attach: the process may have been bound since.
void DescribePlacement(nlohmann::json* request);

}  // namespace penstock
#endif  // CLIENT_ATTACH_ATTACH_REQUEST_H_
