#include "client/command/recipe.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "client/command/recipes.h"
#include "common/printable.h"
#include "common/text_file.h"

namespace penstock {
namespace {

constexpr size_t kNamesAtOnce = 5;  // of a line of a spec
constexpr std::string_view kBorder = "\n---\n";

// Takes the keys of a mapping, each once; what is left is a mistake. Of files
// that are compiled in: yaml-cpp's exceptions end in ParseRecipe.
class Keys {
 public:
  explicit Keys(const YAML::Node& node) : node_(node) {}

  bool Has(const char* key) const { return node_[key].IsDefined(); }
  YAML::Node Take(const char* key) {
    ++taken_;
    return node_[key];
  }
  template <typename T>
  void Take(const char* key, T* out) {
    *out = Take(key).as<T>();
  }
  template <typename T>
  void Maybe(const char* key, T* out) {
    if (Has(key)) Take(key, out);
  }
  void CheckNoneLeft() const {
    if (node_.size() != taken_) {
      throw YAML::RepresentationException(node_.Mark(), "an unknown key");
    }
  }

 private:
  const YAML::Node node_;
  size_t taken_ = 0;
};

RecipeFiles ReadFiles(const YAML::Node& node) {
  RecipeFiles files;
  Keys keys(node);
  keys.Take("split", &files.split);
  int kinds = 0;
  for (const char* kind : {"file", "numbered", "classes", "list"}) {
    kinds += keys.Has(kind) ? 1 : 0;
  }
  if (kinds != 1) {
    throw YAML::RepresentationException(
        node.Mark(), "wanted one of file, numbered, classes, list");
  }
  if (keys.Has("file")) {
    if (node["file"].IsSequence()) {
      keys.Take("file", &files.file);
    } else {
      keys.Take("file", &files.file.emplace_back());
    }
    if (keys.Has("bytes")) keys.Take("bytes", &files.bytes.emplace());
    keys.Maybe("idx", &files.idx);
  } else if (keys.Has("numbered")) {
    keys.Take("numbered", &files.numbered);
    keys.Take("first", &files.first);
  } else if (keys.Has("classes")) {
    keys.Take("classes", &files.classes);
    keys.Take("names", &files.names);
    keys.Take("folders", &files.folders);
    keys.Take("pictures", &files.pictures);
    keys.Take("each", &files.each);
    if (files.each.size() != 2) {
      throw YAML::RepresentationException(node.Mark(), "each: wanted two");
    }
  } else {
    keys.Take("list", &files.list);
    keys.Take("lines", &files.lines);
    keys.Take("of", &files.of);
  }
  if (keys.Has("format")) {
    std::string format;
    keys.Take("format", &format);
    constexpr std::pair<std::string_view, RecipeFiles::Format> kFormats[] = {
        {"tfrecord", RecipeFiles::Format::kTfrecord},
        {"tar", RecipeFiles::Format::kTar},
        {"json_lines", RecipeFiles::Format::kJsonLines},
        {"token_shard", RecipeFiles::Format::kTokenShard}};
    for (const auto& [name, value] : kFormats) {
      if (format == name) files.format = value;
    }
    if (files.format == RecipeFiles::Format::kAny) {
      throw YAML::RepresentationException(node.Mark(), "an unknown format");
    }
  }
  keys.CheckNoneLeft();
  return files;
}

// Throws what yaml-cpp throws.
Recipe ReadHeader(const YAML::Node& node, const std::vector<Recipe>& like) {
  Recipe recipe;
  Keys keys(node);
  if (keys.Has("like")) {
    std::string other;
    keys.Take("like", &other);
    const auto found =
        std::find_if(like.begin(), like.end(),
                     [&](const Recipe& each) { return each.name == other; });
    if (found == like.end()) {
      throw YAML::RepresentationException(node.Mark(), "like: no such recipe");
    }
    recipe = *found;
  } else {
    keys.Take("layout", &recipe.layout);
    keys.Take("had", &recipe.had);
    keys.Maybe("inside", &recipe.inside);
    for (const auto& split : keys.Take("splits")) {
      Recipe::Split& made = recipe.splits.emplace_back();
      made.name = split.first.as<std::string>();
      if (!split.second.IsNull()) made.rows = split.second.as<uint64_t>();
    }
    for (const YAML::Node& each : keys.Take("files")) {
      recipe.files.push_back(ReadFiles(each));
    }
  }
  keys.Take("recipe", &recipe.name);
  keys.Take("what", &recipe.what);
  keys.CheckNoneLeft();
  return recipe;
}

// Between double quotes of YAML.
StatusOr<std::string> Quoted(const std::string& path) {
  for (size_t i = 0; i < path.size();) {
    const size_t bytes = Utf8Bytes(path, i);
    if (bytes == 0) {
      return InvalidArgumentError(
          "'{}': a spec cannot name a path that is not UTF-8; give the folder "
          "another name (ln -s)",
          Printable(path));
    }
    i += bytes;
  }
  const std::string text = nlohmann::json(path).dump();
  return text.substr(1, text.size() - 2);
}

}  // namespace

StatusOr<Recipe> ParseRecipe(const std::string& name, const std::string& text,
                             const std::vector<Recipe>& like) {
  std::vector<std::string> documents;
  for (size_t begin = 0;;) {
    const size_t end = text.find(kBorder, begin);
    documents.push_back(
        text.substr(begin, end == text.npos ? text.npos : end + 1 - begin));
    if (end == text.npos) break;
    begin = end + kBorder.size();
  }
  Recipe recipe;
  try {
    recipe = ReadHeader(YAML::Load(documents[0]), like);
  } catch (const YAML::Exception& error) {
    return InternalError("recipe {}: {}", name, error.what());
  }
  if (recipe.name != name || recipe.splits.size() + 1 != documents.size()) {
    return InternalError(
        "recipe {}: wanted its name, and a spec for each split", name);
  }
  for (const RecipeFiles& files : recipe.files) {
    PENSTOCK_RETURN_IF_ERROR(FindSplit(recipe, files.split).status());
  }
  for (size_t i = 0; i < recipe.splits.size(); ++i) {
    recipe.splits[i].spec = documents[i + 1];
  }
  return recipe;
}

StatusOr<std::vector<Recipe>> AllRecipes() {
  std::vector<Recipe> recipes;
  // Those that others are like first.
  for (const bool like : {false, true}) {
    for (const RecipeText& each : kRecipeTexts) {
      if ((each.text.find("\nlike: ") != std::string_view::npos) != like) {
        continue;
      }
      PENSTOCK_ASSIGN_OR_RETURN(
          Recipe recipe,
          ParseRecipe(std::string(each.name), std::string(each.text), recipes));
      recipes.push_back(std::move(recipe));
    }
  }
  std::sort(recipes.begin(), recipes.end(),
            [](const Recipe& a, const Recipe& b) { return a.name < b.name; });
  return recipes;
}

StatusOr<Recipe> FindRecipe(const std::string& name) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Recipe> recipes, AllRecipes());
  std::string known;
  for (const Recipe& each : recipes) {
    if (each.name == name) return each;
    known += (known.empty() ? "" : ", ") + each.name;
  }
  return NotFoundError("there is no recipe '{}'; there are {}", Printable(name),
                       known);
}

