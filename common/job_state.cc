#include "common/job_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/text_file.h"

namespace penstock {
namespace {

Status Wrong(const nlohmann::json& json, const char* key, const char* wanted) {
  const auto found = json.find(key);
  if (found == json.end()) {
    return InvalidArgumentError("state: '{}' is missing: wanted {}", key,
                                wanted);
  }
  return InvalidArgumentError(
      "state: '{}' is {}: wanted {}", key,
      found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
          .substr(0, 60),
      wanted);
}

StatusOr<uint64_t> NumberOf(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_unsigned()) {
    return Wrong(json, key, "a number, 0 or more");
  }
  return found->get<uint64_t>();
}

std::string ShuffleText(const std::optional<JobState::Shuffle>& shuffle) {
  if (!shuffle) return "none";
  return Format("seed {}{}", shuffle->seed,
                shuffle->each_epoch ? "" : ", the same each epoch");
}

}  // namespace

nlohmann::json JobStateToJson(const JobState& state) {
  nlohmann::json owed = nlohmann::json::array();
  for (const JobState::Owed& each : state.owed) {
    owed.push_back({each.epoch, each.row, each.rows, each.redelivered});
  }
  nlohmann::json shuffle;
  if (state.shuffle) {
    shuffle = {{"seed", state.shuffle->seed},
               {"each_epoch", state.shuffle->each_epoch}};
  }
  return {{"penstock_state", JobState::kVersion},
          {"dataset", state.dataset},
          {"delivery", kDeliveryModeNames[static_cast<size_t>(state.delivery)]},
          {"records", state.records},
          {"seed", state.seed},
          {"shuffle", std::move(shuffle)},
          {"epoch", state.epoch},
          {"row", state.row},
          {"owed", std::move(owed)}};
}

StatusOr<JobState> JobStateFromJson(const nlohmann::json& json) {
  const auto version =
      json.is_object() ? json.find("penstock_state") : json.end();
  if (!json.is_object() || version == json.end() ||
      !version->is_number_unsigned()) {
    return InvalidArgumentError(
        "not a Penstock state: 'penstock_state', its version, is missing");
  }
  if (version->get<uint64_t>() != JobState::kVersion) {
    return FailedPreconditionError(
        "a state of version {}; this Penstock reads version {}: use the "
        "release that wrote it, or a newer one",
        version->get<uint64_t>(), JobState::kVersion);
  }
  JobState state;
  const auto dataset = json.find("dataset");
  if (dataset == json.end() || !dataset->is_string()) {
    return Wrong(json, "dataset", "a string");
  }
  state.dataset = dataset->get<std::string>();
  const auto delivery = json.find("delivery");
  const auto name =
      delivery == json.end() || !delivery->is_string()
          ? kDeliveryModeNames.end()
          : std::find(kDeliveryModeNames.begin(), kDeliveryModeNames.end(),
                      delivery->get_ref<const std::string&>());
  if (name == kDeliveryModeNames.end()) {
    return Wrong(json, "delivery", "split, dynamic, broadcast or independent");
  }
  state.delivery = static_cast<DeliveryMode>(name - kDeliveryModeNames.begin());
  PENSTOCK_ASSIGN_OR_RETURN(state.records, NumberOf(json, "records"));
  PENSTOCK_ASSIGN_OR_RETURN(state.seed, NumberOf(json, "seed"));
  PENSTOCK_ASSIGN_OR_RETURN(state.epoch, NumberOf(json, "epoch"));
  PENSTOCK_ASSIGN_OR_RETURN(state.row, NumberOf(json, "row"));
  const auto shuffle = json.find("shuffle");
  if (shuffle == json.end() || (!shuffle->is_null() && !shuffle->is_object())) {
    return Wrong(json, "shuffle", "null or {seed, each_epoch}");
  }
  if (shuffle->is_object()) {
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t seed, NumberOf(*shuffle, "seed"));
    const auto each = shuffle->find("each_epoch");
    if (each == shuffle->end() || !each->is_boolean()) {
      return Wrong(*shuffle, "each_epoch", "true or false");
    }
    state.shuffle = JobState::Shuffle{seed, each->get<bool>()};
  }
  const auto owed = json.find("owed");
  if (owed == json.end() || !owed->is_array() ||
      owed->size() > JobState::kOwedMax) {
    return Wrong(json, "owed", "a list of [epoch, row, rows, redelivered]");
  }
  for (const nlohmann::json& each : *owed) {
    if (!each.is_array() || each.size() != 4 || !each[0].is_number_unsigned() ||
        !each[1].is_number_unsigned() || !each[2].is_number_unsigned() ||
        each[2] == 0 || !each[3].is_boolean()) {
      return Wrong(
          json, "owed",
          "a list of [epoch, row, rows, redelivered] with 1 or more rows");
    }
    state.owed.push_back({each[0].get<uint64_t>(), each[1].get<uint64_t>(),
                          each[2].get<uint64_t>(), each[3].get<bool>()});
  }
  std::vector<JobState::Owed> in_order = state.owed;
  std::sort(in_order.begin(), in_order.end(),
            [](const JobState::Owed& a, const JobState::Owed& b) {
              return std::pair(a.epoch, a.row) < std::pair(b.epoch, b.row);
            });
  for (size_t i = 1; i < in_order.size(); ++i) {
    const JobState::Owed& last = in_order[i - 1];
    const JobState::Owed& next = in_order[i];
    if (next.epoch == last.epoch && next.row - last.row < last.rows) {
      return InvalidArgumentError("state: 'owed' has row {} of epoch {} twice",
                                  next.row, next.epoch);
    }
  }
  return state;
}

