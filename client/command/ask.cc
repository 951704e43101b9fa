// penstock register, unregister, datasets, jobs and status: questions to a
// running broker. Any field of its answers may be missing or of another type,
// and is then shown as '-'.
#include <CLI/CLI.hpp>
#include <functional>

#include "client/command/control_call.h"
#include "client/command/json_field.h"
#include "client/command/spec_file.h"
#include "client/command/subcommand.h"
#include "client/command/table.h"
#include "common/message.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

struct AskOptions {
  std::string socket;
  bool json = false;
  std::string spec;      // register
  bool replace = false;  // register
  std::string dataset;   // unregister
};

// ---- fields as cells

std::string TextCell(const Json& object, const char* key) {
  return TextField(object, key, "-");
}
std::string CountCell(const Json& object, const char* key) {
  const std::optional<uint64_t> count = CountField(object, key);
  return count ? FormatCount(*count) : "-";
}
std::string BytesCell(const Json& object, const char* key) {
  const std::optional<uint64_t> bytes = CountField(object, key);
  return bytes ? FormatBytes(*bytes) : "-";
}
std::string SecondsCell(const Json& object, const char* key) {
  const std::optional<double> seconds = NumberField(object, key);
  return seconds ? FormatSeconds(*seconds) : "-";
}
// "3/90"; "3" when the whole is unknown or unlimited.
std::string PartCell(const Json& object, const char* part, const char* whole) {
  const uint64_t all = CountField(object, whole).value_or(0);
  const std::string text = CountCell(object, part);
  return all > 0 && text != "-" ? text + "/" + FormatCount(all) : text;
}

// ---- tables

void PrintJobs(const Json& answer) {
  Table table({"JOB", "DATASET", "DELIVERY", "STATE", ">UID", ">RANKS",
               ">EPOCH", ">STEP", ">ROWS", ">SKIPPED", ">SUBSTITUTED", ">READ",
               ">MEMORY"});
  for (const Json& job : ArrayField(answer, "jobs")) {
    table.AddRow(
        {TextCell(job, "job"), TextCell(job, "dataset"),
         TextCell(job, "delivery"), TextCell(job, "state"),
         CountField(job, "uid") ? std::to_string(*CountField(job, "uid")) : "-",
         CountCell(job, "world_size"), PartCell(job, "epoch", "epochs"),
         PartCell(job, "step", "steps_per_epoch"), CountCell(job, "rows"),
         CountCell(job, "rows_skipped"), CountCell(job, "rows_substituted"),
         BytesCell(job, "bytes_read"), BytesCell(job, "memory_bytes")});
  }
  Print(stdout, "{}", table.empty() ? "no jobs\n" : table.ToString());
  for (const Json& job : ArrayField(answer, "jobs")) {
    for (const char* key : {"last_error", "warning"}) {
      if (const std::string text = TextField(job, key); !text.empty()) {
        Print(stdout, "\n{}: {}\n", Printable(TextCell(job, "job")),
              Printable(text));
      }
    }
  }
}

void PrintDatasets(const Json& answer) {
  Table table({"DATASET", "SOURCE", ">UID"});
  for (const Json& dataset : ArrayField(answer, "datasets")) {
    table.AddRow({TextCell(dataset, "name"), TextCell(dataset, "source"),
                  CountField(dataset, "uid")
                      ? std::to_string(*CountField(dataset, "uid"))
                      : "-"});
  }
  Print(stdout, "{}", table.empty() ? "no datasets\n" : table.ToString());
}

