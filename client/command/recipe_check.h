// Whether the files of a recipe's layout are all there: looks at names, sizes
// and first and last bytes, not at whole files.
#ifndef CLIENT_COMMAND_RECIPE_CHECK_H_
#define CLIENT_COMMAND_RECIPE_CHECK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/command/recipe.h"
#include "common/status.h"

namespace penstock {

struct RecipeCheck {
  struct Problem {
    std::string split;
    std::string file;   // from the folder on
    std::string found;  // "is missing", and a way out that only it has
  };
  static constexpr size_t kProblemsMax = 1000;

  uint64_t files = 0;  // found
  uint64_t bytes = 0;  // of them
  uint64_t problem_count = 0;
  std::vector<Problem> problems;     // the first of them
  std::vector<std::string> damaged;  // splits that have one
  // Where in the folder the files are instead; "": not known.
  std::string inside;
};

// split: "": all. progress: called with files looked at and their number.
// Errors: the folder cannot be read; Cancelled.
StatusOr<RecipeCheck> CheckFiles(
    const Recipe& recipe, const std::string& folder, const std::string& split,
    const std::function<void(uint64_t done, uint64_t total)>& progress);

}  // namespace penstock
#endif  // CLIENT_COMMAND_RECIPE_CHECK_H_
