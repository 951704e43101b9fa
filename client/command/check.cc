// penstock check and penstock index: the broker's view of specs, the memory
// their jobs will need, one row of each, and warnings.

#include "client/command/all_records.h"
#include "client/command/check_all.h"
#include "client/command/first_batch.h"
#include "client/command/output_file.h"
#include "client/command/penstockd_output.h"
#include "client/command/remote_cost.h"
#include "client/command/spec_file.h"
#include "client/command/subcommand.h"
#include "client/private_broker/interrupt.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/private_broker.h"
#include "client/private_broker/table.h"
#include "common/class_names.h"
#include "common/command_line.h"
#include "common/quantity.h"
#include "common/record_list.h"
#include "common/text_file.h"

namespace penstock {
namespace {

struct CheckOptions {
  std::vector<std::string> specs;
  int ranks = 1;     // processes
  int replicas = 1;  // of them that are one rank
  int hosts = 1;     // of equally many of them
  bool layouts = false;
  bool json = false;
  bool syntax = false;
  bool row = true;
  bool scan = true;
  bool all = false;
  std::string out = "broken.txt";
  PrivateBrokerOptions broker;
};

std::string ShapeText(const Feature& feature) {
  std::string text;
  for (const int64_t side : feature.shape) {
    text += Format("{}{}", text.empty() ? "" : " x ", side);
  }
  return text.empty() ? "scalar" : text;
}

// The first row of the first epoch, read and mapped for this.
struct TriedRow {
  Status status;
  nlohmann::json sample;  // its id
  uint64_t bytes = 0;     // read
  double seconds = 0;     // of reading and mapping
  // The error of a row before it, which the spec's on_error permits.
  std::string passed_over;

