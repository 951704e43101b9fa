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
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
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
  // none at all. Errors of the budget: what memory_bytes says.
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
    uint64_t digest = 0;       // of the lengths of all documents, in order
  };
  const Totals& totals() const { return totals_; }
  // Shares of the sequences' items that are no padding.
  double fill() const {
    return static_cast<double>(totals_.items) /
           static_cast<double>(options_.spec.length) /
           static_cast<double>(totals_.sequences);
  }
  size_t parts() const { return parts_.size(); }
  // The items of so many sequences of a part, as those of a pass have them on
  // average.
  uint64_t ItemsOf(size_t part, uint64_t sequences) const;

  // The sequences of a part in the order of a pass, by number.
  StatusOr<std::unique_ptr<Order>> SequencesOf(size_t part) const;
  // Sets *pieces to those of a sequence in a pass, in their order there. Costs
  // its window, if that is not kept: the windows in which a position of each
  // part is are, for each use.
  void PiecesOf(uint64_t sequence, uint64_t pass,
                std::vector<Piece>* pieces) const;

  // For somebody with a position of its own, until it is destroyed. The caller
  // reserves use_bytes() for it.
  static std::shared_ptr<const void> Use(
      std::shared_ptr<const Packing> packing);
  uint64_t use_bytes() const { return use_bytes_; }
  // Without uses: for those who ask now and then a window of each part is kept.
  uint64_t memory_bytes() const;

 private:
  struct Part {
    std::unique_ptr<Order> documents;
    std::optional<Permutation> shuffled;  // unless the order shuffles itself
    uint64_t seed = 0;                    // of windows
    size_t first_window = 0;
    uint64_t items = 0;  // of all its sequences
    uint64_t sequences = 0;
  };
  // The documents of a window, in the order of a pass.
  struct Documents;
  // What is kept of a window in a pass.
  struct Window;
  struct Kept;
  using Key = std::pair<size_t, uint64_t>;  // window, pass
  // Somebody who makes a window: few do at once, each with memory of its own.
  class Maker;

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
  StatusOr<Documents> ReadWindow(size_t window, uint64_t pass) const;
  Window Cut(const Documents& documents) const;
  Window Pack(const Documents& documents) const;
  Window MakeWindow(const Documents& documents) const;
  Totals TotalsOf(const Documents& documents, const Window& window) const;
  std::shared_ptr<const Window> WindowOf(size_t window, uint64_t pass) const;
  uint64_t KeptMax(uint64_t uses) const {
    return use_bytes_ / 2 + uses * use_bytes_;
  }
  void ChangeUses(int by) const;
  void ForgetLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  std::vector<Part> parts_;
  std::vector<uint64_t> ends_;   // of windows, in sequences
  std::vector<uint64_t> bytes_;  // of windows that are kept
  Totals totals_;
  uint64_t use_bytes_ = 0;
  uint64_t maker_bytes_ = 0;
  size_t makers_max_ = 1;

  mutable Mutex makers_mutex_;
  mutable CondVar maker_left_;
  mutable size_t makers_ ABSL_GUARDED_BY(makers_mutex_) = 0;

  mutable Mutex mutex_;
  mutable uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
  // The latest first.
  mutable std::list<std::shared_ptr<Kept>> kept_ ABSL_GUARDED_BY(mutex_);
  mutable std::map<Key, std::list<std::shared_ptr<Kept>>::iterator> places_
      ABSL_GUARDED_BY(mutex_);
  mutable uint64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace penstock
#endif  // BROKER_PLAN_PACKING_H_
