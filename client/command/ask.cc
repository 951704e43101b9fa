// penstock register, unregister, datasets, jobs and status: questions to a
// running broker. Any field of its answers may be missing or of another type,
// and is then shown as '-'.
#include <algorithm>
#include <functional>
#include <set>

#include "client/command/job_options.h"
#include "client/command/spec_file.h"
#include "client/command/subcommand.h"
#include "client/private_broker/control_call.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/table.h"
#include "common/command_line.h"
#include "common/quantity.h"
#include "common/status_fields.h"

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

std::string CountCell(const Json& object, const AnswerField& field) {
  const std::optional<uint64_t> count =
      CountField(object, std::string(field.key).c_str());
  if (!count) return "-";
  if (field.of.empty()) return FormatCount(*count);
  const uint64_t all =
      CountField(object, std::string(field.of).c_str()).value_or(0);
  if (!field.table.empty()) {
    return all == 0 ? "-" : Format("{} %", 100 * *count / all);
  }
  return FormatCount(*count) + (all > 0 ? "/" + FormatCount(all) : "");
}

// '-': the field is missing or of another type.
std::string Cell(const Json& object, const AnswerField& field) {
  const std::string key(field.key);
  const std::optional<uint64_t> count = CountField(object, key.c_str());
  const std::optional<double> number = NumberField(object, key.c_str());
  switch (field.type) {
    case FieldType::kText: {
      const std::string text = TextField(object, key.c_str());
      return text.empty() ? "-" : text;
    }
    case FieldType::kCount:
      return CountCell(object, field);
    case FieldType::kId:
      return count ? std::to_string(*count) : "-";
    case FieldType::kBytes:
      return count ? FormatBytes(*count) : "-";
    case FieldType::kSeconds:
      return number ? FormatSeconds(*number) : "-";
    case FieldType::kFraction:
      return number ? Format("{:.1f} %", 100 * *number) : "-";
    case FieldType::kNumber:
      return number ? Format("{:.2f}", *number) : "-";
    default:
      return "-";
  }
}

std::string CellOf(std::string_view object, const Json& json,
                   std::string_view key) {
  return Cell(json, *std::ranges::find(StatusObjectOf(object).fields, key,
                                       &AnswerField::key));
}

// ---- tables

// The fields that tell the answer's jobs apart: several datasets or users may
// have jobs of one name.
std::vector<std::string> NamingFields(const Json& answer) {
  std::vector<std::string> fields = {"job"};
  for (const char* const key : {"dataset", "uid"}) {
    std::set<Json> values;
    for (const Json& job : ArrayField(answer, "jobs")) {
      values.insert(FieldOf(job, key));
    }
    if (values.size() > 1) fields.emplace_back(key);
  }
  return fields;
}

// The columns of an object's fields, behind those that name their job.
class StatusTable {
 public:
  // of_job: fields of the job that name it, which have the first columns.
  // without: a field that has no column.
  StatusTable(std::string_view object, std::string_view table,
              const std::vector<std::string>& of_job,
              std::string_view without = "")
      : table_({}) {
    std::vector<std::string> headings;
    for (const AnswerField& field : StatusObjectOf("job").fields) {
      if (std::count(of_job.begin(), of_job.end(), field.key) == 0) continue;
      of_job_.push_back(&field);
      headings.emplace_back(field.column);
    }
    for (const AnswerField& field : StatusObjectOf(object).fields) {
      if (field.column.empty() || field.table != table ||
          field.key == without) {
        continue;
      }
      fields_.push_back(&field);
      headings.emplace_back(field.column);
    }
    table_ = Table(std::move(headings));
  }

  void Add(const Json& job, const Json& object) {
    std::vector<std::string> cells;
    for (const AnswerField* field : of_job_) {
      cells.push_back(Cell(job, *field));
    }
    for (const AnswerField* field : fields_) {
      cells.push_back(Cell(object, *field));
    }
    table_.AddRow(std::move(cells));
  }
  bool empty() const { return table_.empty(); }
  std::string ToString() const { return table_.ToString(); }

 private:
  std::vector<const AnswerField*> of_job_;
  std::vector<const AnswerField*> fields_;
  Table table_;
};

void PrintOfJob(const Json& answer, const Json& job, const std::string& text) {
  if (text.empty()) return;
  Print(stdout, "\n{}: {}\n", Printable(JobTitle(answer, job)),
        Printable(text));
}