StatusOr<const Recipe::Split*> FindSplit(const Recipe& recipe,
                                         const std::string& split) {
  std::string known;
  for (const Recipe::Split& each : recipe.splits) {
    if (each.name == split) return &each;
    known += (known.empty() ? "" : " and ") + each.name;
  }
  return NotFoundError(
      "{} has no split '{}', but {}; in a spec `select: [{{split: ...}}]` "
      "takes "
      "a part of one",
      recipe.name, Printable(split), known);
}

StatusOr<std::vector<std::string>> ParseNames(const std::string& text) {
  std::vector<std::string> names;
  size_t line = 0;
  for (std::string& name : SplitText(text, '\n')) {
    if (!name.empty() && name.back() == '\r') name.pop_back();
    ++line;
    const bool plain =
        !name.empty() && name.size() <= 200 && name[0] != '.' &&
        std::all_of(name.begin(), name.end(), [](unsigned char c) {
          return c < 0x80 &&
                 (isalnum(c) != 0 || c == '_' || c == '-' || c == '.');
        });
    if (!plain) {
      return InvalidArgumentError(
          "line {}: wanted a name of letters, digits, '_', '-' and '.', found "
          "'{}'; take the file from its archive again",
          line, Printable(name.substr(0, 80)));
    }
    names.push_back(std::move(name));
  }
  if (names.empty()) {
    return InvalidArgumentError(
        "is empty; take the file from its archive again");
  }
  return names;
}

StatusOr<std::string> SpecOf(const Recipe::Split& split,
                             const std::string& folder) {
  std::string base = ".";
  if (!folder.empty()) {
    std::error_code error;
    base = std::filesystem::absolute(folder, error).lexically_normal().string();
    while (base.size() > 1 && base.back() == '/') base.pop_back();
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string quoted, Quoted(base));
  const std::string& text = split.spec;
  std::string made;
  for (size_t at = 0; at < text.size();) {
    const size_t open = text.find("${", at);
    made.append(text, at, open == text.npos ? text.npos : open - at);
    if (open == text.npos) break;
    const size_t close = text.find('}', open);
    const std::string inside = text.substr(open + 2, close - open - 2);
    at = close + 1;
    if (inside == "PATH") {
      made += quoted;
      // What follows may be a pattern; a folder's name is none.
      const std::string rest = text.substr(at, text.find('"', at) - at);
      if (rest.find_first_of("*?[{") != rest.npos &&
          base.find_first_of("*?[{") != base.npos) {
        return InvalidArgumentError(
            "'{}': the spec has patterns of files, in which *, ?, [ and {{ "
            "have "
            "meanings; give the folder another name (ln -s)",
            Printable(base));
      }
    } else if (inside.rfind("PATH/", 0) == 0) {
      const std::vector<std::string> names = SplitText(inside.substr(5), '|');
      const auto there =
          std::find_if(names.begin(), names.end(), [&](const auto& name) {
            std::error_code error;
            return std::filesystem::exists(base + "/" + name, error);
          });
      made += quoted + "/" + (there == names.end() ? names[0] : *there);
    } else if (inside.rfind("NAMES ", 0) == 0) {
      const size_t space = inside.find(' ', 6);
      const std::string file = inside.substr(6, space - 6);
      const std::string suffix = inside.substr(space + 1);
      const std::string path = base + "/" + file;
      PENSTOCK_ASSIGN_OR_RETURN(const std::string list,
                                ReadTextFile("list", path, kListBytesMax));
      const auto names = ParseNames(list);
      if (!names.ok()) return names.status().Prepend(path);
      for (size_t i = 0; i < names->size(); ++i) {
        if (i > 0) made += i % kNamesAtOnce == 0 ? ",\n           " : ", ";
        made += "\"" + (*names)[i] + suffix + "\"";
      }
    } else {
      return InternalError("a spec with '${{{}}}'", inside);
    }
  }
  if (made.size() > kSpecBytesMax) {
    return InvalidArgumentError(
        "the spec would have {} bytes, more than {}: its list has more names "
        "than the official one",
        made.size(), kSpecBytesMax);
  }
  return made;
}

}  // namespace penstock
