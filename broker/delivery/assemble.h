// Stage 5 of the flow, "assemble": turns rows that are all made into a batch.
// Gaps that on_error: skip left are closed, padding is added.
#ifndef BROKER_DELIVERY_ASSEMBLE_H_
#define BROKER_DELIVERY_ASSEMBLE_H_

#include "broker/delivery/slot.h"
#include "common/slot_rows.h"

namespace penstock {

// Whether it moves or fills rows, perhaps all of the slot.
inline bool AssemblingCopies(const OpenBatch& batch) {
  return !batch.left_out.empty() || batch.rows.shape_rows > batch.rows.rows;
}

// Sets valid_rows and shape_rows of the batch, which has these rows. keep_shape
// (last: pad): rows that were left out are replaced by padding; otherwise the
// batch is shorter. Nobody else may touch the slot meanwhile.
void Assemble(const SlotRows& rows, bool keep_shape, OpenBatch* batch);

}  // namespace penstock
#endif  // BROKER_DELIVERY_ASSEMBLE_H_
