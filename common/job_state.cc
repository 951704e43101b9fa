#include "common/job_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/exact_max.h"
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

std::string ShardsText(const std::optional<JobState::Shards>& shards) {
  if (!shards) return "over any ranks";
  return Format("over {} ranks in batches of {}", shards->count, shards->batch);
}

// A job's own states name its dataset.
bool IsPositionAlone(const JobState& state) { return state.dataset.empty(); }

}  // namespace

nlohmann::json WeightsChangeToJson(const WeightsChange& change) {
  nlohmann::json json = {change.epoch, change.row};
  for (const uint32_t weight : change.weights) json.push_back(weight);
  return json;
}

StatusOr<WeightsChange> WeightsChangeFromJson(const nlohmann::json& json) {
  WeightsChange change;
  uint64_t sum = 0;
  bool sound = json.is_array() && json.size() > 2 &&
               json.size() <= 2 + WeightsChange::kPartsMax;
  for (size_t i = 0; sound && i < json.size(); ++i) {
    sound = json[i].is_number_unsigned();
    const uint64_t number = sound ? json[i].get<uint64_t>() : 0;
    if (i < 2) {
      (i == 0 ? change.epoch : change.row) = number;
      continue;
    }
    sound &= number <= WeightsChange::kWeightMax;
    change.weights.push_back(static_cast<uint32_t>(number));
    sum += number;
  }
  if (!sound || sum == 0) {
    return InvalidArgumentError(
        "weights: wanted [epoch, row, weight, ...], weights from 0 to {}, one "
        "of them more than 0",
        WeightsChange::kWeightMax);
  }
  return change;
}

namespace {

StatusOr<std::vector<double>> WeightsAt(const nlohmann::json& json,
                                        const char* key) {
  std::vector<double> weights;
  const auto list = json.find(key);
  bool sound = list != json.end() && list->is_array() && !list->empty() &&
               list->size() <= WeightsChange::kPartsMax;
  for (size_t i = 0; sound && i < list->size(); ++i) {
    sound = (*list)[i].is_number();
    weights.push_back(sound ? (*list)[i].get<double>() : 0);
    sound &= weights[i] >= 0 && weights[i] <= WeightsChange::kWeightMax;
  }
  if (!sound) return Wrong(json, key, "a list of weights");
  return weights;
}

nlohmann::json PartsToJson(const std::vector<JobState::MixPart>& parts) {
  nlohmann::json json = nlohmann::json::array();
  for (const JobState::MixPart& part : parts) {
    json.push_back({{"part", part.key},
                    {"name", part.name},
                    {"records", part.records},
                    {"shuffle", part.shuffle}});
    for (const auto& [key, value] : {std::pair("pass", part.pass),
                                     {"taken", part.taken},
                                     {"rows", part.rows}}) {
      if (value > 0) json.back()[key] = value;
    }
  }
  return json;
}

StatusOr<JobState::MixPart> PartFromJson(const nlohmann::json& json) {
  JobState::MixPart part;
  for (const auto& [key, text] :
       {std::pair("part", &part.key), {"name", &part.name}}) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_string() ||
        found->get_ref<const std::string&>().size() >
            JobState::MixPart::kTextBytesMax) {
      return Wrong(json, key, "a text of up to 512 bytes");
    }
    *text = found->get<std::string>();
  }
  PENSTOCK_ASSIGN_OR_RETURN(part.records, NumberOf(json, "records"));
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t shuffle, NumberOf(json, "shuffle"));
  if (shuffle >= JobState::MixPart::kShufflesMax) {
    return Wrong(json, "shuffle", "a number below 65536");
  }
  part.shuffle = static_cast<uint32_t>(shuffle);
  for (const auto& [name, value] : {std::pair("pass", &part.pass),
                                    {"taken", &part.taken},
                                    {"rows", &part.rows}}) {
    if (!json.contains(name)) continue;
    PENSTOCK_ASSIGN_OR_RETURN(*value, NumberOf(json, name));
  }
  for (const uint64_t each : {part.records, part.pass, part.taken, part.rows}) {
    if (each <= kExactMax) continue;
    return InvalidArgumentError(
        "state: a part of 'mix' has {}: wanted up to {}", each, kExactMax);
  }
  if (part.records == 0) return Wrong(json, "records", "1 or more");
  return part;
}

