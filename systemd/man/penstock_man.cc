// Writes what is made of the declared command line of `penstock`: penstock(1),
// and its completion for bash.
//
//   penstock_man DATE FOLDER
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "client/command/recipe.h"
#include "client/command/subcommand.h"
#include "common/command_line.h"
#include "common/format.h"
#include "systemd/man/man_page.h"

namespace penstock {
namespace {

// A command, and those below it. name: behind `penstock`.
void AddCommand(const Command& command, const std::string& name,
                ManPage* page) {
  page->Subsection(name).Synopsis(
      command, name == "run" ? "-- COMMAND [ARGUMENT]..." : "");
  page->Paragraph(command.text() + ".");
  page->Options(command);
  if (!command.footer().empty()) page->Example(command.footer());
  for (const Command& below : command.commands()) {
    AddCommand(below, name + " " + below.name(), page);
  }
}

std::string Page(const Command& line, const std::string& date) {
  ManPage page("penstock", 1,
               "feeds the trainers of a host from one data loader", date);
  page.Section("SYNOPSIS").Synopsis(line);
  page.Section("DESCRIPTION")
      .Paragraph(
          "One broker reads and decodes the samples of a dataset once, and "
          "hands finished batches to all trainer processes (ranks) of the host "
          "through shared memory. `penstock` starts such a broker for one "
          "command, or talks to the one that runs as a service, penstockd(8). "
          "What a dataset is says its spec, penstock-spec(5).")
      .Example(line.footer());
  page.Section("OPTIONS").Options(line);
  page.Section("COMMANDS");
  for (const Command& command : line.commands()) {
    AddCommand(command, command.name(), &page);
  }
  page.Section("EXIT STATUS")
      .Item("0", "", "Success.")
      .Item("1", "", "Failure.")
      .Item("2", "", "Wrong usage.")
      .Item("128 + N", "", "A signal with the number N ended it.")
      .Paragraph("`penstock run` passes on the exit status of its command.");
  page.Section("ENVIRONMENT")
      .Item("PENSTOCK_SOCKET", "",
            "Socket of the broker, for this command and for trainers. "
            "Default: /run/penstock/penstock.sock.")
      .Item("PENSTOCK_DATASET", "",
            "The spec, or the registered name, of a trainer that names none.")
      .Item("PENSTOCK_JOB", "",
            "Name of the job. Default: what the launcher says.")
      .Item(
          "PENSTOCK_RANK, PENSTOCK_WORLD_SIZE, PENSTOCK_LOCAL_RANK, "
          "PENSTOCK_LOCAL_WORLD_SIZE",
          "",
          "Which rank a process is, before what MPI, Slurm or torchrun say.")
      .Item("PENSTOCK_STATE", "",
            "A file with the state that the job begins at.")
      .Item("PENSTOCK_CACHE_DIR", "",
            "Where a private broker keeps the indexes of datasets. Default: "
            "penstock in XDG_CACHE_HOME, or in ~/.cache.")
      .Item(
          "PENSTOCK_PYTHON_PATH, PENSTOCK_PYTHON, PENSTOCK_PYTHON_TIMEOUT, "
          "PENSTOCK_PLUGIN_DIR",
          "",
          "The keys python_path, python, python_timeout and plugin_dir of "
          "penstockd(8), for private brokers.");
  page.SeeAlso("penstock-spec(5), penstockd(8)");
  return page.text();
}

void AddLongNames(const Command& command, std::set<std::string>* names) {
  for (const DeclaredOption& option : command.options()) {
    for (const std::string& name : option.long_names) {
      names->insert("--" + name);
    }
  }
}

// The long options of a command and of those below it.
std::string LongNames(const Command& command) {
  std::set<std::string> names;
  AddLongNames(command, &names);
  for (const Command& below : command.commands()) {
    AddLongNames(below, &names);
  }
  return JoinText(names, " ");
}

std::string NamesBelow(const Command& command) {
  std::string names;
  for (const Command& below : command.commands()) {
    names += (names.empty() ? "" : " ") + below.name();
  }
  return names;
}

// Exits with an error if one of the recipes has a mistake.
std::string RecipeNames() {
  const StatusOr<std::vector<Recipe>> recipes = AllRecipes();
  if (!recipes.ok()) {
    PrintError(recipes.status().message());
    exit(1);
  }
  std::string names;
  for (const Recipe& each : *recipes) {
    names += (names.empty() ? "" : " ") + each.name;
  }
  return names;
}

// Options of the command that is in the line; else the names of files, which
// specs are.
std::string Completion(const Command& line) {
  std::set<std::string> own;
  AddLongNames(line, &own);
  std::string cases;
  for (const Command& command : line.commands()) {
    const std::string below = NamesBelow(command);
    cases += Format("    {}) options=\"{}\"{} ;;\n", command.name(),
                    LongNames(command),
                    below.empty() ? "" : Format(" words=\"{}\"", below));
  }
  return Format(
      "# Completion of bash for penstock(1). Made from its declarations.\n"
      "_penstock() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}} "
      "options words= i\n"
      "  COMPREPLY=()\n"
      "  # What `run` starts completes as any command.\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    [[ ${{COMP_WORDS[i]}} == -- ]] && return\n"
      "  done\n"
      "  if ((COMP_CWORD == 1)); then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"{} {}\" -- \"$current\")\n"
      "    return\n"
      "  fi\n"
      "  case $command in\n"
      "{}"
      "    *) options= ;;\n"
      "  esac\n"
      "  if [[ $current == -* ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$current\")\n"
      "  elif ((COMP_CWORD == 2)); then\n"
      "    [[ $command == help ]] && words=\"spec config messages\"\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
      "  elif [[ $command == recipe && $COMP_CWORD == 3 ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"{}\" -- \"$current\")\n"
      "  fi\n"
      "}}\n"
      "complete -o default -F _penstock penstock\n",
      NamesBelow(line), JoinText(own, " "), cases, RecipeNames());
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string folder = argv[2];
  penstock::CommandLine line("penstock");
  penstock::DeclareCommand(line, {});
  penstock::WriteFile(folder + "/penstock.1", penstock::Page(line, argv[1]));
  penstock::WriteFile(folder + "/penstock.bash", penstock::Completion(line));
  return 0;
}
