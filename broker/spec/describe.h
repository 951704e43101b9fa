// The declarations of a spec, told to people and programs.
#ifndef BROKER_SPEC_DESCRIBE_H_
#define BROKER_SPEC_DESCRIBE_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "broker/declare/declaration.h"
#include "common/status.h"

namespace penstock {

// A mapping of a spec, other than the spec itself.
struct Described {
  const DeclarationBase* declared;
  std::string key;  // whose value it is

  // As the value of that key.
  std::string Example() const;
};
// Those of one key first, then what is in them.
std::vector<Described> AllDescribed();

// Whole texts of a spec, one for each example that DescribeSpec shows.
std::vector<std::string> SpecExamples();

// What `penstock help spec [NAME]` prints: sentence, keys and an example of a
// source, an operation or another mapping; "": the keys of the spec and all
// names. InvalidArgument: nothing has this name.
StatusOr<std::string> DescribeSpec(const std::string& name);

// {KEY: {NAME: {"gives", "keys": {KEY: {"required", "default"}}}}}: below the
// key of the spec whose values they are, all declarations.
nlohmann::ordered_json SpecDeclarations();

// Its section of a page of common/spec/.
std::string MarkdownOf(const Described& described);

}  // namespace penstock
#endif  // BROKER_SPEC_DESCRIBE_H_