void PrintJobs(const Json& answer) {
  StatusTable table("job", "", {});
  for (const Json& job : ArrayField(answer, "jobs")) table.Add(job, job);
  Print(stdout, "{}", table.empty() ? "no jobs\n" : table.ToString());
  for (const Json& job : ArrayField(answer, "jobs")) {
    for (const char* key : {"last_error", "warning"}) {
      PrintOfJob(answer, job, TextField(job, key));
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

void PrintBroker(const Json& broker, const Json& stores) {
  const auto line = [](const char* what, const std::string& value) {
    Print(stdout, "{:<8} {}\n", what, Printable(value));
  };
  const auto cell = [&broker](std::string_view key) {
    return CellOf("broker", broker, key);
  };
  line("broker", Format("penstockd {} (pid {}){}, up {}, CPU {}",
                        cell("version"), cell("pid"),
                        FieldOf(broker, "private") == true ? ", private" : "",
                        cell("uptime_s"), cell("cpu_s")));
  line("socket", cell("socket"));
  const std::string chosen = TextField(broker, "workers_chosen");
  line("workers", cell("workers") + (chosen.empty() ? "" : " " + chosen));
  line("reading",
       Format("{}, {} reads in flight at most ({})", cell("read_backend"),
              cell("read_depth"), cell("read_depth_chosen")));
  line("sandbox", cell("sandbox"));
  if (!stores.empty()) {
    const auto of = [&stores](std::string_view key) {
      return CellOf("stores", stores, key);
    };
    line("stores",
         Format("{} fetched, {}/s, {} requests in flight, {} queued; {} "
                "retries, {} of them throttled; copies: {} of {}",
                of("bytes"), of("bytes_per_s"), of("in_flight"), of("queued"),
                of("retries"), of("throttled"), of("copies_bytes"),
                of("copies_room_bytes")));
  }
  const uint64_t hidden = CountField(broker, "hidden_jobs").value_or(0);
  line("memory",
       cell("memory_bytes") + " for all jobs" +
           (hidden == 0 ? "" : Format(", {} of them of other users", hidden)));
  const Json& nodes = ArrayField(broker, "nodes");
  std::string text;
  for (const Json& node : nodes) {
    const auto of_node = [&](size_t i) {
      return Cell(node, StatusObjectOf("node").fields[i]);
    };
    text += Format("; node {}: processors {}, {}, {}", of_node(0), of_node(1),
                   of_node(2), Counted(of_node(3), "worker"));
  }
  if (nodes.size() > 1) line("NUMA", cell("numa") + text);
  if (const std::string trouble = TextField(broker, "journal");
      !trouble.empty()) {
    line("journal", trouble);
  }
}

void PrintStatus(const Json& answer) {
  PrintBroker(FieldOf(answer, "broker"), FieldOf(answer, "stores"));
  Print(stdout, "\n");
  PrintJobs(answer);
  const std::vector<std::string> of_job = NamingFields(answer);
  StatusTable reading("job", "reading", of_job);
  StatusTable caches("job", "cache", of_job);
  StatusTable remote("remote", "", of_job);
  StatusTable remote_rows("remote rows", "", of_job);
  StatusTable makers("maker", "", {});
  const Json& jobs = ArrayField(answer, "jobs");
  const bool any_replicas =
      std::any_of(jobs.begin(), jobs.end(), [](const Json& job) {
        return CountField(job, "replicas").value_or(1) > 1;
      });
  StatusTable ranks("rank", "", of_job, any_replicas ? "" : "replica");
  StatusTable parts("part", "", of_job);
  StatusTable producers("producer", "", of_job);
  for (const Json& job : jobs) {
    // Where the broker's time goes, and each rank's.
    PrintOfJob(answer, job, TextField(FieldOf(job, "bottleneck"), "text"));
    reading.Add(job, job);
    if (job.contains("cache")) caches.Add(job, job);
    if (job.contains("remote")) remote.Add(job, job["remote"]);
    if (job.contains("remote_rows")) remote_rows.Add(job, job["remote_rows"]);
    for (const Json& rank : ArrayField(job, "ranks")) ranks.Add(job, rank);
    for (const Json& each : ArrayField(job, "parts")) parts.Add(job, each);
    for (const Json& each : ArrayField(job, "producers")) {
      producers.Add(job, each);
    }
  }
  for (const Json& maker : ArrayField(answer, "makers")) {
    makers.Add(maker, maker);
  }
  for (const StatusTable* table : {&reading, &caches, &remote, &remote_rows,
                                   &makers, &parts, &ranks, &producers}) {
    if (!table->empty()) Print(stdout, "\n{}", table->ToString());
  }
  for (const Json& read : ArrayField(answer, "late_reads")) {
    Print(stdout, "\nstorage: job '{}' waits {} for '{}'\n",
          Printable(TextCell(read, "job")),
          FormatSeconds(NumberField(read, "seconds").value_or(-1)),
          Printable(TextCell(read, "file")));
  }
}

// ---- subcommands

StatusOr<int> Ask(const AskOptions& options, const Json& request,
                  const std::function<void(const Json&)>& print) {
  PENSTOCK_ASSIGN_OR_RETURN(const Json answer,
                            CallBroker(options.socket, request));
  options.json ? PrintJson(answer) : print(answer);
  return 0;
}

StatusOr<int> Register(const AskOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const SpecFile file, ReadSpecFile(options.spec));
  Json request = file.Request("register");
  request["replace"] = options.replace;
  return Ask(options, request, [](const Json& answer) {
    Print(stdout, "registered dataset '{}'\n",
          Printable(TextField(answer, "dataset")));
  });
}

StatusOr<int> Unregister(const AskOptions& options) {
  return Ask(options, {{"op", "unregister"}, {"dataset", options.dataset}},
             [&](const Json&) {
               Print(stdout, "unregistered dataset '{}'\n",
                     Printable(options.dataset));
             });
}

std::shared_ptr<AskOptions> AddAskOptions(Command command) {
  const auto options = std::make_shared<AskOptions>();
  AddSocketOption(command, &options->socket);
  command.AddFlag("--json", &options->json, "Print one JSON object");
  command.SetFooter(Format("Examples:\n  penstock {0}\n  penstock {0} --json",
                           command.name()));
  return options;
}

}  // namespace

Subcommand AddRegister(Command parent) {
  Command add = parent.AddCommand(
      "register",
      "Register a dataset with a running broker, under the spec's name");
  const std::shared_ptr<AskOptions> options = AddAskOptions(add);
  add.AddOption("SPEC.yaml", &options->spec, "Spec of the dataset").Required();
  add.AddFlag("--replace", &options->replace,
              "Replace another spec registered under this name; running jobs "
              "keep theirs");
  add.SetFooter(R"(
Relative paths in the spec start from the spec's folder. The broker must be
able to read them. The first job opens the data: until then only the spec is
checked (`penstock check` opens them too). The dataset is kept over a restart
of a broker with a state directory.

Example:
  penstock register train.yaml)");
  return {add, [options] { return Register(*options); }};
}

Subcommand AddUnregister(Command parent) {
  Command remove = parent.AddCommand(
      "unregister",
      "Remove a dataset from a running broker; its jobs continue");
  const std::shared_ptr<AskOptions> options = AddAskOptions(remove);
  remove.AddOption("DATASET", &options->dataset, "Name of the dataset")
      .Required();
  remove.SetFooter("Example:\n  penstock unregister train");
  return {remove, [options] { return Unregister(*options); }};
}

Subcommand AddDatasets(Command parent) {
  Command datasets =
      parent.AddCommand("datasets", "List a running broker's datasets");
  const std::shared_ptr<AskOptions> options = AddAskOptions(datasets);
  return {datasets, [options] {
            return Ask(*options, {{"op", "datasets"}}, PrintDatasets);
          }};
}

Subcommand AddJobs(Command parent) {
  Command jobs = parent.AddCommand("jobs", "List a running broker's jobs");
  const std::shared_ptr<AskOptions> options = AddAskOptions(jobs);
  return {jobs, [options] {
            return Ask(*options, {{"op", "jobs"}}, PrintJobs);
          }};
}

Subcommand AddStatus(Command parent) {
  Command status = parent.AddCommand(
      "status", "Show a running broker, its jobs and what each waits for");
  const std::shared_ptr<AskOptions> options = AddAskOptions(status);
  return {status, [options] {
            return Ask(*options, {{"op", "status"}}, PrintStatus);
          }};
}

}  // namespace penstock
