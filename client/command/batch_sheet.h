// What `peek` and `view` show of a batch: its pictures on a contact sheet, the
// rest as a table.
#ifndef CLIENT_COMMAND_BATCH_SHEET_H_
#define CLIENT_COMMAND_BATCH_SHEET_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/command/contact_sheet.h"
#include "client/penstock.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

// The features to draw: the one that is named, or, with "", a picture and those
// of its size, such as its mask. Empty: none is a picture. Errors: NotFound;
// the named one is no picture.
StatusOr<std::vector<size_t>> FeaturesToDraw(const ElementSpec& features,
                                             const std::string& named);

// For DrawContactSheet, from this row of the batch on, the first of them with
// the feature `boxes`, if there is one. Precondition: FeaturesToDraw gave
// which.
std::vector<DrawnFeature> Drawn(const ElementSpec& features,
                                const penstock_batch* batch,
                                const std::vector<size_t>& which,
                                uint64_t first = 0);

// The first rows of the batch, a line each: sample id and values, those of the
// features left out not.
std::string RowsTable(const ElementSpec& features, const penstock_batch* batch,
                      uint64_t rows, const std::vector<size_t>& left_out,
                      const std::vector<std::string>& class_names);

// One row of the batch, a line for each feature.
std::string RowTable(const ElementSpec& features, const penstock_batch* batch,
                     uint64_t row, const std::vector<std::string>& class_names);

}  // namespace penstock
#endif  // CLIENT_COMMAND_BATCH_SHEET_H_
