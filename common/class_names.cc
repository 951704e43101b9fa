#include "common/class_names.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>

#include "common/format.h"

namespace penstock {

std::string LabelsThatDiffer(const ClassNames& a, const ClassNames& b) {
  struct Labels {
    std::optional<size_t> a;
    std::optional<size_t> b;
  };
  std::map<std::string, Labels> labels;
  for (size_t i = 0; i < a.names.size(); ++i) labels[a.names[i]].a = i;
  for (size_t i = 0; i < b.names.size(); ++i) labels[b.names[i]].b = i;
  size_t common = 0;
  std::string first;
  std::string only;
  for (const auto& [name, label] : labels) {
    if (!label.a || !label.b) {
      if (!only.empty()) continue;
      only =
          Format(" (the {} has no '{}')", label.a ? "second" : "first", name);
      continue;
    }
    ++common;
    if (!first.empty() || *label.a == *label.b) continue;
    first =
        Format("class '{}' is label {} in the first and label {} in the second",
               name, *label.a, *label.b);
  }
  if (first.empty() || 2 * common < std::min(a.names.size(), b.names.size())) {
    return "";
  }
  return Format(
      "labels of '{}' and '{}' differ: {}{}; give both the same class folders, "
      "empty ones too, or the same list of `classes`",
      a.folder, b.folder, first, only);
}

}  // namespace penstock
