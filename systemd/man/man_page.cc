#include "systemd/man/man_page.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "broker/declare/describe.h"
#include "common/command_line.h"
#include "common/format.h"

namespace penstock {
namespace {

constexpr size_t kColumns = 78;

// The code point of the character at text[*i], whose last byte *i is moved to.
// text is UTF-8.
uint32_t CodePoint(std::string_view text, size_t* i) {
  const auto lead = static_cast<unsigned char>(text[*i]);
  const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  uint32_t point = lead & (0x3F >> more);
  for (int k = 0; k < more && *i + 1 < text.size(); ++k) {
    point = point << 6 | (static_cast<unsigned char>(text[++*i]) & 0x3F);
  }
  return point;
}

// Text that the formatter shows as it is.
std::string Escaped(std::string_view text, bool backticks) {
  std::string out;
  bool bold = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (backticks && c == '`') {
      bold = !bold;
      out += bold ? "\\fB" : "\\fR";
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      out += Format("\\[u{:04X}]", CodePoint(text, &i));
    } else if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '\'') {
      out += "\\(aq";
    } else if (c == '`') {
      out += "\\(ga";
    } else if (c == '"') {
      out += "\\(dq";
    } else if (c == '^') {
      out += "\\(ha";
    } else if (c == '~') {
      out += "\\(ti";
    } else if (c == '.' && (i == 0 || text[i - 1] == ' ')) {
      out += "\\&.";  // it may begin a line
    } else {
      out += c;
    }
  }
  return out;
}

std::string Filled(const std::string& text) {
  return Wrapped(Escaped(text, true), "", "", kColumns);
}

// What an option's help says, as a sentence.
std::string Sentence(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(text[0]));
  if (!text.empty() && text.back() != '.' && text.back() != ')' &&
      text.back() != ':') {
    text += '.';
  }
  return text;
}

}  // namespace

ManPage::ManPage(const std::string& name, int section, const std::string& about,
                 const std::string& date) {
  text_ = Format(
      ".\\\" Made from the declarations of the programs.\n"
      ".TH {} {} {} \"Penstock {}\" Penstock\n",
      name, section, date, PENSTOCK_VERSION);
  Section("NAME");
  text_ += Format("{} \\- {}\n", Escaped(name, false), Escaped(about, false));
}

ManPage& ManPage::Section(const std::string& title) {
  text_ += Format(".SH {}\n", Escaped(title, false));
  return *this;
}

ManPage& ManPage::Subsection(const std::string& title) {
  text_ += Format(".SS {}\n", Escaped(title, false));
  return *this;
}

ManPage& ManPage::Paragraph(const std::string& text) {
  // Not after a heading, which begins one.
  const size_t last = text_.rfind('\n', text_.size() - 2) + 1;
  if (text_.compare(last, 2, ".S") != 0) text_ += ".PP\n";
  text_ += Filled(text);
  return *this;
}

ManPage& ManPage::Item(const std::string& term, const std::string& value,
                       const std::string& text) {
  text_ +=
      Format(".TP\n\\fB{}\\fR{}\n", Escaped(term, false),
             value.empty() ? "" : Format(" \\fI{}\\fR", Escaped(value, false)));
  text_ += Filled(text);
  return *this;
}

ManPage& ManPage::Example(const std::string& lines) {
  text_ += ".PP\n.EX\n";
  std::istringstream all(lines);
  for (std::string line; std::getline(all, line);) {
    text_ += line.empty() ? "\\&\n" : Escaped(line, false) + "\n";
  }
  text_ += ".EE\n";
  return *this;
}

ManPage& ManPage::Synopsis(const Command& command, const std::string& more) {
  std::string line = Format("\\fB{}\\fR", Escaped(command.full_name(), false));
  if (!command.commands().empty()) line += " \\fICOMMAND\\fR";
  line += " [\\fIOPTION\\fR]...";
  for (const DeclaredOption& option : command.options()) {
    if (!option.positional) continue;
    const std::string name = Format("\\fI{}\\fR{}", Escaped(option.name, false),
                                    option.several ? "..." : "");
    line += option.required ? " " + name : " [" + name + "]";
  }
  const size_t last = text_.rfind('\n', text_.size() - 2) + 1;
  if (text_.compare(last, 2, ".S") != 0) text_ += ".PP\n";
  text_ += line + (more.empty() ? "" : " " + Escaped(more, false)) + "\n";
  return *this;
}

ManPage& ManPage::Options(const Command& command) {
  for (const DeclaredOption& option : command.options()) {
    std::string text = Sentence(option.text);
    if (option.required && !option.positional) text += " Required.";
    Item(option.name, option.positional ? "" : option.value, text);
  }
  return *this;
}

ManPage& ManPage::SeeAlso(const std::string& pages) {
  Section("SEE ALSO");
  std::string marked;
  for (const char c : pages) {
    if (c == '(') marked += "\\fR";
    if (marked.empty() || (c != ' ' && marked.back() == ' ')) marked += "\\fB";
    marked += c == '-' ? "\\-" : std::string(1, c);
  }
  text_ += marked + "\n";
  return *this;
}

void WriteFile(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr ||
      std::fwrite(text.data(), 1, text.size(), file) != text.size() ||
      std::fclose(file) != 0) {
    std::perror(path.c_str());
    std::exit(1);
  }
}

}  // namespace penstock
