// penstock check and penstock index: what a spec describes, as the broker sees
// it.
#include "client/command/json_field.h"
#include "client/command/private_broker.h"
#include "client/command/spec_file.h"
#include "client/command/subcommand.h"
#include "client/command/table.h"

namespace penstock {
namespace {

constexpr int kRanksMax = 4096;

struct CheckOptions {
  std::string spec;
  int world_size = 1;
  bool json = false;
  bool syntax = false;
  PrivateBrokerOptions broker;
};

std::string ShapeText(const Feature& feature) {
  std::string text;
  for (const int64_t side : feature.shape) {
    text += fmt::format("{}{}", text.empty() ? "" : " x ", side);
  }
  return text.empty() ? "scalar" : text;
}

void PrintIndex(const SpecFile& file, const DatasetIndex& index,
                int world_size) {
  const auto line = [](const char* what, const std::string& value) {
    fmt::print("{:<16} {}\n", what, Printable(value));
  };
  line("dataset", file.spec.name);
  line("records", file.IsStream() ? "as many as its producers put"
                                  : FormatCount(index.records));
  if (const std::string others = TextField(index.answer, "left_out");
      !others.empty()) {
    line("left out", others);
  }
  if (!index.class_names.empty()) {
    line("classes", FormatCount(index.class_names.size()));
  }
  line("global batch", FormatCount(index.global_batch));
  if (!file.IsStream()) {
    line("steps per epoch", FormatCount(index.steps_per_epoch));
  }
  line("epochs", file.spec.epochs ? FormatCount(*file.spec.epochs) : "forever");
  if (index.memory_bytes > 0) {
    line("memory",
         fmt::format("{} for {} rank{}{}", FormatBytes(index.memory_bytes),
                     world_size, world_size == 1 ? "" : "s",
                     index.attic_bytes == 0
                         ? ""
                         : fmt::format(", {} of them for rows whose batches "
                                       "are held for long",
                                       FormatBytes(index.attic_bytes))));
  }
  Table table({"feature", "dtype", "shape", ">bytes per row"});
  for (const Feature& feature : index.element_spec) {
    table.AddRow({feature.name, std::string(DTypeName(feature.dtype)),
                  ShapeText(feature), FormatCount(feature.RowBytes())});
  }
  fmt::print("\n{}", table.ToString());
}

StatusOr<int> Check(const CheckOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const SpecFile file, ReadSpecFile(options.spec));
  if (options.syntax) {
    if (options.json) {
      fmt::print("{}\n",
                 DatasetSpecToJson(file.spec).dump(
                     -1, ' ', false, nlohmann::json::error_handler_t::replace));
    } else {
      fmt::print("{}: the spec of dataset '{}' is well-formed\n", file.name,
                 Printable(file.spec.name));
    }
    return 0;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PrivateBroker> broker,
                            PrivateBroker::Start(options.broker));
  PENSTOCK_ASSIGN_OR_RETURN(
      const DatasetIndex index,
      IndexDataset(broker->AsCall(), file, options.world_size));
  if (options.json) {
    fmt::print("{}\n", JsonLine(index.answer));
  } else {
    PrintIndex(file, index, options.world_size);
  }
  return 0;
}

std::shared_ptr<CheckOptions> AddCheckOptions(CLI::App* app) {
  const auto options = std::make_shared<CheckOptions>();
  app->add_option("SPEC.yaml", options->spec, "Spec of the dataset")
      ->required();
  app->add_option("--world-size", options->world_size,
                  "Ranks the job would have: sets batch and memory")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, kRanksMax).description(""));
  app->add_flag("--json", options->json, "Print one JSON object");
  options->broker.AddTo(app);
  return options;
}

}  // namespace

Subcommand AddCheck(CLI::App& app) {
  CLI::App* const check =
      app.add_subcommand("check", "Validate a spec and show what it describes");
  const std::shared_ptr<CheckOptions> options = AddCheckOptions(check);
  check->add_flag("--syntax", options->syntax,
                  "Only parse the spec; open no data");
  check->footer(
      "Mistakes in the spec are told as FILE:LINE:COLUMN.\n\nExamples:\n"
      "  penstock check train.yaml\n"
      "  penstock check --syntax train.yaml\n"
      "  penstock check --world-size 8 --json train.yaml");
  return {check, [options] { return Check(*options); }};
}

Subcommand AddIndex(CLI::App& app) {
  CLI::App* const index = app.add_subcommand(
      "index", "Find all records of a dataset, with a progress bar");
  const std::shared_ptr<CheckOptions> options = AddCheckOptions(index);
  index->footer("Example:\n  penstock index train.yaml");
  return {index, [options] { return Check(*options); }};
}

}  // namespace penstock