StatusOr<std::vector<JobState::MixPart>> PartsAt(const nlohmann::json& json,
                                                 const char* key,
                                                 size_t parts_max) {
  std::vector<JobState::MixPart> parts;
  const auto list = json.find(key);
  if (list == json.end()) return parts;
  if (!list->is_array() || list->size() > parts_max) {
    return Wrong(json, key, "a list of parts");
  }
  for (const nlohmann::json& each : *list) {
    if (!each.is_object()) return Wrong(json, key, "a list of parts");
    PENSTOCK_ASSIGN_OR_RETURN(JobState::MixPart part, PartFromJson(each));
    parts.push_back(std::move(part));
  }
  return parts;
}

nlohmann::json MixToJson(const JobState::Mix& mix) {
  nlohmann::json json = {{"begin", mix.begin}, {"spec", mix.spec}};
  if (!mix.rule.empty()) json["rule"] = mix.rule;
  if (!mix.parts.empty()) json["parts"] = PartsToJson(mix.parts);
  if (mix.shuffles > 0) json["shuffles"] = mix.shuffles;
  if (mix.from) json["from"] = {mix.from->epoch, mix.from->row};
  if (!mix.gone.empty()) json["gone"] = PartsToJson(mix.gone);
  return json;
}

StatusOr<JobState::Mix> MixFromJson(const nlohmann::json& json) {
  JobState::Mix mix;
  PENSTOCK_ASSIGN_OR_RETURN(mix.begin, WeightsAt(json, "begin"));
  PENSTOCK_ASSIGN_OR_RETURN(mix.spec, WeightsAt(json, "spec"));
  if (mix.begin.size() != mix.spec.size()) {
    return Wrong(json, "spec", "a weight for each part");
  }
  if (const auto rule = json.find("rule"); rule != json.end()) {
    if (!rule->is_string()) return Wrong(json, "rule", "a string");
    mix.rule = rule->get<std::string>();
  }
  PENSTOCK_ASSIGN_OR_RETURN(mix.parts,
                            PartsAt(json, "parts", WeightsChange::kPartsMax));
  if (!mix.parts.empty() && mix.parts.size() != mix.begin.size()) {
    return Wrong(json, "parts", "as many as there are weights");
  }
  if (json.contains("shuffles")) {
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t next, NumberOf(json, "shuffles"));
    if (next > JobState::MixPart::kShufflesMax) {
      return Wrong(json, "shuffles", "a number up to 65536");
    }
    mix.shuffles = static_cast<uint32_t>(next);
  }
  if (const auto from = json.find("from"); from != json.end()) {
    if (!from->is_array() || from->size() != 2 ||
        !(*from)[0].is_number_unsigned() || !(*from)[1].is_number_unsigned() ||
        mix.parts.empty()) {
      return Wrong(json, "from", "[epoch, row], with parts");
    }
    mix.from = JobState::MixFrom{(*from)[0].get<uint64_t>(),
                                 (*from)[1].get<uint64_t>()};
  }
  PENSTOCK_ASSIGN_OR_RETURN(mix.gone,
                            PartsAt(json, "gone", JobState::Mix::kGoneMax));
  return mix;
}

// Nothing is known of rows before its mix began with its parts.
Status CheckFrom(const JobState& state) {
  if (!state.mix || !state.mix->from) return OkStatus();
  const JobState::MixFrom from = *state.mix->from;
  bool sound = from <= JobState::MixFrom{state.epoch, state.row};
  for (const JobState::Owed& owed : state.owed) {
    sound &= from <= JobState::MixFrom{owed.epoch, owed.row};
  }
  for (const WeightsChange& change : state.weights) {
    sound &= from <= JobState::MixFrom{change.epoch, change.row} &&
             change.weights.size() == state.mix->parts.size();
  }
  if (sound) return OkStatus();
  return InvalidArgumentError(
      "state: its mix has these parts from row {} of epoch {} on ('from'): "
      "nothing may lie before",
      from.row, from.epoch);
}

}  // namespace

