#include "client/command/spec_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "client/command/json_field.h"
#include "common/message.h"

namespace penstock {

nlohmann::json SpecFile::Request(const char* op) const {
  return {{"op", op}, {"spec", text}, {"file", name}, {"base", base}};
}

StatusOr<SpecFile> ReadSpecFile(const std::string& name) {
  SpecFile file;
  file.name = name;
  std::error_code error;
  const auto absolute = std::filesystem::absolute(name, error);
  if (error) return ErrnoError(error.value(), "spec file '" + name + "'");
  file.path = absolute.lexically_normal().string();
  file.base = absolute.lexically_normal().parent_path().string();

  // O_NONBLOCK: a FIFO must not hold the command up before it is refused.
  const Fd fd(open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return ErrnoError(errno, "cannot read spec file '" + name + "'");
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoError(errno, name);
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgumentError(
        "spec file '{}' is {}; name the YAML file that describes the dataset",
        name, S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
  }
  file.text.resize(kSpecBytesMax + 1);
  size_t got = 0;
  while (got < file.text.size()) {
    const ssize_t n =
        read(fd.get(), file.text.data() + got, file.text.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(errno, "cannot read spec file '" + name + "'");
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  if (got > kSpecBytesMax) {
    return InvalidArgumentError(
        "spec file '{}' is larger than {} KiB; is it a dataset spec?", name,
        kSpecBytesMax / 1024);
  }
  file.text.resize(got);
  PENSTOCK_ASSIGN_OR_RETURN(file.spec,
                            ParseDatasetSpec(file.text, name, file.base));
  return file;
}

bool SpecFile::IsStream() const {
  return std::holds_alternative<StreamSource>(spec.source);
}

Status SpecFile::CheckHasRows() const {
  if (!IsStream()) return OkStatus();
  return FailedPreconditionError(
      "'{}' is a stream, which has no rows but those that producers put: start "
      "ranks (penstock run) and the producers",
      name);
}

uint64_t DatasetIndex::RowsPerEpoch(const DatasetSpec& spec) const {
  const uint64_t in_steps = steps_per_epoch * global_batch;
  // An epoch of a fixed number of steps runs on into the data again.
  return spec.steps_per_epoch ? in_steps : std::min(records, in_steps);
}

StatusOr<DatasetIndex> DatasetIndexFromJson(const nlohmann::json& answer) {
  DatasetIndex index;
  index.answer = answer;
  const struct {
    const char* key;
    uint64_t* value;
  } counts[] = {{"records", &index.records},
                {"global_batch", &index.global_batch},
                {"steps_per_epoch", &index.steps_per_epoch}};
  for (const auto& [key, value] : counts) {
    const std::optional<uint64_t> count = CountField(answer, key);
    if (!count) {
      return InternalError("the broker's answer to 'index' has no '{}'", key);
    }
    *value = *count;
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      index.element_spec, ElementSpecFromJson(FieldOf(answer, "element_spec")));
  index.memory_bytes = CountField(answer, "memory_bytes").value_or(0);
  for (const nlohmann::json& name : ArrayField(answer, "class_names")) {
    index.class_names.push_back(name.is_string() ? name.get<std::string>()
                                                 : std::string());
  }
  return index;
}

StatusOr<DatasetIndex> IndexDataset(const BrokerCall& call,
                                    const SpecFile& file, int world_size) {
  nlohmann::json request = file.Request("index");
  request["world_size"] = world_size;
  PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json answer, call(request));
  return DatasetIndexFromJson(answer);
}

}  // namespace penstock