  nlohmann::json ToJson() const {
    if (!status.ok()) return {{"error", status.message()}};
    return {{"sample", sample}, {"bytes_read", bytes}, {"seconds", seconds}};
  }
};

// Takes it as `peek` does, from a job of one row. nullopt: its spec, with
// all keys and whole paths, is too long for a job.
std::optional<TriedRow> TryRow(PrivateBroker* broker,
                               nlohmann::ordered_json spec) {
  SetBatchSize(&spec, 1);
  spec["epochs"] = spec["steps_per_epoch"] = 1;
  spec["prefetch"] = spec["hold"] = 1;
  // A job fails when all of its rows are skipped. A document has no substitute.
  if (spec["on_error"] == "skip" && !spec["batch"].contains("pack")) {
    spec["on_error"] = "substitute";
  }
  const JobToTake job = {"", spec.dump(), UniqueJobName("check")};
  if (job.spec.size() > kSpecBytesMax) return std::nullopt;
  TriedRow row;
  const StatusOr<std::string> tried = WithFirstBatch(
      broker, job,
      [&](const ElementSpec&,
          const penstock_batch* batch) -> StatusOr<std::string> {
        PENSTOCK_ASSIGN_OR_RETURN(
            const nlohmann::json answer,
            CallBroker(broker->socket(), {{"op", "jobs"}}));
        for (const nlohmann::json& each : ArrayField(answer, "jobs")) {
          if (TextField(each, "job") != job.name) continue;
          return JsonLine({penstock_batch_ids(batch)[0],
                           CountField(each, "bytes_read").value_or(0),
                           NumberField(each, "read_wait_s").value_or(0) +
                               NumberField(each, "decode_s").value_or(0),
                           TextField(each, "last_error")});
        }
        return InternalError("the job of its first row is gone");
      });
  row.status = tried.status();
  if (!tried.ok()) return row;
  const auto told = nlohmann::json::parse(*tried);
  row.sample = told[0];
  row.bytes = told[1];
  row.seconds = told[2];
  row.passed_over = told[3];
  return row;
}

// The spec of each part whose rows are made otherwise than those of the others;
// else the spec itself.
std::vector<nlohmann::ordered_json> SpecsToTry(const DatasetIndex& index) {
  const auto spec = nlohmann::ordered_json::parse(index.text);
  if (!spec.contains("map_by_part")) return {spec};
  std::vector<nlohmann::ordered_json> specs;
  for (size_t part = 0; part < spec["map_by_part"].size(); ++part) {
    auto& of_part = specs.emplace_back(spec);
    auto& source = of_part["source"].begin().value();
    source["parts"] = {spec["source"].begin().value()["parts"][part]};
    source["parts"][0].erase("weight");
    source.erase("schedule");
    of_part["map_by_part"] = {spec["map_by_part"][part]};
    of_part.erase("select");  // of all parts together
  }
  return specs;
}

// The row of the first spec, or the first that is an error.
std::optional<TriedRow> TryRows(PrivateBroker* broker,
                                const DatasetIndex& index) {
  std::optional<TriedRow> first;
  for (const nlohmann::ordered_json& spec : SpecsToTry(index)) {
    std::optional<TriedRow> row = TryRow(broker, spec);
    if (row && (!row->status.ok() || !row->passed_over.empty())) return row;
    if (!first) first = std::move(row);
  }
  return first;
}

// "3 of rows up to 16, 32, 64": some of many.
std::string BucketsText(std::span<const ElementSpec> buckets) {
  constexpr size_t kSome = 8;
  std::string text;
  const ElementSpec& last = buckets.back();
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (i == kSome && buckets.size() > kSome + 2) {
      text += ", ...";
      i = buckets.size() - 1;
    }
    // The feature that the buckets go by has another length in each.
    for (size_t j = 0; j < last.size(); ++j) {
      if (buckets.front()[j] == last[j] || last[j].shape.empty()) continue;
      text += Format(", {}", buckets[i][j].shape[0]);
      break;
    }
  }
  return Format("{}{}", buckets.size(),
                text.empty() ? "" : " of rows up to " + text.substr(2));
}

StatusOr<DatasetIndex> IndexFor(PrivateBroker* broker, const SpecFile& file,
                                int ranks, int replicas, int hosts = 1,
                                bool scan = true) {
  nlohmann::json more = nlohmann::json::object();
  if (hosts > 1) more["hosts"] = hosts;
  if (replicas > 1) more["replicas"] = replicas;
  if (!scan) more["scan"] = false;
  return IndexDataset(broker->AsCall(), file, ranks / replicas, more);
}

std::string ProcessesText(const CheckOptions& options) {
  const int replicas = options.replicas;
  return Counted(options.ranks / replicas / options.hosts, "rank") +
         (replicas > 1 ? Format(" of {} replicas", replicas) : "") +
         (options.hosts > 1 ? " of a host" : "");
}

std::optional<RemoteData> RemoteOf(const DatasetIndex& index,
                                   const CheckOptions& options) {
  return RemoteDataOf(index, static_cast<uint64_t>(options.hosts),
                      static_cast<uint64_t>(options.ranks / options.replicas));
}

// What the memory of a job is, when its processes are so many groups.
struct GroupLayout {
  int ranks = 1;
  int replicas = 1;
  nlohmann::json answer;
};

// One for each division of the processes into groups of equally many.
StatusOr<std::vector<GroupLayout>> LayoutsOf(PrivateBroker* broker,
                                             const SpecFile& file,
                                             int processes) {
  std::vector<GroupLayout> layouts;
  for (int replicas = processes; replicas >= 1; --replicas) {
    if (processes % replicas != 0) continue;
    PENSTOCK_ASSIGN_OR_RETURN(DatasetIndex index,
                              IndexFor(broker, file, processes, replicas));
    layouts.push_back(
        {processes / replicas, replicas, std::move(index.answer)});
  }
  return layouts;
}

nlohmann::json LayoutsToJson(const std::vector<GroupLayout>& layouts) {
  nlohmann::json json = nlohmann::json::array();
  for (const GroupLayout& layout : layouts) {
    json.push_back({{"ranks", layout.ranks}, {"replicas", layout.replicas}});
    for (const char* key :
         {"global_batch", "slot_rows", "slots", "memory_bytes"}) {
      json.back()[key] = layout.answer.value(key, uint64_t{0});
    }
  }
  return json;
}

void PrintLayouts(const std::vector<GroupLayout>& layouts) {
  Table table({">ranks", ">replicas", ">global batch", ">rows of a rank",
               ">batches", ">memory"});
  for (const GroupLayout& layout : layouts) {
    const auto of = [&layout](const char* key) {
      return CountField(layout.answer, key).value_or(0);
    };
    table.AddRow({FormatCount(layout.ranks), FormatCount(layout.replicas),
                  FormatCount(of("global_batch")), FormatCount(of("slot_rows")),
                  FormatCount(of("slots")), FormatBytes(of("memory_bytes"))});
  }
  Print(stdout, "\n{}", table.ToString());
}

void PrintIndex(const DatasetIndex& index, const CheckOptions& options,
                const std::optional<TriedRow>& row) {
  const auto line = [](const char* what, const std::string& value) {
    Print(stdout, "{:<16} {}\n", what, Printable(value));
  };
  const auto told = [&](const char* what, const char* key) {
    const std::string value = TextField(index.answer, key);
    if (!value.empty()) line(what, value);
  };
  const auto shown = [&index](const char* key, const auto& format) {
    const std::optional<uint64_t> value = CountField(index.answer, key);
    return value ? format(*value) : "-";
  };
  const auto count = [&](const char* key) { return shown(key, FormatCount); };
  const auto bytes = [&](const char* key) { return shown(key, FormatBytes); };
  line("dataset", index.dataset);
  line("records", index.IsStream() ? "as many as its producers put"
                                   : FormatCount(index.records));
  if (const auto& packing = FieldOf(index.answer, "packing");
      packing.is_object()) {
    const auto of = [&packing](const char* key) {
      return FormatCount(CountField(packing, key).value_or(0));
    };
    line("packed", Format("{} of {} documents in {} sequences, at most {} in "
                          "one; {:.2f} % full",
                          Counted(of("items"), "item", "items"),
                          of("documents"), of("sequences"), of("in_sequence"),
                          100 * NumberField(packing, "fill").value_or(0)));
    if (of("left_out") != "0") {
      line("", of("left_out") + " longer documents are left out");
    }
    if (of("cut_off") != "0") {
      line("", of("cut_off") + " items are cut off longer documents");
    }
  }
  told("left out", "left_out");
  if (count("copied_files") != "0") {
    line("inflated", Format("{}, {}", Counted(count("copied_files"), "file"),
                            bytes("copied_bytes")));
  }
  if (const auto remote = RemoteOf(index, options)) {
    line("object stores", Format("{}, {}", Counted(remote->all_files, "file"),
                                 FormatBytes(remote->all_bytes)));
    line("index", IndexText(index));
    line(options.hosts == 1 ? "downloads" : "a host downloads",
         DownloadsText(*remote, 0));
  }
  told("fingerprint", "fingerprint");
  if (!index.class_names.empty()) {
    line("classes", FormatCount(index.class_names.size()));
  }
  std::string batch;
  for (const auto& of_part :
       ArrayField(FieldOf(index.spec, "batch"), "by_part")) {
    batch += (batch.empty() ? "by part: " : ", ") + of_part.dump();
  }
  const bool buckets = FieldOf(index.spec, "batch").contains("buckets");
  const std::string up_to = buckets ? "at most " : "";
  line("global batch",
       batch.empty() ? up_to + FormatCount(index.global_batch) : batch);
  if (!index.IsStream()) {
    line("steps per epoch", FormatCount(index.steps_per_epoch));
  }
  line("epochs", index.epochs ? FormatCount(*index.epochs) : "forever");
  const uint64_t hold = CountField(index.answer, "hold").value_or(1);
  if (index.memory_bytes > 0) {
    line("memory",
         Format("{} for {}: {} (prefetch {}{} and hold {} of each rank{}) of "
                "{}{} of {}{}; index {}{}",
                FormatBytes(index.memory_bytes), ProcessesText(options),
                Counted(count("slots"), "batch", "batches"), count("prefetch"),
                count("prefetch_most") == count("prefetch")
                    ? ""
                    : Format(" to {}", count("prefetch_most")),
                count("hold"),
                hold > 1 && options.replicas > 1
                    ? Format(", {} of each further replica", hold - 1)
                    : "",
                up_to, Counted(count("slot_rows"), "row"), up_to,
                bytes("row_bytes"), bytes("index_bytes"),
                index.retained_bytes == 0
                    ? ""
                    : Format("; rows whose batches are held for "
                             "long {}",
                             FormatBytes(index.retained_bytes))));
    if (const std::string by = TextField(index.answer, "memory_left_by");
        !by.empty()) {
      line("memory left", Format("{} by {}", bytes("memory_left_bytes"), by));
    }
  }
  if (const std::string cache = TextField(index.answer, "cache");
      !cache.empty()) {
    const uint64_t entry =
        CountField(index.answer, "cache_entry_bytes").value_or(0);
    const uint64_t all = entry * index.records;
    const uint64_t most = CountField(index.answer, "cache_bytes").value_or(0);
    line("rows kept",
         Format("{}, after {} of map; {}", cache,
                Counted(count("cache_steps"), "step"),
                entry == 0 ? "the features of records differ in size"
                           : Format("{} each, {} for all{}", FormatBytes(entry),
                                    FormatBytes(all),
                                    all > most ? Format(": {} % of them fit",
                                                        100 * most / all)
                                               : "")));
  }
  if (buckets) line("buckets", BucketsText(index.element_spec_by_part));
  if (row) {
    line("row", row->status.ok()
                    ? Format("sample {}: {} read, {} to read and map it",
                             row->sample.dump(), FormatBytes(row->bytes),
                             FormatSeconds(row->seconds))
                    : "an error, see below");
  }
  Table table({"feature", "dtype", "shape", ">bytes per row"});
  // last: what the features are in the last of several buckets.
  const auto add = [&table](const ElementSpec& features,
                            const ElementSpec& last,
                            const std::string& of_part) {
    for (size_t i = 0; i < features.size(); ++i) {
      const auto range = [&](const auto& text) {
        const std::string first = text(features[i]);
        return features[i] == last[i]
                   ? first
                   : Format("{} to {}", first, text(last[i]));
      };
      table.AddRow({features[i].name + of_part,
                    std::string(DTypeName(features[i].dtype)), range(ShapeText),
                    range([](const Feature& feature) {
                      return FormatCount(feature.RowBytes());
                    })});
    }
  };
  const auto& parts = index.element_spec_by_part;
  if (parts.empty()) {
    add(index.element_spec, index.element_spec, "");
  } else if (buckets) {
    add(parts.front(), parts.back(), "");
  } else {
    for (size_t part = 0; part < parts.size(); ++part) {
      add(parts[part], parts[part], Format(", part {}", part));
    }
  }
  Print(stdout, "\n{}", table.ToString());
}

Status PrintSyntax(const BrokerCall& call, const SpecFile& file, bool json) {
  PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json answer,
                            call(file.Request("parse")));
  if (json) {
    Print(stdout, "{}\n", TextField(answer, "spec"));
  } else {
    Print(stdout, "{}: the spec of dataset '{}' is well-formed\n", file.name,
          Printable(TextField(answer, "dataset")));
  }
  return OkStatus();
}

