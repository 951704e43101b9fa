#include "broker/plan/select_fields.h"

#include <limits>
#include <string_view>

#include "common/printable.h"

namespace penstock {
namespace {

// Values of a column may be any text, such as the names of classes.
Status CheckAnyKeys(const YamlValue& mapping, std::string_view wanted) {
  // So long is the longest name of a folder.
  constexpr size_t kBytesMax = 255;
  if (!mapping.IsMapping() || mapping.size() == 0) {
    return mapping.Wanted(wanted);
  }
  for (size_t i = 0; i < mapping.size(); ++i) {
    const std::string& key = mapping.Key(i);
    if (key.size() <= kBytesMax && Printable(key) == key) continue;
    return mapping.KeyError(
        i, Format("{} is no value: wanted a line of at most {} bytes",
                  Quoted(key), kBytesMax));
  }
  return OkStatus();
}

}  // namespace

ValueType<uint64_t> Seeds() {
  return WholeNumber<uint64_t>(0, std::numeric_limits<uint64_t>::max());
}

ValueType<std::string> ColumnName() {
  return Text("the name of a column",
              [](std::string_view text) { return !text.empty(); });
}

ValueType<FeatureValues<double>> WeightsOfValues() {
  return LeftOutAt(
      {}, ValueOfEach(Number(0, 1e6), "{VALUE: a weight, ...}", CheckAnyKeys));
}

ValueType<WhenOut> WhenOutWords() {
  return Words<WhenOut>({{"stop", WhenOut::kStop},
                         {"drop", WhenOut::kDrop},
                         {"repeat", WhenOut::kRepeat}});
}

}  // namespace penstock
