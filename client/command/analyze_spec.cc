#include "client/command/analyze_spec.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::vector<std::string> NamesIn(const OrderedJson& op, const char* key) {
  std::vector<std::string> names;
  const auto found = op.find(key);
  if (found == op.end()) return names;
  if (found->is_string()) names.push_back(found->get<std::string>());
  if (found->is_array()) {
    for (const OrderedJson& each : *found)
      names.push_back(each.get<std::string>());
  }
  return names;
}

bool NeedsStatistics(const std::string& name, const OrderedJson& op) {
  if (name == "normalize") return op.contains("from");
  const auto vocabulary = op.find("vocabulary");
  return name == "lookup" && vocabulary != op.end() && vocabulary->is_object();
}

// The steps, and the features that have reached one that needs statistics.
class Steps {
 public:
  // False: the map ends here.
  bool Add(const std::string& name, OrderedJson op, size_t number) {
    if (NeedsStatistics(name, op)) {
      for (std::string& each : NamesIn(op, "feature")) {
        ended_.insert(std::move(each));
      }
      return true;
    }
    if (ended_.empty()) {
      Keep(name, std::move(op), number);
      return true;
    }
    if (name == "python" || name == "plugin") return false;
    if (name == "rename") {
      for (const auto& [from, to] : op["features"].items()) {
        if (ended_.erase(from) > 0) ended_.insert(to.get<std::string>());
      }
    }
    if (name == "rename" || name == "select") {
      Keep(name, std::move(op), number);
      return true;
    }
    if (name == "concatenate") {
      for (const std::string& each : NamesIn(op, "features")) {
        if (ended_.count(each) == 0) continue;
        ended_.insert(op["to"].get<std::string>());
        return true;
      }
    }
    for (const char* key : {"feature", "features", "mask"}) {
      const std::vector<std::string> names = NamesIn(op, key);
      OrderedJson left = OrderedJson::array();
      for (const std::string& each : names) {
        if (ended_.count(each) == 0) left.push_back(each);
      }
      if (left.size() == names.size()) continue;
      if (left.empty()) return true;
      op[key] = std::move(left);
    }
    Keep(name, std::move(op), number);
    return true;
  }

  OrderedJson Take() { return std::move(kept_); }
  std::vector<size_t> TakeNumbers() { return std::move(numbers_); }

 private:
  void Keep(const std::string& name, OrderedJson op, size_t number) {
    kept_.push_back({{name, std::move(op)}});
    numbers_.push_back(number);
  }

  OrderedJson kept_ = OrderedJson::array();
  std::vector<size_t> numbers_;
  std::set<std::string> ended_;
};

}  // namespace

StatusOr<AnalyzedSpec> SpecToAnalyze(const OrderedJson& spec,
                                     uint64_t batch_rows) {
  if (spec.at("source").contains("tensors")) {
    return FailedPreconditionError(
        "its values are in the spec (tensors): NumPy has their statistics at "
        "once");
  }
  if (spec.at("source").contains("stream")) {
    return FailedPreconditionError(
        "it is a stream, which has no rows but those that producers put");
  }
  if (spec.contains("map_by_part")) {
    return FailedPreconditionError(
        "its parts have steps of their own (map_by_part): analyze each part, "
        "by a spec of its own");
  }
  OrderedJson made = spec;
  Steps steps;
  size_t number = 0;
  for (const OrderedJson& each : spec.at("map")) {
    if (!steps.Add(each.begin().key(), each.begin().value(), number++)) break;
  }
  made["map"] = steps.Take();
  made["shuffle"] = "none";
  made["batch"] = {{"size", batch_rows}, {"last", "partial"}};
  made["epochs"] = 1;
  made.erase("steps_per_epoch");
  made["on_error"] = "skip";
  return AnalyzedSpec{std::move(made), steps.TakeNumbers()};
}

}  // namespace penstock
