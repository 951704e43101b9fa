#include "client/command/replay.h"

#include "client/command/penstockd_output.h"
#include "client/private_broker/progress_bar.h"

namespace penstock {

StatusOr<std::vector<RowRecord>> ReplayRows(const ReplayTask& task) {
  ProgressBar bar("verifying", "samples");
  std::vector<std::string> arguments = {
      "--replay",
      task.spec_path,
      "--world-size",
      std::to_string(task.world_size),
      task.epochs > 0 ? "--epochs" : "--steps",
      std::to_string(task.epochs > 0 ? task.epochs : task.steps)};
  if (!task.weights.empty()) {
    arguments.push_back("--weights");
    arguments.push_back(task.weights);
  }
  auto output = PenstockdOutput(arguments, [&](size_t bytes) {
    bar.Update(bytes / sizeof(RowRecord), task.rows_estimate);
  });
  bar.Clear();
  if (output.status().code() == StatusCode::kInternal) {
    return Status(StatusCode::kInternal,
                  output.status().message() + "; cannot verify");
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<char> bytes, std::move(output));
  if (bytes.size() % sizeof(RowRecord) != 0) {
    return InternalError(
        "`penstockd --replay {}` wrote {} bytes, not whole records of {}",
        task.spec_path, bytes.size(), sizeof(RowRecord));
  }
  std::vector<RowRecord> rows(bytes.size() / sizeof(RowRecord));
  std::memcpy(rows.data(), bytes.data(), bytes.size());
  return rows;
}

}  // namespace penstock
