// The features of a packed row (batch.pack), and how the items of its documents
// and the features beside them are written into it.
//
// Constant once made; any thread.
#ifndef BROKER_JOB_PACKED_ROWS_H_
#define BROKER_JOB_PACKED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "broker/plan/packing.h"
#include "broker/plan/plan_spec.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

class PackedRows {
 public:
  // By feature.
  using Places = std::span<std::byte* const>;

  // The list of a document that is packed, and its length. InvalidArgument:
  // there is none, or several of which the spec names none.
  struct List {
    size_t feature = 0;
    size_t length = 0;
  };
  static StatusOr<List> ListOf(const PackSpec& spec,
                               const ElementSpec& document);

  // document: the features of a document. documents: at most so many are in a
  // row. InvalidArgument: a feature that is no list, a name that is there
  // twice, a value to pad with that is none of its list.
  static StatusOr<std::unique_ptr<const PackedRows>> Make(
      const PackSpec& spec, const ElementSpec& document, uint32_t documents);

  const ElementSpec& element_spec() const { return row_; }
  const ElementSpec& document_spec() const { return document_; }

  // Writes all of a row that does not come from its documents.
  void Begin(std::span<const Piece> pieces, Places row) const;
  // Copies a piece of a document's lists. DataLoss: they are not as long as the
  // plan has it, or not of one length.
  Status Put(const Piece& piece, Places document, Places row) const;
  // Its document could not be read: its place is padding.
  void LeaveOut(const Piece& piece, Places row) const;

 private:
  struct Packed {
    size_t from = 0;    // of the document
    size_t length = 0;  // of the document
    uint64_t item_bytes = 0;
    std::vector<std::byte> pad;  // an item
  };
  struct Beside {
    PackSpec::Output output;
    size_t feature = 0;  // of the row
  };

  PackedRows() = default;
  void Pad(uint64_t begin, uint64_t end, Places row) const;

  ElementSpec document_;
  ElementSpec row_;
  uint64_t length_ = 0;
  size_t list_ = 0;             // of lists_: the one that the plan knows
  std::vector<Packed> lists_;   // the first features of the row
  std::vector<Beside> beside_;  // the others
  uint64_t documents_ = 0;
  bool mask_first_ = false;
};

}  // namespace penstock
#endif  // BROKER_JOB_PACKED_ROWS_H_