// Warnings about running jobs of all of them at once.
std::vector<std::string> WarningsOf(const std::vector<DatasetIndex>& indexes,
                                    const CheckOptions& options) {
  std::vector<std::string> warnings;
  for (const DatasetIndex& index : indexes) {
    if (const std::string text = TextField(index.answer, "source_warning");
        !text.empty()) {
      warnings.push_back(Format("dataset '{}': {}", index.dataset, text));
    }
  }
  const nlohmann::json& last = indexes.back().answer;
  // When the broker gave its free memory, it held only the last index.
  uint64_t needed = indexes.back().memory_bytes;
  for (size_t i = 0; i + 1 < indexes.size(); ++i) {
    needed += indexes[i].memory_bytes +
              CountField(indexes[i].answer, "index_bytes").value_or(0);
  }
  const std::optional<uint64_t> left = CountField(last, "memory_left_bytes");
  if (left && needed > *left) {
    warnings.push_back(Format(
        "{} needs {} for {}, only {} are left by {}: make batch.size, prefetch "
        "or hold smaller",
        indexes.size() == 1
            ? "dataset '" + indexes[0].dataset + "'"
            : Format("a job of each of the {} datasets", indexes.size()),
        FormatBytes(needed), ProcessesText(options), FormatBytes(*left),
        TextField(last, "memory_left_by")));
  }
  const auto classes_of = [&](size_t i) {
    const std::string folder =
        TextField(indexes[i].SourceOf("image_folder"), "path");
    const std::string list =
        TextField(indexes[i].SourceOf("image_list"), "file");
    const std::string coco =
        TextField(indexes[i].SourceOf("coco"), "annotations");
    // A source made of parts goes by the dataset's name.
    return ClassNames{!folder.empty() ? folder
                      : !list.empty() ? list
                      : !coco.empty() ? coco
                                      : indexes[i].dataset,
                      indexes[i].class_names};
  };
  for (size_t b = 1; b < indexes.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      std::string differs = LabelsThatDiffer(classes_of(a), classes_of(b));
      if (!differs.empty()) warnings.push_back(std::move(differs));
    }
  }
  return warnings;
}

