#include "common/class_names.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>

#include "common/format.h"

namespace penstock {
namespace {

using Labels = std::map<std::string, size_t>;

Labels LabelsOf(const ClassNames& classes) {
  Labels labels;
  for (size_t i = 0; i < classes.names.size(); ++i) {
    labels.emplace(classes.names[i], i);
  }
  return labels;
}

std::optional<std::string> FirstOnlyIn(const Labels& these,
                                       const Labels& others) {
  for (const auto& [name, label] : these) {
    if (others.count(name) == 0) return name;
  }
  return std::nullopt;
}

}  // namespace

std::string LabelsThatDiffer(const ClassNames& a, const ClassNames& b) {
  const Labels of_a = LabelsOf(a);
  const Labels of_b = LabelsOf(b);
  size_t common = 0;
  std::string first;
  for (const auto& [name, label] : of_a) {
    const auto found = of_b.find(name);
    if (found == of_b.end()) continue;
    ++common;
    if (first.empty() && found->second != label) {
      first = Format(
          "class '{}' is label {} in the first and label {} in the second",
          name, label, found->second);
    }
  }
  if (first.empty() || 2 * common < std::min(of_a.size(), of_b.size())) {
    return "";
  }
  std::optional<std::string> only = FirstOnlyIn(of_a, of_b);
  bool in_a = only.has_value();
  if (const auto in_b = FirstOnlyIn(of_b, of_a);
      in_b && (!only || *in_b < *only)) {
    only = in_b;
    in_a = false;
  }
  return Format(
      "labels of '{}' and '{}' differ: {}{}; give both the same class folders, "
      "empty ones too, or the same list of `classes`",
      a.folder, b.folder, first,
      only ? Format(" (the {} has no '{}')", in_a ? "second" : "first", *only)
           : "");
}

}  // namespace penstock