void PrintStatus(const Json& answer) {
  const Json& broker = FieldOf(answer, "broker");
  const auto line = [](const char* what, const std::string& value) {
    Print(stdout, "{:<8} {}\n", what, Printable(value));
  };
  const std::optional<uint64_t> pid = CountField(broker, "pid");
  const Json& is_private = FieldOf(broker, "private");
  line("broker",
       Format(
           "penstockd {} (pid {}){}, up {}, CPU {}",
           TextCell(broker, "version"), pid ? std::to_string(*pid) : "-",
           is_private.is_boolean() && is_private.get<bool>() ? ", private" : "",
           SecondsCell(broker, "uptime_s"), SecondsCell(broker, "cpu_s")));
  line("socket", TextCell(broker, "socket"));
  const std::string chosen = TextField(broker, "workers_chosen");
  line("workers",
       CountCell(broker, "workers") + (chosen.empty() ? "" : " " + chosen));
  const Json& automatic = FieldOf(broker, "read_depth_auto");
  line(
      "reading",
      Format("{}, {} reads in flight at most{}",
             TextCell(broker, "read_backend"), CountCell(broker, "read_depth"),
             automatic.is_boolean() && automatic.get<bool>() ? " (auto)" : ""));
  line("memory", BytesCell(broker, "memory_bytes") + " for all jobs");
  std::string nodes;
  for (const Json& node : ArrayField(broker, "nodes")) {
    nodes +=
        Format("; node {}: processors {}, {}, {} workers",
               CountCell(node, "node"), TextCell(node, "cpus"),
               BytesCell(node, "memory_bytes"), CountCell(node, "workers"));
  }
  if (ArrayField(broker, "nodes").size() > 1) {
    line("NUMA", TextCell(broker, "numa") + nodes);
  }
  if (const std::string trouble = TextField(broker, "journal");
      !trouble.empty()) {
    line("journal", trouble);
  }
  Print(stdout, "\n");
  PrintJobs(answer);

  // The bottleneck: where the broker's time goes, and each rank's.
  for (const Json& job : ArrayField(answer, "jobs")) {
    const std::string text = TextField(FieldOf(job, "bottleneck"), "text");
    if (text.empty()) continue;
    Print(stdout, "\n{}: {}\n", Printable(TextCell(job, "job")),
          Printable(text));
  }
  Table producers({"JOB", ">PRODUCER", ">PID", "STATE", ">ROWS PUT", ">KEPT",
                   ">ROOM", ">MEMORY"});
  Table stalls({"JOB", "IO", ">READS", ">CACHED", ">READ WAIT", ">DECODE"});
  Table ranks({"JOB", ">RANK", ">PID", "STATE", ">READY", ">HELD", ">TAKEN",
               ">MISSED", ">WAITS", ">WAITED", ">SILENT"});
  for (const Json& job : ArrayField(answer, "jobs")) {
    const uint64_t reads = CountField(job, "reads").value_or(0);
    const uint64_t cached = CountField(job, "reads_cached").value_or(0);
    const std::string io = TextField(job, "io");
    stalls.AddRow(
        {TextCell(job, "job"), io.empty() ? "-" : io, CountCell(job, "reads"),
         reads == 0 ? "-" : Format("{} %", 100 * cached / reads),
         SecondsCell(job, "read_wait_s"), SecondsCell(job, "decode_s")});
    for (const Json& rank : ArrayField(job, "ranks")) {
      const std::optional<uint64_t> rank_pid = CountField(rank, "pid");
      ranks.AddRow({TextCell(job, "job"), CountCell(rank, "rank"),
                    rank_pid ? std::to_string(*rank_pid) : "-",
                    TextCell(rank, "state"), CountCell(rank, "ready"),
                    CountCell(rank, "held"), CountCell(rank, "taken"),
                    CountCell(rank, "skipped"), CountCell(rank, "waits"),
                    SecondsCell(rank, "wait_s"),
                    SecondsCell(rank, "silent_s")});
    }
  }
  for (const Json& job : ArrayField(answer, "jobs")) {
    for (const Json& each : ArrayField(job, "producers")) {
      const std::optional<uint64_t> each_pid = CountField(each, "pid");
      const Json& waits = FieldOf(each, "waits_for_room");
      producers.AddRow(
          {TextCell(job, "job"), CountCell(each, "producer"),
           each_pid ? std::to_string(*each_pid) : "-",
           waits.is_boolean() && waits.get<bool>() ? "waits for room"
                                                   : TextCell(each, "state"),
           CountCell(each, "rows_put"), CountCell(each, "rows_kept"),
           CountCell(each, "room_rows"), BytesCell(each, "memory_bytes")});
    }
  }
  if (!stalls.empty()) Print(stdout, "\n{}", stalls.ToString());
  if (!ranks.empty()) Print(stdout, "\n{}", ranks.ToString());
  if (!producers.empty()) Print(stdout, "\n{}", producers.ToString());
  for (const Json& read : ArrayField(answer, "late_reads")) {
    Print(stdout, "\nstorage: job '{}' waits {} for '{}'\n",
          Printable(TextCell(read, "job")), SecondsCell(read, "seconds"),
          Printable(TextCell(read, "file")));
  }
}

