// A manual page in man(7)'s macros, which groff and mandoc take without
// warnings. Words between backticks are bold.
#ifndef SYSTEMD_MAN_MAN_PAGE_H_
#define SYSTEMD_MAN_MAN_PAGE_H_

#include <string>

#include "common/command_line.h"

namespace penstock {

class ManPage {
 public:
  // about: what it does, in a few words. date: "2026-11-26".
  ManPage(const std::string& name, int section, const std::string& about,
          const std::string& date);

  ManPage& Section(const std::string& title);
  ManPage& Subsection(const std::string& title);
  ManPage& Paragraph(const std::string& text);
  // value: in italics behind the term; "": none.
  ManPage& Item(const std::string& term, const std::string& value,
                const std::string& text);
  // Lines as they are.
  ManPage& Example(const std::string& lines);
  // How the command is called: a line. more: what comes behind.
  ManPage& Synopsis(const Command& command, const std::string& more = "");
  // Its options and arguments, as `--help` has them.
  ManPage& Options(const Command& command);
  // Other pages: "penstock(1), penstockd(8)".
  ManPage& SeeAlso(const std::string& pages);

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Writes text to the file. Exits with an error if it cannot.
void WriteFile(const std::string& path, const std::string& text);

}  // namespace penstock
#endif  // SYSTEMD_MAN_MAN_PAGE_H_
