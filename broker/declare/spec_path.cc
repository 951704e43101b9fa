#include "broker/declare/spec_path.h"

#include <charconv>

namespace penstock {
namespace {

bool IsOfKey(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

// The part of a path that is a key or "[NUMBER]", taken from its beginning; "":
// it is no path.
std::string_view TakePart(std::string_view* path) {
  size_t end = 0;
  if (path->starts_with('[')) {
    end = path->find(']');
    if (end == path->npos || end == 1 ||
        path->substr(1, end - 1).find_first_not_of("0123456789") !=
            path->npos) {
      return "";
    }
    ++end;
  } else {
    while (end < path->size() && IsOfKey((*path)[end])) ++end;
  }
  const std::string_view part = path->substr(0, end);
  path->remove_prefix(end);
  if (path->starts_with('.')) path->remove_prefix(1);
  return part;
}

const YamlNode* Item(const YamlNode& list, std::string_view number) {
  size_t i = 0;
  std::from_chars(number.data(), number.data() + number.size(), i);
  return list.kind == YamlNode::Kind::kSequence && i < list.items.size()
             ? &list.items[i]
             : nullptr;
}

}  // namespace

std::string_view PathOf(std::string_view message) {
  const std::string_view path = message.substr(0, message.find(": "));
  if (path.size() == message.size() || path.ends_with('.') ||
      path.starts_with('[')) {
    return "";
  }
  std::string_view rest = path;
  while (!rest.empty()) {
    if (TakePart(&rest).empty()) return "";
  }
  return path;
}

Status AtPath(const std::string& path, const Status& status) {
  if (status.ok() || PathOf(status.message()).empty()) {
    return status.Prepend(path);
  }
  return Status(status.code(), path + "." + status.message());
}

YamlPosition PositionOf(const YamlNode& root, std::string_view path) {
  YamlPosition position;
  const YamlNode* node = &root;
  while (!path.empty()) {
    const std::string_view part = TakePart(&path);
    const YamlNode* next = nullptr;
    if (part.starts_with('[')) {
      next = Item(*node, part.substr(1, part.size() - 2));
      if (next != nullptr) position = {next->line, next->column};
    }
    for (size_t i = 0; i < node->keys.size(); ++i) {
      if (node->keys[i].text != part) continue;
      next = &node->items[i];
      position = {node->keys[i].line, node->keys[i].column};
    }
    if (next == nullptr) break;
    node = next;
  }
  return position;
}

}  // namespace penstock