// ---- subcommands

StatusOr<int> Ask(const AskOptions& options, const char* op,
                  const std::function<void(const Json&)>& print) {
  PENSTOCK_ASSIGN_OR_RETURN(
      const Json answer, CallBroker(SocketPath(options.socket), {{"op", op}}));
  if (options.json) {
    Print(stdout, "{}\n", JsonLine(answer));
  } else {
    print(answer);
  }
  return 0;
}

StatusOr<int> Register(const AskOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const SpecFile file, ReadSpecFile(options.spec));
  Json request = file.Request("register");
  request["replace"] = options.replace;
  PENSTOCK_ASSIGN_OR_RETURN(const Json answer,
                            CallBroker(SocketPath(options.socket), request));
  if (options.json) {
    Print(stdout, "{}\n", JsonLine(answer));
  } else {
    Print(stdout, "registered dataset '{}'\n",
          Printable(TextField(answer, "dataset")));
  }
  return 0;
}

StatusOr<int> Unregister(const AskOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(
      const Json answer,
      CallBroker(SocketPath(options.socket),
                 {{"op", "unregister"}, {"dataset", options.dataset}}));
  if (options.json) {
    Print(stdout, "{}\n", JsonLine(answer));
  } else {
    Print(stdout, "unregistered dataset '{}'\n", Printable(options.dataset));
  }
  return 0;
}

std::shared_ptr<AskOptions> AddAskOptions(CLI::App* app) {
  const auto options = std::make_shared<AskOptions>();
  app->add_option("--socket", options->socket,
                  "Where the broker listens (default: PENSTOCK_SOCKET, else " +
                      std::string(kDefaultSocketPath) + ")")
      ->type_name("PATH");
  app->add_flag("--json", options->json, "Print one JSON object");
  app->footer(Format("Examples:\n  penstock {0}\n  penstock {0} --json",
                     app->get_name()));
  return options;
}

}  // namespace

Subcommand AddRegister(CLI::App& app) {
  CLI::App* const add = app.add_subcommand(
      "register",
      "Register a dataset with a running broker, under the spec's name");
  const std::shared_ptr<AskOptions> options = AddAskOptions(add);
  add->add_option("SPEC.yaml", options->spec, "Spec of the dataset")
      ->required();
  add->add_flag("--replace", options->replace,
                "Replace another spec registered under this name; running jobs "
                "keep theirs");
  add->footer(
      "Relative paths in the spec start from the spec's folder. The broker "
      "must be\n"
      "able to read them. It keeps the dataset over a restart.\n"
      "\n"
      "Example:\n"
      "  penstock register train.yaml");
  return {add, [options] { return Register(*options); }};
}

Subcommand AddUnregister(CLI::App& app) {
  CLI::App* const remove = app.add_subcommand(
      "unregister",
      "Remove a dataset from a running broker; its jobs continue");
  const std::shared_ptr<AskOptions> options = AddAskOptions(remove);
  remove->add_option("DATASET", options->dataset, "Name of the dataset")
      ->required();
  remove->footer("Example:\n  penstock unregister train");
  return {remove, [options] { return Unregister(*options); }};
}

Subcommand AddDatasets(CLI::App& app) {
  CLI::App* const datasets =
      app.add_subcommand("datasets", "List a running broker's datasets");
  const std::shared_ptr<AskOptions> options = AddAskOptions(datasets);
  return {datasets,
          [options] { return Ask(*options, "datasets", PrintDatasets); }};
}

Subcommand AddJobs(CLI::App& app) {
  CLI::App* const jobs =
      app.add_subcommand("jobs", "List a running broker's jobs");
  const std::shared_ptr<AskOptions> options = AddAskOptions(jobs);
  return {jobs, [options] { return Ask(*options, "jobs", PrintJobs); }};
}

Subcommand AddStatus(CLI::App& app) {
  CLI::App* const status = app.add_subcommand(
      "status", "Show a running broker, its jobs and what each waits for");
  const std::shared_ptr<AskOptions> options = AddAskOptions(status);
  return {status, [options] { return Ask(*options, "status", PrintStatus); }};
}

}  // namespace penstock
