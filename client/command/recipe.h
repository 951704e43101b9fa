// Recipes: for a known dataset, what its files are and a spec for each of its
// splits. One is a file of client/recipes/, which the build makes a part of the
// command.
//
// The file's first document declares the recipe, and each further one is the
// spec of a split, in the order of `splits`. Its text is printed as it is, but
// for
//   ${PATH}             the folder of the data
//   ${PATH/A|B}         the first of these files that is there
//   ${NAMES FILE .jpg}  the lines of a file of that folder, with this behind
#ifndef CLIENT_COMMAND_RECIPE_H_
#define CLIENT_COMMAND_RECIPE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"

namespace penstock {

// Files that belong to a layout. One of file, numbered, classes and list says
// which.
struct RecipeFiles {
  enum class Format { kAny, kTfrecord, kTar, kJsonLines, kTokenShard };

  std::string split;
  // The first of these that is there; {0..9} in a name: all of them.
  std::vector<std::string> file;
  // A name whose first * is a number and whose second is how many there are.
  std::string numbered;
  // A folder that has one for each class.
  std::string classes;
  // A file with a name a line.
  std::string list;

  std::optional<uint64_t> bytes;    // of file: its size
  std::vector<uint32_t> idx;        // of file: its dimensions, MNIST's format
  Format format = Format::kAny;     // of file and numbered
  uint64_t first = 0;               // of numbered: without gaps from here on
  std::string names;                // of classes: what the folders' names match
  uint64_t folders = 0;             // of classes
  uint64_t pictures = 0;            // of classes: *.JPEG in all of them
  std::vector<uint64_t> each = {};  // of classes: least and most of a folder
  uint64_t lines = 0;               // of list
  std::vector<std::string> of;      // of list: files; * is the line
};

struct Recipe {
  struct Split {
    std::string name;
    std::optional<uint64_t> rows;  // nullopt: any number
    std::string spec;
  };
  std::string name;
  std::string what;
  std::string layout;
  std::string had;                  // where the data is had
  std::vector<std::string> inside;  // folders where archives have the files
  std::vector<Split> splits;
  std::vector<RecipeFiles> files;
};

// The recipe of a text. like: where a recipe that has another's files finds
// that. Internal: a mistake in it, with its place.
StatusOr<Recipe> ParseRecipe(const std::string& name, const std::string& text,
                             const std::vector<Recipe>& like = {});

// All that the command has, by name.
StatusOr<std::vector<Recipe>> AllRecipes();
// NotFound says which there are.
StatusOr<Recipe> FindRecipe(const std::string& name);

// NotFound: the recipe has no such split.
StatusOr<const Recipe::Split*> FindSplit(const Recipe& recipe,
                                         const std::string& split);

// The text of a spec for `penstock check`. folder: "": where the spec will be.
// InvalidArgument: a folder that a spec cannot name; errors of files that it
// takes names from.
StatusOr<std::string> SpecOf(const Recipe::Split& split,
                             const std::string& folder);

inline constexpr size_t kListBytesMax = size_t{16} << 20;
// The names in the text of a list, one a line, which are no paths and need no
// quotes. InvalidArgument: "line N: ...".
StatusOr<std::vector<std::string>> ParseNames(const std::string& text);

}  // namespace penstock
#endif  // CLIENT_COMMAND_RECIPE_H_
