// penstock recipe: specs of known datasets, and whether their files are all
// there.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/command/recipe.h"
#include "client/command/recipe_check.h"
#include "client/command/subcommand.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/progress_bar.h"
#include "client/private_broker/table.h"
#include "common/command_line.h"
#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kProblemsShown = 20;

struct RecipeOptions {
  std::string name;
  std::string path;
  std::string split;
  bool json = false;
};

StatusOr<int> List(const RecipeOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Recipe> recipes, AllRecipes());
  Table table({"recipe", "splits", "what"});
  std::string layouts;
  OrderedJson list = OrderedJson::array();
  for (const Recipe& recipe : recipes) {
    OrderedJson rows = OrderedJson::object();
    std::string splits;
    for (const Recipe::Split& split : recipe.splits) {
      rows[split.name] = split.rows ? OrderedJson(*split.rows) : OrderedJson();
      splits += (splits.empty() ? "" : ", ") + split.name;
      if (split.rows) splits += " " + FormatCount(*split.rows);
    }
    list.push_back({{"recipe", recipe.name},
                    {"what", recipe.what},
                    {"layout", recipe.layout},
                    {"had", recipe.had},
                    {"splits", rows}});
    table.AddRow({recipe.name, splits, recipe.what});
    layouts += Format("{}: {}\n", recipe.name, recipe.layout);
  }
  if (options.json) {
    PrintJsonInOrder({{"recipes", list}});
  } else {
    Print(stdout, "{}\nFiles in PATH:\n{}", table.ToString(), layouts);
  }
  return 0;
}

StatusOr<int> Show(const RecipeOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const Recipe recipe, FindRecipe(options.name));
  PENSTOCK_ASSIGN_OR_RETURN(
      const Recipe::Split* const split,
      FindSplit(recipe,
                options.split.empty() ? recipe.splits[0].name : options.split));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string spec,
                            SpecOf(*split, options.path));
  Print(stdout, "{}", spec);
  return 0;
}

StatusOr<int> Check(const RecipeOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const Recipe recipe, FindRecipe(options.name));
  if (!options.split.empty()) {
    PENSTOCK_RETURN_IF_ERROR(FindSplit(recipe, options.split).status());
  }
  RecipeCheck check;
  {
    ProgressBar bar("looking", "files");
    PENSTOCK_ASSIGN_OR_RETURN(check,
                              CheckFiles(recipe, options.path, options.split,
                                         [&bar](uint64_t done, uint64_t total) {
                                           bar.Update(done, total);
                                         }));
  }
  const bool complete = check.problem_count == 0;
  OrderedJson splits = OrderedJson::object();
  std::string told;
  for (const Recipe::Split& split : recipe.splits) {
    if (!options.split.empty() && split.name != options.split) continue;
    const bool whole = std::find(check.damaged.begin(), check.damaged.end(),
                                 split.name) == check.damaged.end();
    splits[split.name] = whole;
    told += Format("{}{} {}", told.empty() ? "" : ", ", split.name,
                   whole ? "complete" : "incomplete");
  }
  if (options.json) {
    OrderedJson problems = OrderedJson::array();
    for (const RecipeCheck::Problem& each : check.problems) {
      problems.push_back(
          {{"split", each.split}, {"file", each.file}, {"found", each.found}});
    }
    PrintJsonInOrder({{"recipe", recipe.name},
                      {"path", options.path},
                      {"complete", complete},
                      {"splits", splits},
                      {"files", check.files},
                      {"bytes", check.bytes},
                      {"problem_count", check.problem_count},
                      {"problems", problems},
                      {"inside", check.inside},
                      {"had", recipe.had}});
    return complete ? 0 : kExitFailure;
  }
  for (size_t i = 0; i < std::min(kProblemsShown, check.problems.size()); ++i) {
    const RecipeCheck::Problem& each = check.problems[i];
    Print(stdout, "{}/{}: {}\n", Printable(options.path), Printable(each.file),
          Printable(each.found));
  }
  if (check.problem_count > kProblemsShown) {
    Print(stdout, "and {} more\n",
          FormatCount(check.problem_count - kProblemsShown));
  }
  Print(stdout, "{}: {}; {}, {}\n", recipe.name, told,
        Counted(FormatCount(check.files), "file"), FormatBytes(check.bytes));
  if (complete) return 0;
  if (!check.inside.empty()) {
    Print(stdout, "perhaps they are here: penstock recipe check {} {}/{}\n",
          recipe.name, Printable(options.path), check.inside);
  }
  Print(stdout, "wanted in that folder: {}\nhad from: {}\n", recipe.layout,
        recipe.had);
  return kExitFailure;
}

void AddName(Command command, RecipeOptions* options) {
  command.AddOption("NAME", &options->name, "One of `penstock recipe list`")
      .Required();
}

void AddSplit(Command command, const std::string& text,
              RecipeOptions* options) {
  command.AddOption("--split", &options->split, text)
      .Type("train|validation|test");
}

}  // namespace

Subcommand AddRecipe(Command parent) {
  Command recipe = parent.AddCommand(
      "recipe", "Give specs of known datasets, and check their files");
  const auto options = std::make_shared<RecipeOptions>();
  recipe.RequireCommand();
  Command list = recipe.AddCommand(
      "list", "List the recipes, and the files that each wants");
  list.AddFlag("--json", &options->json, "Print one JSON object");
  Command show =
      recipe.AddCommand("show", "Print a spec that `penstock check` takes");
  AddName(show, options.get());
  show.AddOption("PATH", &options->path,
                 "Folder of the data (default: where the spec will be)");
  AddSplit(show, "Part of the data (default: the first, train)", options.get());
  show.SetFooter(R"(
Example:
  penstock recipe show cifar10 /data/cifar-10-batches-bin > train.yaml)");
  Command check = recipe.AddCommand(
      "check", "Look whether all files are there, with their official sizes");
  AddName(check, options.get());
  check.AddOption("PATH", &options->path, "Folder of the data").Required();
  AddSplit(check, "Part of the data (default: all)", options.get());
  check.AddFlag("--json", &options->json, "Print one JSON object");
  check.SetFooter(R"(
Looks at names, sizes, first and last bytes. The exit status is 1 if
something is missing.)");
  recipe.SetFooter(R"(
Examples:
  penstock recipe list
  penstock recipe check fashion-mnist /usr/share/datasets/fashion-mnist
  penstock recipe show imagenet /data/imagenet > train.yaml
  penstock recipe show imagenet /data/imagenet --split validation)");
  return {recipe, [=]() -> StatusOr<int> {
            if (list.parsed()) return List(*options);
            if (show.parsed()) return Show(*options);
            return Check(*options);
          }};
}

}  // namespace penstock
