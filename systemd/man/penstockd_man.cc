// Writes the pages of what penstockd has declared: its command line and
// configuration and messages as penstockd(8), the messages as the journal's
// catalogue, the dataset spec as penstock-spec(5).
//
//   penstockd_man DATE FOLDER
#include <string>

#include "broker/arguments.h"
#include "broker/config.h"
#include "broker/declare/declaration.h"
#include "broker/declare/describe.h"
#include "broker/spec/dataset_spec.h"
#include "broker/spec/describe.h"
#include "common/command_line.h"
#include "common/format.h"
#include "systemd/man/man_page.h"

namespace penstock {
namespace {

using Field = DeclarationBase::Field;

void Keys(const DeclarationBase& declared, ManPage* page) {
  std::string one_of;
  for (const Field& field : declared.fields()) {
    if (field.one_of) one_of += (one_of.empty() ? "" : " or ") + field.key;
    page->Item(field.key, ValueOf(declared, field), field.text);
  }
  if (!one_of.empty()) {
    page->Paragraph("Give exactly one of " + one_of + ".");
  }
}

std::string DaemonPage(const std::string& date) {
  CommandLine line("penstockd");
  Arguments arguments;
  DeclareArguments(line, &arguments);
  ManPage page("penstockd", 8, "the Penstock broker, a data loader for a host",
               date);
  page.Section("SYNOPSIS").Synopsis(line);
  page.Section("DESCRIPTION").Paragraph(line.text());
  page.Paragraph(
      "The service is penstockd.service, started by the first client of "
      "penstockd.socket or at boot. Who may use it are the members of the "
      "group penstock. It reads what its user, penstock, may read: `setfacl "
      "-m u:penstock:rx FOLDER`, or a group, gives it data.");
  page.Section("OPTIONS").Options(line);
  page.Section("CONFIGURATION");
  page.Paragraph(
      "/etc/penstock/penstockd.yaml is one YAML document. Every key is "
      "optional. `penstockd --config FILE --check` names line and column of a "
      "mistake, and what this machine lacks. Options of the command line come "
      "before the file.");
  const Declaration<Config>& config = Config::Declared();
  for (const Field& field : config.fields()) {
    page.Item(
        field.key, ValueOf(config, field),
        field.text + (IsReloadable(field.key) ? " A reload applies a change."
                                              : " A change needs a restart."));
    for (const DeclarationBase* part : field.parts) {
      for (const Field& each : part->fields()) {
        page.Item(field.key + ": " + each.key, ValueOf(*part, each), each.text);
      }
    }
  }
  page.Section("RELOAD AND RESTART");
  page.Paragraph(
      "`systemctl reload penstockd` (SIGHUP) checks the file, then takes over "
      "the keys that say so. No batch of a running job is lost or made again: "
      "limits and functions are those of jobs and datasets that open "
      "afterwards, timeouts those of reads and samples from then on. The "
      "journal names the keys that changed and need a restart. A file with a "
      "mistake changes nothing, and the reload fails. A penstockd without "
      "--config, or with --private, ends at SIGHUP.");
  page.Paragraph(
      "`systemctl restart penstockd` loses no batch either: ranks reconnect, "
      "and go on where they were.");
  page.Section("MESSAGES");
  page.Paragraph(
      "Where standard error is systemd's journal, each message is one entry "
      "with fields: MESSAGE_ID, PENSTOCK_MESSAGE (its name below), and what is "
      "in capitals below as PENSTOCK_JOB, PENSTOCK_RANK and so on; that of a "
      "job has PENSTOCK_DATASET and PENSTOCK_UID too. `journalctl -x` "
      "explains them, `journalctl PENSTOCK_MESSAGE=sample-skipped` shows those "
      "of one kind, `journalctl PENSTOCK_JOB=train` those of one job. So many "
      "of one kind and job are written at once, then one in 30 seconds, with "
      "the number of those that are left out.");
  for (const LogMessage& message : kLogMessages) {
    page.Item(std::string(message.name), std::string(NameOf(message.level)),
              Format("\"{}\". {}", TextOf(message), message.advice));
  }
  page.Section("SIGNALS")
      .Item("SIGTERM, SIGINT", "",
            "Ends. Ranks wait for the next instance where one comes.")
      .Item("SIGHUP", "", "Reloads the configuration.");
  page.Section("EXIT STATUS")
      .Item("0", "", "It was asked to end, or the check found nothing.")
      .Item("1", "", "Failure; the last line on standard error says which.")
      .Item("2", "", "Wrong usage.")
      .Item("70", "",
            "A decoder hung: it ended itself, to be started again. The sample "
            "is treated as `on_error` says after the second time.");
  page.Section("ENVIRONMENT")
      .Item("PENSTOCK_SOCKET", "",
            "Where to listen, if nothing else says so. Default: "
            "/run/penstock/penstock.sock.")
      .Item(
          "PENSTOCK_PYTHON_PATH, PENSTOCK_PYTHON, PENSTOCK_PYTHON_TIMEOUT, "
          "PENSTOCK_PLUGIN_DIR",
          "",
          "As the keys python_path, python, python_timeout and plugin_dir, "
          "which come before.")
      .Item("PENSTOCK_CACHE_DIR", "", "As the key cache_dir.")
      .Item("PENSTOCK_SNAPSHOT_PATH", "",
            "As the key snapshot_path, which comes before.");
  page.Section("FILES")
      .Item("/etc/penstock/penstockd.yaml", "", "The configuration.")
      .Item("/run/penstock/penstock.sock", "", "The socket of clients.")
      .Item("/var/lib/penstock", "",
            "What outlives the daemon: registered datasets, jobs and their "
            "progress.")
      .Item("/var/cache/penstock", "",
            "Indexes of datasets, and rows that they keep on disk. They may be "
            "deleted at any time.");
  page.SeeAlso("penstock(1), penstock-spec(5), systemctl(1), journalctl(1)");
  return page.text();
}

std::string SpecPage(const std::string& date) {
  const DeclarationBase& spec = DatasetSpec::Declared();
  ManPage page("penstock-spec", 5, "describes a dataset and its delivery",
               date);
  page.Section("DESCRIPTION")
      .Paragraph(
          "A dataset spec is one YAML or JSON document. It says where the data "
          "are, in which order and batches they come, and what is done with "
          "each row. Paths in it start from the folder of its file. "
          "`penstock check FILE` says whether it parses, whether a row can be "
          "made of it, and what memory it needs.")
      .Example(spec.example());
  page.Section("KEYS");
  Keys(spec, &page);
  std::string key;
  for (const Described& each : AllDescribed()) {
    if (each.key != key) page.Section("VALUES OF " + (key = each.key));
    const DeclarationBase& declared = *each.declared;
    page.Subsection(declared.name()).Paragraph(declared.text());
    if (!declared.gives().empty()) {
      page.Paragraph("Gives: " + declared.gives());
    }
    if (!declared.brief().empty()) {
      page.Paragraph("Its value is " + declared.brief() +
                     ", or has these keys:");
    }
    Keys(declared, &page);
    page.Example(each.Example());
  }
  page.SeeAlso("penstock(1), penstockd(8)");
  return page.text();
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string folder = argv[2];
  penstock::WriteFile(folder + "/penstockd.8", penstock::DaemonPage(argv[1]));
  penstock::WriteFile(folder + "/penstock.catalog", penstock::MessageCatalog());
  penstock::WriteFile(folder + "/penstock-spec.5", penstock::SpecPage(argv[1]));
  return 0;
}