StatusOr<int> Check(const CheckOptions& options) {
  if (options.ranks % options.replicas != 0) {
    PrintError(Format("--ranks {} is no multiple of --replicas {}",
                      options.ranks, options.replicas));
    return kExitUsage;
  }
  if (options.ranks / options.replicas % options.hosts != 0) {
    PrintError(Format("{} ranks are not equally many on each of --hosts {}",
                      options.ranks / options.replicas, options.hosts));
    return kExitUsage;
  }
  std::vector<SpecFile> files;
  for (const std::string& spec : options.specs) {
    PENSTOCK_ASSIGN_OR_RETURN(SpecFile file, ReadSpecFile(spec));
    files.push_back(std::move(file));
  }
  if (options.all) {
    if (files.size() > 1) {
      return InvalidArgumentError(
          "--all writes the list of one dataset: give one spec at a time");
    }
    PENSTOCK_RETURN_IF_ERROR(CheckReplaces(options.out,
                                           RecordListHeader::kBegin,
                                           "list of `penstock check --all`"));
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<PrivateBroker> broker,
      PrivateBroker::Start(options.all
                               ? options.broker.Without(kReported)
                               : options.broker.Without({"job-warning"})));
  if (options.syntax) {
    for (const SpecFile& file : files) {
      PENSTOCK_RETURN_IF_ERROR(
          PrintSyntax(broker->AsCall(), file, options.json));
    }
    return 0;
  }
  if (options.all) {
    PENSTOCK_ASSIGN_OR_RETURN(files[0],
                              WithoutList(broker.get(), files[0], options.out));
  }
  std::vector<DatasetIndex> indexes;
  std::vector<std::optional<TriedRow>> rows;
  for (SpecFile& file : files) {
    StatusOr<DatasetIndex> found =
        IndexFor(broker.get(), file, options.ranks, options.replicas,
                 options.hosts, options.scan);
    if (options.all && found.status().code() == StatusCode::kDataLoss) {
      // A record that a column is read of is broken.
      PENSTOCK_ASSIGN_OR_RETURN(file, OfAllRecords(broker.get(), file));
      found = IndexFor(broker.get(), file, options.ranks, options.replicas,
                       options.hosts);
    }
    PENSTOCK_ASSIGN_OR_RETURN(DatasetIndex index, std::move(found));
    rows.emplace_back();
    if (options.row && !options.all && !index.IsStream()) {
      rows.back() = TryRows(broker.get(), index);
      PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
    }
    indexes.push_back(std::move(index));
  }
  std::vector<std::vector<GroupLayout>> layouts(files.size());
  for (size_t i = 0; options.layouts && i < files.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(layouts[i],
                              LayoutsOf(broker.get(), files[i], options.ranks));
  }
  std::vector<std::string> warnings = WarningsOf(indexes, options);
  Status error;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i]) continue;
    if (error.ok()) error = rows[i]->status;
    if (!rows[i]->passed_over.empty()) {
      warnings.push_back(Format("{} (on_error: {} permits it)",
                                rows[i]->passed_over,
                                TextField(indexes[i].spec, "on_error")));
    }
  }
  std::optional<AllChecked> checked;
  if (options.all && options.json) {
    PENSTOCK_ASSIGN_OR_RETURN(
        checked,
        CheckAllRecords(broker.get(), files[0], indexes[0], options.out));
    indexes[0].answer["all"] = {{"records", checked->records},
                                {"broken", checked->broken},
                                {"list", options.out}};
  }
  for (size_t i = 0; i < files.size(); ++i) {
    if (options.json) {
      // The last answer has the warnings about all of them.
      indexes[i].answer["warnings"] =
          i + 1 < files.size() ? std::vector<std::string>() : warnings;
      if (rows[i]) indexes[i].answer["row"] = rows[i]->ToJson();
      if (const auto remote = RemoteOf(indexes[i], options)) {
        indexes[i].answer["remote"].update(HostsJson(*remote));
      }
      if (options.layouts) {
        indexes[i].answer["layouts"] = LayoutsToJson(layouts[i]);
      }
      PrintJson(indexes[i].answer);
    } else {
      Print(stdout, "{}", i == 0 ? "" : "\n");
      PrintIndex(indexes[i], options, rows[i]);
      if (options.layouts) PrintLayouts(layouts[i]);
    }
  }
  if (!options.json) {
    for (const std::string& warning : warnings) {
      PrintError("warning: " + warning);
    }
  }
  if (!error.ok()) return error;
  if (options.all && !options.json) {
    std::fflush(stdout);
    PENSTOCK_ASSIGN_OR_RETURN(
        checked,
        CheckAllRecords(broker.get(), files[0], indexes[0], options.out));
    TellChecked(*checked, files[0], indexes[0], options.out);
  }
  return checked && checked->count > 0 ? kExitFailure : 0;
}

