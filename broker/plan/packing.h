// `batch.pack`: rows are sequences of one length, each of the items of several
// records, the documents.
//
// Documents are packed window by window. Which documents a window has is the
// same in each pass (those at so many positions of the seed's order), so it has
// equally many sequences in each, and where steps begin does not change. A pass
// orders the documents of a window anew: documents of one length take each
// other's place in a sequence, and `split` cuts others. Windows, and the
// sequences of each, are shuffled as files and their records are
// (ShuffleWindows).
#ifndef BROKER_PLAN_PACKING_H_
#define BROKER_PLAN_PACKING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/plan/columns.h"
#include "broker/plan/order.h"
#include "broker/plan/plan_spec.h"
#include "common/status.h"

namespace penstock {

// Consecutive items of a document, and where a sequence has them.
struct Piece {
  uint64_t record = 0;
  uint64_t length = 0;  // of the document
  uint64_t begin = 0;   // in the document
  uint64_t size = 0;    // 1 or more
  uint64_t at = 0;      // in the sequence
  bool operator==(const Piece&) const = default;
};

// Which sequences there are, and what each has. Any thread.
class Packing {
 public:
  static constexpr uint64_t kDocumentItemsMax = uint64_t{1} << 40;

  // Calls work(i) for each i below count, perhaps on several threads.
  using ForEach = std::function<Status(
      size_t count, const std::function<Status(size_t i)>& work)>;

  struct Options {
    PackSpec spec;
    std::optional<ShuffleSpec> shuffle;
    Column lengths;
    uint64_t length_max = kDocumentItemsMax;  // that a document may have
  };
  // documents: those of each part, whose sequences follow one another. done: is
  // told the documents of each window. One pass over their lengths.
  // InvalidArgument: an order of other records in each pass, too many windows,
  // errors of LengthAt, documents that are too long or too many for a sequence,
  // none at all. Errors of the budget: 8 bytes a window, and windows that are
  // kept.
  static StatusOr<std::shared_ptr<const Packing>> Make(
      Options options, std::vector<std::unique_ptr<Order>> documents,
      const ForEach& for_each, const OrderBudget& budget,
      const std::function<void(uint64_t)>& done);

  struct Totals {
    uint64_t documents = 0;  // without those of no items
    uint64_t items = 0;      // in sequences
    uint64_t left_out = 0;   // documents that are too long
    uint64_t cut_off = 0;    // items of documents that are too long
    uint64_t sequences = 0;
    uint32_t in_sequence = 0;  // at most so many documents
  };
  const Totals& totals() const { return totals_; }
  // Shares of the sequences' items that are no padding.
  double fill() const {
    return static_cast<double>(totals_.items) /
           static_cast<double>(options_.spec.length) /
           static_cast<double>(totals_.sequences);
  }
  size_t parts() const { return parts_.size(); }

  // The sequences of a part in the order of a pass, by number.
  StatusOr<std::unique_ptr<Order>> SequencesOf(size_t part) const;
  // Sets *pieces to those of a sequence in a pass, in their order there. Costs
  // its window, if that is none of the last.
  void PiecesOf(uint64_t sequence, uint64_t pass,
                std::vector<Piece>* pieces) const;

  uint64_t memory_bytes() const;

 private:
  struct Part {
    std::unique_ptr<Order> documents;
    std::optional<Permutation> shuffled;  // unless the order shuffles itself
    uint64_t seed = 0;                    // of windows
    size_t first_window = 0;
  };
  // What is kept of a window in a pass.
  struct Window;
  struct Kept;

  explicit Packing(Options options) : options_(std::move(options)) {}
  bool splits() const {
    return options_.spec.method == PackSpec::Method::kSplit;
  }
  const Part& PartOf(size_t window) const;
  uint64_t DocumentsOf(size_t window) const;
  uint64_t BeginOf(size_t window) const {
    return window == 0 ? 0 : ends_[window - 1];
  }
  // The document at a position of the part's order.
  uint64_t RecordAt(const Part& part, uint64_t position,
                    Shuffles* shuffles) const;
  // Those that are packed of a document with so many.
  uint64_t ItemsUsed(uint64_t length) const;
  StatusOr<uint64_t> LengthOf(uint64_t record) const;
  StatusOr<Window> MakeWindow(size_t window, uint64_t pass) const;
  Totals TotalsOf(const Window& window) const;
  std::shared_ptr<const Window> WindowOf(size_t window, uint64_t pass) const;

  const Options options_;
  std::vector<Part> parts_;
  std::vector<uint64_t> ends_;  // of windows, in sequences
  Totals totals_;
  mutable Mutex mutex_;
  // The last ones, the latest first.
  mutable std::vector<std::shared_ptr<Kept>> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace penstock
#endif  // BROKER_PLAN_PACKING_H_
