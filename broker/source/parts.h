// What all sources made of parts have in common.
#ifndef BROKER_SOURCE_PARTS_H_
#define BROKER_SOURCE_PARTS_H_

#include <string>
#include <string_view>
#include <vector>

#include "broker/source/kinds.h"

namespace penstock {

ValueType<std::vector<PartSpec>> ListOfParts();
// Keys of a part that only some of these sources have.
struct PartKeys {
  bool weight = false;
  bool prefix = false;
};
Status CheckPartKeys(const YamlValue& value, const std::vector<PartSpec>& parts,
                     const PartKeys& allowed);
// Its own parts, if it has any, have to be alike. path: of the part.
OpenedSource OpenPart(const PartSpec& spec, const std::string& path,
                      OpenProgress* progress, const FunctionOptions& functions);
// What the parts say, each text once.
std::string JoinedTexts(const std::vector<const Source*>& parts,
                        std::string (Source::*text)() const,
                        std::string_view between);

}  // namespace penstock
#endif  // BROKER_SOURCE_PARTS_H_
