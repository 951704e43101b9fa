#include "broker/declare/describe.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace penstock {

using Field = DeclarationBase::Field;

std::string Wrapped(const std::string& text, const std::string& first,
                    const std::string& others, size_t columns) {
  const auto characters = [](const std::string& word) {
    return static_cast<size_t>(std::count_if(
        word.begin(), word.end(),
        [](char c) { return static_cast<unsigned char>(c) >> 6 != 2; }));
  };
  std::string lines = first;
  size_t column = first.size();
  bool begins = true;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!begins && column + 1 + characters(word) > columns) {
      lines += "\n" + others;
      column = others.size();
      begins = true;
    }
    lines += (begins ? "" : " ") + word;
    column += (begins ? 0 : 1) + characters(word);
    begins = false;
  }
  return lines + "\n";
}

std::string ValueOf(const DeclarationBase& declared, const Field& field) {
  const std::string otherwise = declared.DefaultOf(field);
  return field.wanted + (field.required      ? "; required"
                         : otherwise.empty() ? ""
                                             : "; default " + otherwise);
}

std::string KeyOf(const DeclarationBase& declared, const Field& field) {
  return Wrapped(Format("{}: {}", field.key, ValueOf(declared, field)), "  ",
                 "      ") +
         Wrapped(field.text, "      ", "      ");
}

namespace {

// Which of the keys exclude one another; "": none.
std::string ChoiceOf(const DeclarationBase& declared) {
  std::string one_of;
  for (const Field& field : declared.fields()) {
    if (field.one_of) one_of += (one_of.empty() ? "" : " or ") + field.key;
  }
  if (one_of.empty()) return "";
  return Wrapped(Format("Give exactly one of {}.", one_of), "", "");
}

}  // namespace

std::string KeysOf(const DeclarationBase& declared) {
  std::string keys;
  for (const Field& field : declared.fields()) keys += KeyOf(declared, field);
  return keys + ChoiceOf(declared);
}

std::string KeyListOf(const DeclarationBase& declared) {
  std::string keys;
  for (const Field& field : declared.fields()) {
    keys += Wrapped(Format("* `{}` ({}): {}", field.key,
                           ValueOf(declared, field), field.text),
                    "", "  ", kPageColumns);
  }
  const std::string choice = ChoiceOf(declared);
  return choice.empty() ? keys : keys + "\n" + choice;
}

std::string TextOf(const LogMessage& message) {
  std::string text;
  bool in_value = false;
  for (const char c : message.text) {
    if (c == '{' || c == '}') {
      in_value = c == '{';
    } else {
      text += static_cast<char>(in_value ? std::toupper(c) : c);
    }
  }
  return text;
}

std::string DescribeMessages() {
  std::string text =
      "Messages of penstockd, by name. `journalctl PENSTOCK_MESSAGE=NAME` "
      "shows "
      "those of\none kind. What is in capitals is a field PENSTOCK_... of the "
      "journal's entry too.\n";
  for (const LogMessage& message : kLogMessages) {
    text += Format("\n{} ({}, {})\n", message.name, NameOf(message.level),
                   message.id);
    text += Wrapped(TextOf(message), "    ", "    ");
    text += Wrapped(std::string(message.advice), "  ", "  ");
  }
  return text;
}

std::string MessageCatalog() {
  std::string text =
      "# Messages of penstockd, for `journalctl -x`. Made from their "
      "declaration.\n";
  for (const LogMessage& message : kLogMessages) {
    text += Format(
        "\n-- {}\nSubject: Penstock: {}\nDefined-By: Penstock\n"
        "Documentation: man:penstockd(8)\n\n",
        message.id, message.name);
    text += Wrapped(std::string(message.advice), "", "", 75);
  }
  return text;
}

}  // namespace penstock
