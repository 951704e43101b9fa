// Errors that are found after a spec was read, when its files are opened and
// its steps made, begin with the path of what they are of, as those of the
// parser do: "map[2].rotate: wants uint8 values, ...".
//
// Pure functions: any thread.
#ifndef BROKER_DECLARE_SPEC_PATH_H_
#define BROKER_DECLARE_SPEC_PATH_H_

#include <string>
#include <string_view>

#include "broker/declare/yaml.h"
#include "common/status.h"

namespace penstock {

// The same error, at this path: "PATH: message", or "PATH.rest: message" where
// the message begins with a path itself.
Status AtPath(const std::string& path, const Status& status);

// The path that a message begins with; "": none.
std::string_view PathOf(std::string_view message);

// A position from 1 on; line 0: none.
struct YamlPosition {
  int line = 0;
  int column = 0;
};
// Where the path leads: to the key of its last part, or the item; or, where the
// text has no such part, to the nearest one around it. None if not even its
// first key is there.
YamlPosition PositionOf(const YamlNode& root, std::string_view path);

}  // namespace penstock
#endif  // BROKER_DECLARE_SPEC_PATH_H_
