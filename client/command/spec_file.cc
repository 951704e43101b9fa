#include "client/command/spec_file.h"

#include <charconv>
#include <filesystem>
#include <string_view>

#include "client/command/output_file.h"
#include "client/private_broker/json_field.h"
#include "common/message.h"
#include "common/text_file.h"

namespace penstock {

nlohmann::json SpecFile::Request(const char* op) const {
  return {{"op", op}, {"spec", text}, {"file", name}, {"base", base}};
}

StatusOr<SpecFile> ReadSpecFile(const std::string& name) {
  PENSTOCK_RETURN_IF_ERROR(CheckLocal(name));
  SpecFile file;
  file.name = name;
  std::error_code error;
  const auto absolute = std::filesystem::absolute(name, error);
  if (error) return ErrnoError(error.value(), "spec file '" + name + "'");
  file.path = absolute.lexically_normal().string();
  file.base = absolute.lexically_normal().parent_path().string();

  PENSTOCK_ASSIGN_OR_RETURN(file.text,
                            ReadTextFile("spec file", name, kSpecBytesMax));
  return file;
}

Status InFile(const Status& status, const SpecFile& file,
              const std::vector<size_t>& steps) {
  constexpr std::string_view kSpec = "spec: ";
  constexpr std::string_view kDataset = "dataset '";
  constexpr std::string_view kMap = "map[";
  std::string_view rest = status.message();
  const bool is_of_spec = rest.starts_with(kSpec);
  if (is_of_spec) {
    rest.remove_prefix(kSpec.size());
  } else if (rest.starts_with(kDataset)) {
    const size_t end = rest.find("': ");
    if (end == rest.npos) return status;
    rest.remove_prefix(end + 3);
  }
  const bool is_of_map = rest.starts_with(kMap);
  if (status.ok() || (!is_of_spec && !is_of_map)) return status;
  if (is_of_map) {
    size_t step = 0;
    const char* const digits = rest.data() + kMap.size();
    const auto read = std::from_chars(digits, rest.data() + rest.size(), step);
    if (read.ec == std::errc() && step < steps.size()) {
      const std::string_view after =
          rest.substr(static_cast<size_t>(read.ptr - rest.data()));
      return Status(status.code(),
                    Format("{}: map[{}{}", file.name, steps[step], after));
    }
  }
  return Status(status.code(), Format("{}: {}", file.name, rest));
}

const nlohmann::json& DatasetIndex::SourceOf(const char* kind) const {
  return FieldOf(FieldOf(spec, "source"), kind);
}

Status DatasetIndex::CheckHasRows(const SpecFile& file) const {
  if (!IsStream()) return OkStatus();
  return FailedPreconditionError(
      "'{}' is a stream, which has no rows but those that producers put: start "
      "ranks (penstock run) and the producers",
      file.name);
}

StatusOr<DatasetIndex> DatasetIndexFromJson(const nlohmann::json& answer) {
  DatasetIndex index;
  index.answer = answer;
  index.answer.erase("spec");
  index.dataset = TextField(answer, "dataset");
  index.text = TextField(answer, "spec");
  index.spec = nlohmann::json::parse(index.text, nullptr,
                                     /*allow_exceptions=*/false);
  if (!index.spec.is_object()) {
    return InternalError("the broker's answer to 'index' has no 'spec'");
  }
  index.epochs = CountField(index.spec, "epochs");
  const struct {
    const char* key;
    uint64_t* value;
  } counts[] = {{"records", &index.records},
                {"global_batch", &index.global_batch},
                {"steps_per_epoch", &index.steps_per_epoch},
                {"rows_per_epoch", &index.rows_per_epoch}};
  for (const auto& [key, value] : counts) {
    const std::optional<uint64_t> count = CountField(answer, key);
    if (!count) {
      return InternalError("the broker's answer to 'index' has no '{}'", key);
    }
    *value = *count;
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      index.element_spec, ElementSpecFromJson(FieldOf(answer, "element_spec")));
  for (const auto& part : ArrayField(answer, "element_spec_by_part")) {
    PENSTOCK_ASSIGN_OR_RETURN(ElementSpec element, ElementSpecFromJson(part));
    index.element_spec_by_part.push_back(std::move(element));
  }
  index.memory_bytes = CountField(answer, "memory_bytes").value_or(0);
  index.retained_bytes = CountField(answer, "retained_bytes").value_or(0);
  for (const nlohmann::json& name : ArrayField(answer, "class_names")) {
    index.class_names.push_back(name.is_string() ? name.get<std::string>()
                                                 : std::string());
  }
  return index;
}

StatusOr<DatasetIndex> IndexDataset(const BrokerCall& call,
                                    const SpecFile& file, int world_size,
                                    const nlohmann::json& more) {
  nlohmann::json request = file.Request("index");
  request["world_size"] = world_size;
  request.update(more);
  PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json answer, call(request));
  return DatasetIndexFromJson(answer);
}

}  // namespace penstock
