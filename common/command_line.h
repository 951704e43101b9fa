// The declared command line of a program: its options, its commands, and what
// --help says. penstock(1) and penstockd(8) are made of the same declarations.
//
//   CommandLine line("prog", "Does this.");
//   line.AddOption("--ranks", &ranks, "Processes").Type("N").InRange(1, 64);
//   line.ParseOrExit(argc, argv);
//
// CLI11 parses; command_line.cc is the only file that compiles it, because its
// header costs 5 s of each file that includes it. Command and CommandOption are
// handles: copies are of the same declaration, which CommandLine owns. All
// calls are of one thread.
#ifndef COMMON_COMMAND_LINE_H_
#define COMMON_COMMAND_LINE_H_

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <variant>
#include <vector>

#include "common/format.h"
#include "common/printable.h"
#include "common/status.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace penstock {

// Where the value of an option goes.
using OptionTarget =
    std::variant<std::string*, std::filesystem::path*, int*, uint32_t*,
                 uint64_t*, double*, std::optional<std::string>*,
                 std::optional<uint32_t>*, std::optional<uint64_t>*,
                 std::vector<std::string>*, std::vector<double>*>;

class CommandOption {
 public:
  explicit CommandOption(CLI::Option* option) : option_(option) {}

  // What --help calls the value: "FILE".
  CommandOption Type(const std::string& name) const;
  CommandOption Required() const;
  // --help says the value that the target has now.
  CommandOption ShowDefault() const;
  // Not in --help and the manual.
  CommandOption Hide() const;
  // "": the value is good; else what is wrong with it.
  CommandOption Check(
      std::function<std::string(const std::string&)> check) const;
  // A max of numeric_limits<T>: no end.
  template <typename T>
  CommandOption InRange(T min, T max = std::numeric_limits<T>::max()) const;
  CommandOption OneOf(std::vector<std::string> values) const;
  CommandOption Excludes(CommandOption other) const;
  CommandOption Needs(CommandOption other) const;
  // It may come without a value, which is "" then.
  CommandOption ValueIsOptional() const;
  // A vector gets one value each time the option comes.
  CommandOption OneValueEachTime() const;

  bool given() const;  // on the parsed command line

 private:
  CLI::Option* option_;
};

// What was declared, for the manual.
struct DeclaredOption {
  std::string name;                     // "--ranks", "-h,--help", "SPEC.yaml"
  std::vector<std::string> long_names;  // "ranks", without its dashes
  std::string value;                    // "N (1)"; "": it takes none
  std::string text;
  bool positional = false;
  bool several = false;  // takes more than one value
  bool required = false;
};

class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command AddCommand(const std::string& name, const std::string& text);
  // names: "--name", "-n,--name", or "NAME" for an argument without one. The
  // target outlives the parse.
  CommandOption AddOption(const std::string& names, OptionTarget target,
                          const std::string& text);
  CommandOption option(const std::string& name);  // "--name", declared before
  // "!--no-name" in names sets *target to false.
  CommandOption AddFlag(const std::string& names, bool* target,
                        const std::string& text);
  // A line end at its beginning is left out: a raw string begins on a line of
  // its own.
  void SetFooter(const std::string& text);
  // One of its commands must be given.
  void RequireCommand();
  // Options that this command does not know are those of the one above it.
  void PassOptionsUp();
  Command Hide();

  bool parsed() const;  // it was on the command line
  std::string name() const;
  std::string full_name() const;  // with those above: "penstock job weights"
  std::string text() const;
  std::string footer() const;
  std::vector<Command> commands() const;
  // Without those hidden.
  std::vector<DeclaredOption> options() const;
  std::string Help() const;

 protected:
  CLI::App* app_;
};

class CommandLine : public Command {
 public:
  explicit CommandLine(const std::string& name, const std::string& text = "");
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  void SetText(const std::string& text);
  // What --version prints.
  void SetVersion(const std::string& text);

  // True: go on. False: --help or --version was asked for, and is printed.
  // InvalidArgument: wrong usage.
  StatusOr<bool> Parse(int argc, const char* const* argv);
  // Ends the program with 0 after --help, with 2 and a line on standard error
  // after wrong usage.
  void ParseOrExit(int argc, const char* const* argv);

  // After Parse: the commands that were given, and the words that nothing took.
  std::vector<Command> given() const;
  std::vector<std::string> unknown() const;

 private:
  std::unique_ptr<CLI::App> owned_;
};

template <typename T>
CommandOption CommandOption::InRange(T min, T max) const {
  return Check([min, max](const std::string& text) -> std::string {
    T number{};
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc{} && rest == end && number >= min && number <= max) {
      return "";
    }
    return Format(
        "wanted {} {}, found '{}'", min,
        max == std::numeric_limits<T>::max() ? "or more" : Format("to {}", max),
        Printable(text));
  });
}

}  // namespace penstock
#endif  // COMMON_COMMAND_LINE_H_