// By penstockd, which has just made the indexes.
Status WriteIndexes(const std::string& spec, const std::string& out,
                    bool json) {
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::vector<char> output,
      PenstockdOutput({"--write-indexes", spec, "--out", out}, [](size_t) {}));
  const auto told = nlohmann::json::parse(output, nullptr, false);
  if (json) {
    PrintJson(told);
    return OkStatus();
  }
  const uint64_t files = CountField(told, "files").value_or(0);
  Print(stdout, "{} of {} written, {}: {}{}\n",
        files == 1 ? "The index" : "Indexes", Counted(files, "file"),
        FormatBytes(CountField(told, "bytes").value_or(0)),
        files == 1 ? "" : "the first one is ", Printable(TextField(told, "at")));
  return OkStatus();
}

std::shared_ptr<CheckOptions> AddCheckOptions(Command command) {
  const auto options = std::make_shared<CheckOptions>();
  command
      .AddOption("SPEC.yaml", &options->specs,
                 "Spec of the dataset; several: of those used together")
      .Required();
  command
      .AddOption("--ranks,--world-size", &options->ranks,
                 "Ranks the job would have: sets batch and memory")
      .Type("N")
      .ShowDefault()
      .InRange(1, kRanksMax);
  command
      .AddOption("--replicas", &options->replicas,
                 "So many of these processes are one rank and get the same "
                 "batches")
      .Type("N")
      .InRange(1, kRanksMax);
  command
      .AddOption("--hosts", &options->hosts,
                 "So many hosts have these ranks: memory and downloads are "
                 "those of one")
      .Type("N")
      .InRange(1, kRanksMax);
  command.AddFlag("--json", &options->json,
                  "Print one JSON object for each spec");
  options->broker.AddTo(command);
  return options;
}

}  // namespace

