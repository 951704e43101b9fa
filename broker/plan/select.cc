#include "broker/plan/select.h"

#include <cstddef>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/declare/spec_path.h"

namespace penstock {
namespace {

constexpr size_t kStepsMax = 16;

}  // namespace

std::vector<std::string> ColumnsOf(const SelectSpec& step) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (!name.empty()) names.push_back(name);
  };
  std::visit(
      [&](const auto& each) {
        if constexpr (requires { each.column; }) add(each.column);
        if constexpr (requires { each.weight; }) add(each.weight);
        if constexpr (requires { each.by; }) add(each.by);
      },
      step);
  return names;
}

const std::string* FileOf(const SelectSpec& step) {
  if (const auto* exclude = std::get_if<ExcludeStep>(&step)) {
    return &exclude->records;
  }
  const auto* filter = std::get_if<FilterStep>(&step);
  return filter == nullptr || filter->records.empty() ? nullptr
                                                      : &filter->records;
}

ValueType<std::vector<SelectSpec>> SelectSteps() {
  return LeftOutAt(
      {}, List(OneKind<SelectSpec>(), 0, kStepsMax,
               Format("a list of at most {} steps, such as [take: 1000]",
                      kStepsMax)));
}

StatusOr<std::unique_ptr<Order>> Select(const std::vector<SelectSpec>& steps,
                                        std::unique_ptr<Order> of,
                                        const SelectContext& context) {
  for (size_t i = 0; i < steps.size(); ++i) {
    auto order = std::visit(
        [&](const auto& step) { return step.Apply(std::move(of), context); },
        steps[i]);
    if (!order.ok()) {
      return AtPath(
          Format("select[{}].{}", i,
                 std::visit(
                     [](const auto& step) { return step.Declared().name(); },
                     steps[i])),
          order.status());
    }
    of = *std::move(order);
  }
  return of;
}

}  // namespace penstock
