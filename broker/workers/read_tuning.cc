#include "broker/workers/read_tuning.h"

#include "broker/base/text.h"

namespace penstock {
namespace {

std::string BytesPerSecondText(double bytes_per_s) {
  return Format("{}/s", BytesText(static_cast<uint64_t>(bytes_per_s)));
}

}  // namespace

void ReadTuning::Saw(double seconds, const WorkerThreads::Reads& reads,
                     uint32_t workers) {
  seconds_ = seconds;
  bytes_ = static_cast<double>(reads.bytes - seen_.bytes);
  waiting_ = static_cast<double>(reads.waited_ns - seen_.waited_ns) * 1e-9 /
             (seconds * workers);
  reads_per_s_.Add(static_cast<double>(reads.ended - seen_.ended) / seconds,
                   seconds);
  reads_at_once_.Add(static_cast<double>(reads.in_flight), seconds);
  seen_ = reads;
}

std::string ReadTuning::ThreadsReason() const {
  return threads_.Reason(BytesPerSecondText);
}

std::string ReadTuning::DepthReason(bool reads_block) const {
  if (!depth_.automatic()) return "set by `read_depth`";
  if (reads_block) return "each worker reads one record after the other";
  // Little's law.
  const double per_s = reads_per_s_.mean();
  const std::string measured =
      per_s < 1 ? ""
                : Format("{:.2f} ms a read at {:.0f} reads/s; ",
                         1e3 * reads_at_once_.mean() / per_s, per_s);
  return measured + depth_.Reason(BytesPerSecondText);
}

}  // namespace penstock