Subcommand AddCheck(Command parent) {
  Command check =
      parent.AddCommand("check", "Validate a spec and show what it describes");
  const std::shared_ptr<CheckOptions> options = AddCheckOptions(check);
  const CommandOption syntax = check.AddFlag(
      "--syntax", &options->syntax, "Only parse the spec; open no data");
  check.AddFlag("!--no-row", &options->row,
                "Do not try the first row of each dataset");
  check
      .AddFlag("!--no-scan", &options->scan,
               "Fail where files of object stores have no index, and say what "
               "finding their records would download")
      .Excludes(syntax);
  check
      .AddFlag("--layouts", &options->layouts,
               "Also show the memory of each division of --ranks into ranks "
               "of several replicas")
      .Excludes(syntax);
  const CommandOption all =
      check
          .AddFlag("--all", &options->all,
                   "Read and make every record once, and list the broken ones")
          .Excludes(syntax);
  check.AddOption("--out", &options->out, "The list that --all writes")
      .Type("FILE")
      .ShowDefault()
      .Needs(all);
  check.SetFooter(R"(
It reads and maps the first row, with map_by_part one of each part, and
fails with that row's error.
Mistakes in the spec are reported as FILE:LINE:COLUMN. It warns, with exit
status 0, when the jobs need more memory than this machine, its control
groups or --memory-limit leave, when labels of the datasets differ, and when
lines of text are longer than max_bytes.
With --all every record that `select` leaves is read and made once, by all
steps of `map`. Records that fail are counted, and FILE has the number and
the error of each, for `select: [exclude: FILE]`. Exit status 1: there are
some.
Of a dataset in object stores it says where indexes are from and what epochs
download. Where files have no index, it reads them once for that, or with
--no-scan says what that would download; `penstock index --out ADDRESS` puts
indexes beside the files, and `penstock doctor ADDRESS` says how fast it is.

Examples:
  penstock check train.yaml
  penstock check --syntax train.yaml
  penstock check --ranks 8 train.yaml val.yaml
  penstock check --ranks 8 --layouts train.yaml
  penstock check --ranks 16 --hosts 2 train.yaml
  penstock check --ranks 8 --json train.yaml
  penstock check --all train.yaml)");
  return {check, [options] { return Check(*options); }};
}

Subcommand AddIndex(Command parent) {
  Command index = parent.AddCommand(
      "index", "Find all records of a dataset, with a progress bar");
  const std::shared_ptr<CheckOptions> options = AddCheckOptions(index);
  options->row = false;
  const auto beside = std::make_shared<std::string>();
  index
      .AddOption(
          "--out", beside.get(),
          "Also write the index of each file below it, to lie beside the "
          "file: with one, nobody scans the file again")
      .Type("FOLDER|ADDRESS");
  index.SetFooter(R"(
--out is the folder that has the files, or will have them: an index lies
beside its file. Who opens the data, on any host, then reads it instead of
the whole file, which is what counts where files lie in an object store.

Examples:
  penstock index train.yaml
  penstock index --out /data/train train.yaml
  penstock index --out s3://bucket/train train.yaml)");
  return {
      index, [options, beside]() -> StatusOr<int> {
        PENSTOCK_ASSIGN_OR_RETURN(const int status, Check(*options));
        if (status != 0 || beside->empty()) return status;
        for (const std::string& spec : options->specs) {
          PENSTOCK_RETURN_IF_ERROR(WriteIndexes(spec, *beside, options->json));
        }
        return 0;
      }};
}

}  // namespace penstock
