#include "common/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace penstock {
namespace {

// "--no-row", of which CLI11 makes "--no-row{false}".
std::string NameToShow(std::string name) {
  if (const size_t value = name.find('{'); value != std::string::npos) {
    name.erase(value);
  }
  return name;
}

class HelpText : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option,
                               bool is_positional) const override {
    return NameToShow(CLI::Formatter::make_option_name(option, is_positional));
  }
};

}  // namespace

CommandOption CommandOption::Type(const std::string& name) const {
  option_->type_name(name);
  return *this;
}

CommandOption CommandOption::Required() const {
  option_->required();
  return *this;
}

CommandOption CommandOption::ShowDefault() const {
  option_->capture_default_str();
  return *this;
}

CommandOption CommandOption::Hide() const {
  option_->group("");
  return *this;
}

CommandOption CommandOption::Check(
    std::function<std::string(const std::string&)> check) const {
  option_->check(std::move(check));
  return *this;
}

CommandOption CommandOption::OneOf(std::vector<std::string> values) const {
  option_->check(CLI::IsMember(std::move(values)));
  return *this;
}

CommandOption CommandOption::Excludes(CommandOption other) const {
  option_->excludes(other.option_);
  return *this;
}

CommandOption CommandOption::Needs(CommandOption other) const {
  option_->needs(other.option_);
  return *this;
}

CommandOption CommandOption::ValueIsOptional() const {
  option_->expected(0, 1);
  return *this;
}

CommandOption CommandOption::OneValueEachTime() const {
  option_->expected(1)->take_all();
  return *this;
}

bool CommandOption::given() const { return option_->count() > 0; }

Command Command::AddCommand(const std::string& name, const std::string& text) {
  CLI::App* const command = app_->add_subcommand(name, text);
  command->footer("");  // else it has that of this one
  return Command(command);
}

CommandOption Command::AddOption(const std::string& names, OptionTarget target,
                                 const std::string& text) {
  return std::visit(
      [&](auto* value) {
        return CommandOption(app_->add_option(names, *value, text));
      },
      target);
}

CommandOption Command::AddFlag(const std::string& names, bool* target,
                               const std::string& text) {
  return CommandOption(app_->add_flag(names, *target, text));
}

CommandOption Command::option(const std::string& name) {
  return CommandOption(app_->get_option(name));
}

void Command::SetFooter(const std::string& text) {
  app_->footer(text.substr(text.starts_with('\n') ? 1 : 0));
}
void Command::RequireCommand() { app_->require_subcommand(1); }
void Command::PassOptionsUp() { app_->fallthrough(); }
Command Command::Hide() {
  app_->group("");
  return *this;
}

bool Command::parsed() const { return app_->parsed(); }
std::string Command::name() const { return app_->get_name(); }

std::string Command::full_name() const {
  std::string name = app_->get_name();
  for (const CLI::App* above = app_->get_parent(); above != nullptr;
       above = above->get_parent()) {
    name = above->get_name() + " " + name;
  }
  return name;
}

std::string Command::text() const { return app_->get_description(); }
std::string Command::footer() const { return app_->get_footer(); }

std::vector<Command> Command::commands() const {
  std::vector<Command> commands;
  for (CLI::App* app : app_->get_subcommands(nullptr)) {
    commands.emplace_back(app);
  }
  return commands;
}

std::vector<DeclaredOption> Command::options() const {
  std::vector<DeclaredOption> options;
  for (const CLI::Option* option : app_->get_options(nullptr)) {
    if (option->get_group().empty()) continue;
    DeclaredOption declared;
    declared.positional = option->get_positional();
    // Long before short.
    declared.name = declared.positional
                        ? option->get_name(true)
                        : NameToShow(option->get_name(false, true));
    declared.long_names = option->get_lnames();
    if (option->get_items_expected_max() > 0) {
      declared.value = option->get_type_name();
      if (!option->get_default_str().empty()) {
        declared.value += " (" + option->get_default_str() + ")";
      }
    }
    declared.text = option->get_description();
    declared.several = option->get_expected_max() > 1;
    declared.required = option->get_required();
    options.push_back(std::move(declared));
  }
  return options;
}

std::string Command::Help() const {
  // App::help is that of the command which was given.
  return app_->get_formatter()->make_help(app_, app_->get_name(),
                                          CLI::AppFormatMode::Normal);
}

CommandLine::CommandLine(const std::string& name, const std::string& text)
    : Command(nullptr), owned_(std::make_unique<CLI::App>(text, name)) {
  app_ = owned_.get();
  app_->formatter(std::make_shared<HelpText>());
}

CommandLine::~CommandLine() = default;

void CommandLine::SetText(const std::string& text) { app_->description(text); }

void CommandLine::SetVersion(const std::string& text) {
  app_->set_version_flag("--version", text);
}

StatusOr<bool> CommandLine::Parse(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      return InvalidArgumentError("{}", error.what());
    }
    app_->exit(error);
    return false;
  }
  return true;
}

void CommandLine::ParseOrExit(int argc, const char* const* argv) {
  const StatusOr<bool> parsed = Parse(argc, argv);
  if (!parsed.ok()) {
    Print(stderr, "{}: {}; see --help\n", name(), parsed.status().message());
    std::exit(2);
  }
  if (!*parsed) std::exit(0);
}

std::vector<Command> CommandLine::given() const {
  std::vector<Command> commands;
  for (CLI::App* app : app_->get_subcommands()) commands.emplace_back(app);
  return commands;
}

std::vector<std::string> CommandLine::unknown() const {
  return app_->remaining(true);
}

}  // namespace penstock
