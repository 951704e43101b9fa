// Stage 5 of the flow, "assemble": turns rows that are all made into a batch.
// Gaps that on_error: skip left are closed, padding is added.
#ifndef BROKER_DELIVERY_ASSEMBLE_H_
#define BROKER_DELIVERY_ASSEMBLE_H_

#include "broker/delivery/delivery.h"
#include "common/element_spec.h"
#include "common/segment.h"

namespace penstock {

// Sets valid_rows and shape_rows of the batch, whose rows are in `slot` of the
// segment. keep_shape (last: pad): rows that were left out are replaced by
// padding; otherwise the batch is shorter. Nobody else may touch the slot
// meanwhile.
void Assemble(const Segment& segment, const ElementSpec& spec, bool keep_shape,
              uint32_t slot, OpenBatch* batch);

// Copies rows [begin, end) of one slot to the same rows of another.
void CopyRows(const Segment& segment, const ElementSpec& spec, uint32_t from,
              uint32_t to, uint64_t begin, uint64_t end);

}  // namespace penstock
#endif  // BROKER_DELIVERY_ASSEMBLE_H_
