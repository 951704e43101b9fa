// The state that the recovery journal's records describe, and the records that
// describe it. Both directions of each record are in recovery_state.cc.
//
// Plain data, not thread-safe: the recovery journal's mutex protects it.
#ifndef BROKER_RECOVERY_RECOVERY_STATE_H_
#define BROKER_RECOVERY_RECOVERY_STATE_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "broker/recovery/recorded_job.h"

namespace penstock {

// A record of the journal: JSON of this type.
struct StateRecord {
  uint8_t type = 0;
  std::string text;
};

struct RecoveryState {
  std::map<std::pair<uid_t, std::string>, std::string> datasets;  // specs, YAML
  std::map<uint64_t, RecordedJob> jobs;
  std::map<uint64_t, EndedJob> ended;
  // By job and attach, without the pidfds, which are in the store.
  std::map<std::pair<uint64_t, uint64_t>, RecordedMapping> mapped;
  uint64_t next_id = 1;  // of jobs, attaches and segments

  // nullptr: there is none.
  RecordedJob* Job(uint64_t id);
  // Applies a record. One of an unknown type, or with other fields, is from
  // another release: the log names it, what it describes is given up, the rest
  // is kept.
  void Apply(uint8_t type, std::string_view text);
  // The records that make this state of an empty one.
  std::vector<StateRecord> Records() const;
};

namespace records {

StateRecord Dataset(uid_t uid, const std::string& name,
                    const std::string& spec);
StateRecord DatasetGone(uid_t uid, const std::string& name);
StateRecord Job(const RecordedJob& job);
StateRecord JobEnd(uint64_t job);
StateRecord Delivered(const EndedJob& job);
StateRecord Rank(uint64_t job, uint64_t attach, const RecordedRank& rank);
StateRecord RankEnd(uint64_t job, uint64_t attach);
StateRecord RankLeft(uint64_t job, uint64_t attach, bool finished);
StateRecord Mapped(const RecordedMapping& mapping);
StateRecord Unmapped(uint64_t job, uint64_t attach);
StateRecord Phase(uint64_t job, const FormerPhase& phase);
StateRecord Weights(uint64_t job, const WeightsChange& change);
StateRecord Completed(uint64_t job, uint64_t position, uint64_t next);
StateRecord HandedOver(uint64_t job, uint32_t rank, uint64_t step);
StateRecord Opened(const RecordedJob& job);
// Without its chunks.
StateRecord Ledger(uint64_t job, const StreamLedger& ledger);
StateRecord Producer(uint64_t job, uint32_t number,
                     const StreamLedger::Producer& producer);
StateRecord ProducerEnd(uint64_t job, uint32_t number, bool finished);
StateRecord RowsPut(uint64_t job, uint32_t number, uint64_t ring_position,
                    uint64_t rows, uint64_t first);
StateRecord RowsReleased(uint64_t job, uint64_t row);
StateRecord Retained(uint64_t job, uint64_t rows);
StateRecord RowsMoved(uint64_t job, uint64_t row,
                      const std::vector<StreamLedger::Chunk>& needed);

}  // namespace records
}  // namespace penstock
#endif  // BROKER_RECOVERY_RECOVERY_STATE_H_
