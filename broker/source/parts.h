// Sources made of others: concat, one after the other, and mix, in proportion.
// Each part is a source with a selection of its own. Their records are numbered
// through; the order of a pass (plan/order.h) says which come when.
#ifndef BROKER_SOURCE_PARTS_H_
#define BROKER_SOURCE_PARTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "broker/plan/mix.h"
#include "broker/source/source.h"

namespace penstock {

class YamlValue;
template <typename V>
struct ValueType;
struct PartSpec;  // kinds.h: it holds any kind of source

// ---- for all sources made of parts

ValueType<std::vector<PartSpec>> ListOfParts();
// Keys of a part that only some of these sources have.
struct PartKeys {
  bool weight = false;
  bool prefix = false;
};
Status CheckPartKeys(const YamlValue& value, const std::vector<PartSpec>& parts,
                     const PartKeys& allowed);
// Its own parts, if it has any, have to be alike. path: of the part.
StatusOr<std::unique_ptr<Source>> OpenPart(const PartSpec& spec,
                                           const std::string& path,
                                           OpenProgress* progress,
                                           const FunctionOptions& functions);
// What the parts say, each text once.
std::string JoinedTexts(const std::vector<const Source*>& parts,
                        std::string (Source::*text)() const,
                        std::string_view between);

// ---- concat, mix

struct ConcatSource {
  std::vector<PartSpec> parts;
  bool operator==(const ConcatSource&) const;

  static const Declaration<ConcatSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(
      OpenProgress* progress, const FunctionOptions& functions) const;
};

// Weights of the parts from a row of the pass on.
struct WeightsFrom {
  uint64_t row = 1;
  std::vector<double> weights;
  bool operator==(const WeightsFrom&) const = default;

  static const Declaration<WeightsFrom>& Declared();
};

struct MixSource {
  std::vector<PartSpec> parts;
  WhenOut when_out = WhenOut::kStop;
  std::vector<WeightsFrom> schedule;
  uint64_t block = 1;  // rows of one part at a time
  bool operator==(const MixSource&) const;

  static const Declaration<MixSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(
      OpenProgress* progress, const FunctionOptions& functions) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_PARTS_H_