nlohmann::json JobStateToJson(const JobState& state) {
  if (IsPositionAlone(state)) {
    return {{"epoch", state.epoch}, {"row", state.row}};
  }
  nlohmann::json owed = nlohmann::json::array();
  for (const JobState::Owed& each : state.owed) {
    owed.push_back({each.epoch, each.row, each.rows, each.redelivered});
  }
  nlohmann::json shuffle;
  if (state.shuffle) {
    shuffle = {{"seed", state.shuffle->seed},
               {"each_epoch", state.shuffle->each_epoch}};
  }
  nlohmann::json json = {
      {"penstock_state", JobState::kVersion},
      {"dataset", state.dataset},
      {"delivery", kDeliveryModeNames[static_cast<size_t>(state.delivery)]},
      {"records", state.records},
      {"seed", state.seed},
      {"shuffle", std::move(shuffle)},
      {"epoch", state.epoch},
      {"row", state.row},
      {"owed", std::move(owed)}};
  if (!state.selection.empty()) json["selection"] = state.selection;
  if (state.shards) {
    json["shards"] = {{"count", state.shards->count},
                      {"batch", state.shards->batch}};
  }
  if (state.mix) json["mix"] = MixToJson(*state.mix);
  for (const WeightsChange& change : state.weights) {
    json["weights"].push_back(WeightsChangeToJson(change));
  }
  return json;
}

StatusOr<JobState> JobStateFromJson(const nlohmann::json& json) {
  JobState state;
  if (json.is_object() && json.size() == 2 && json.contains("epoch") &&
      json.contains("row")) {
    PENSTOCK_ASSIGN_OR_RETURN(state.epoch, NumberOf(json, "epoch"));
    PENSTOCK_ASSIGN_OR_RETURN(state.row, NumberOf(json, "row"));
    return state;
  }
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
  const auto dataset = json.find("dataset");
  if (dataset == json.end() || !dataset->is_string() ||
      dataset->get_ref<const std::string&>().empty()) {
    return Wrong(json, "dataset", "a string that is not empty");
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
  if (const auto selection = json.find("selection"); selection != json.end()) {
    if (!selection->is_string()) return Wrong(json, "selection", "a string");
    state.selection = selection->get<std::string>();
  }
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
  if (const auto shards = json.find("shards"); shards != json.end()) {
    if (!shards->is_object()) return Wrong(json, "shards", "{count, batch}");
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t count, NumberOf(*shards, "count"));
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t batch, NumberOf(*shards, "batch"));
    if (count == 0 || count > JobState::kShardsMax) {
      return Wrong(*shards, "count", "a number of ranks");
    }
    state.shards = JobState::Shards{static_cast<uint32_t>(count), batch};
  }
  if (const auto mix = json.find("mix"); mix != json.end()) {
    if (!mix->is_object()) return Wrong(json, "mix", "{begin, spec}");
    PENSTOCK_ASSIGN_OR_RETURN(state.mix, MixFromJson(*mix));
  }
  if (const auto weights = json.find("weights"); weights != json.end()) {
    if (!weights->is_array() || weights->size() > JobState::kChangesMax) {
      return Wrong(json, "weights", "a list of at most 128 changes");
    }
    for (const nlohmann::json& each : *weights) {
      auto change = WeightsChangeFromJson(each);
      if (!change.ok()) return change.status().Prepend("state");
      if (!state.weights.empty() &&
          std::pair(change->epoch, change->row) <
              std::pair(state.weights.back().epoch, state.weights.back().row)) {
        return Wrong(json, "weights", "changes in the order of their rows");
      }
      state.weights.push_back(*std::move(change));
    }
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
          "a list of [epoch, row, rows, redelivered] with 1 or more rows, and "
          "true or false as the last");
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
  PENSTOCK_RETURN_IF_ERROR(CheckFrom(state));
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
  if (IsPositionAlone(*state)) {
    return refused(InvalidArgumentError(
        "state file '{}' has a position alone and names no dataset", path));
  }
  return state;
}

std::string DifferingIdentity(const JobState& state, const JobState& here) {
  if (IsPositionAlone(state)) return "";
  if (state.dataset != here.dataset) {
    return Format("dataset: '{}' in the state, '{}' here", state.dataset,
                  here.dataset);
  }
  if (state.records != here.records) {
    return Format("records: {} in the state, {} here", state.records,
                  here.records);
  }
  if (state.selection != here.selection) {
    return "selection: the records that `select`, `concat`, `mix`, "
           "`window_files`, `batch.buckets` or `batch.pack` choose, or their "
           "order, are others here than in the state";
  }
  if (state.seed != here.seed) {
    return Format("seed: {} in the state, {} here", state.seed, here.seed);
  }
  if (state.shuffle != here.shuffle) {
    return Format("shuffle: {} in the state, {} here",
                  ShuffleText(state.shuffle), ShuffleText(here.shuffle));
  }
  if (state.shards != here.shards) {
    return Format("steps: divided {} in the state, {} here",
                  ShardsText(state.shards), ShardsText(here.shards));
  }
  return "";
}

}  // namespace penstock