StatusOr<JobState> ParseJobState(const std::string& text) {
  if (text.size() > JobState::kTextBytesMax) {
    return InvalidArgumentError("a state of {} bytes; at most {}", text.size(),
                                JobState::kTextBytesMax);
  }
  // Bounds the depth to that of a state, so that foreign text cannot exhaust
  // the stack.
  constexpr int kDepthMax = 4;
  try {
    const nlohmann::json json = nlohmann::json::parse(
        text, [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
          return depth <= kDepthMax;
        });
    return JobStateFromJson(json);
  } catch (const nlohmann::json::exception& error) {
    // Extracts position and cause from "[json.exception.parse_error.101] parse
    // error at line 1, column 2: syntax error while parsing value - unexpected
    // end of input".
    const std::string what = error.what();
    const size_t line = what.find("line ");
    const size_t comma = what.find(": ");
    const size_t why = what.find(" - ");
    return InvalidArgumentError(
        "not a Penstock state: not JSON{}",
        line < comma && comma < why && why != what.npos
            ? Format(": {}: {}", what.substr(line, comma - line),
                     what.substr(why + 3, 200))
            : "");
  }
}

StatusOr<JobState> ReadJobState(const std::string& path) {
  const auto refused = [](const Status& status) {
    return Status(status.code(),
                  status.message() +
                      "; wanted a state that `penstock state --save` or a "
                      "trainer wrote; the job begins anew without --state "
                      "(PENSTOCK_STATE)");
  };
  const auto text = ReadTextFile("state file", path, JobState::kTextBytesMax);
  if (!text.ok()) return refused(text.status());
  if (text->find_first_not_of(" \t\r\n") == std::string::npos) {
    return refused(InvalidArgumentError(
        "state file '{}' is empty: its checkpoint is incomplete", path));
  }
  auto state = ParseJobState(*text);
  if (!state.ok()) {
    return refused(state.status().Prepend(Format("state file '{}'", path)));
  }
  return state;
}

std::string DifferingIdentity(const JobState& state, const JobState& here) {
  if (state.dataset != here.dataset) {
    return Format("dataset: '{}' in the state, '{}' here", state.dataset,
                  here.dataset);
  }
  if (state.records != here.records) {
    return Format("records: {} in the state, {} here", state.records,
                  here.records);
  }
  if (state.seed != here.seed) {
    return Format("seed: {} in the state, {} here", state.seed, here.seed);
  }
  if (state.shuffle != here.shuffle) {
    return Format("shuffle: {} in the state, {} here",
                  ShuffleText(state.shuffle), ShuffleText(here.shuffle));
  }
  return "";
}

}  // namespace penstock
