// What `penstock top` shows: one screen, or one line for each job, made of two
// answers of the broker. Pure functions; top_command.cc has the terminal.
#ifndef CLIENT_COMMAND_TOP_H_
#define CLIENT_COMMAND_TOP_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/private_broker/json_field.h"

namespace penstock {

// An answer to `status`, of any process and so of any shape.
struct TopSample {
  nlohmann::json status;
  double at_s = 0;  // of a steady clock
};

struct TopSettings {
  size_t columns = 80;
  size_t rows = 24;
  size_t first = 0;  // line of the jobs that is shown first
  bool ranks = true;
  bool paused = false;
  double interval_s = 1;
  std::string clock;    // the time of day
  std::string trouble;  // why there is no newer answer; "": there is
};

// The lines of a screen, as many as it has and none longer than it is wide.
// first is moved to where there is something to show.
std::vector<std::string> TopScreen(const TopSample& before,
                                   const TopSample& now, TopSettings* settings);

// One line for each job, or one that says that there is none.
std::vector<std::string> TopLines(const TopSample& before, const TopSample& now,
                                  const std::string& clock);

}  // namespace penstock
#endif  // CLIENT_COMMAND_TOP_H_
