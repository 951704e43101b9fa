#include "broker/plan/packing.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <span>
#include <utility>

#include "broker/plan/fit.h"
#include "broker/plan/orders.h"
#include "broker/plan/select_context.h"
#include "common/exact_max.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// Odd, so that windows have seeds of their own; not those of parts
// (plan_spec.h), consumers (job_layout.cc) and windows of files (windows.cc).
constexpr uint64_t kWindowStride = 0xe703'7ed1'a0b4'28db;
// Windows that are kept: consumers with orders of their own are each in one.
constexpr size_t kWindowsKept = 32;
// What a window keeps of a document, at most.
constexpr uint64_t kDocumentBytes = 32;

Fitted Fit(const PackSpec& spec, std::span<const uint32_t> sizes) {
  const auto room = static_cast<uint32_t>(spec.length);
  const uint32_t most = spec.documents.value_or(UINT32_MAX);
  return spec.method == PackSpec::Method::kFirstFit
             ? FirstFit(sizes, room, most)
             : BestFit(sizes, room, most);
}

// The documents with items, the longest first, else in their order.
std::vector<uint32_t> ByLength(const std::vector<uint32_t>& sizes,
                               uint64_t longest) {
  std::vector<uint32_t> documents;
  documents.reserve(sizes.size());
  if (longest > 4 * sizes.size()) {
    for (uint32_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] > 0) documents.push_back(i);
    }
    std::stable_sort(
        documents.begin(), documents.end(),
        [&sizes](uint32_t a, uint32_t b) { return sizes[a] > sizes[b]; });
    return documents;
  }
  // Where the next document of each length goes.
  std::vector<uint32_t> next(longest + 2, 0);
  for (const uint32_t size : sizes) ++next[longest - size + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  documents.resize(next[longest]);
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 0) documents[next[longest - sizes[i]]++] = i;
  }
  return documents;
}

}  // namespace

// Its sequences, numbered from 0: first the whole pieces of long documents,
// then those that are packed, by the first of their documents. With `split` as
// they are cut.
struct Packing::Window {
  std::vector<uint64_t> records;  // in the order of the pass
  std::vector<uint64_t> lengths;
  // By document. split: the items that are used, up to its end; else the whole
  // pieces, empty: there are none.
  std::vector<uint64_t> ends;
  // By packed sequence: where its documents end in `packed`.
  std::vector<uint32_t> sequence_ends;
  std::vector<uint32_t> packed;
};

struct Packing::Kept {
  size_t number = 0;
  uint64_t pass = 0;
  std::once_flag made;
  Window window;
};

StatusOr<std::shared_ptr<const Packing>> Packing::Make(
    Options options, std::vector<std::unique_ptr<Order>> documents,
    const ForEach& for_each, const OrderBudget& budget,
    const std::function<void(uint64_t)>& done) {
  std::shared_ptr<Packing> packing(new Packing(std::move(options)));
  const Options& own = packing->options_;
  size_t windows = 0;
  uint64_t all = 0;
  for (size_t i = 0; i < documents.size(); ++i) {
    std::unique_ptr<Order>& order = documents[i];
    if (order->draws()) {
      return InvalidArgumentError(
          "a sample has other records in each pass, and each window has the "
          "same documents in all: `penstock convert` the rows first");
    }
    Part part;
    part.first_window = windows;
    if (own.shuffle) {
      part.seed = own.shuffle->SeedOf(static_cast<uint32_t>(i));
      if (order->shuffled_parts() == 0 && order->size() > 0) {
        part.shuffled.emplace(order->size(), part.seed, 0);
      }
    }
    const uint64_t rows = order->size();
    all += rows;
    const uint64_t more = rows / own.spec.window + (rows % own.spec.window > 0);
    if (more > kWindowsMax) {
      return InvalidArgumentError(
          "{} documents in windows of {}: more than {} windows; take a larger "
          "window",
          rows, own.spec.window, kWindowsMax);
    }
    windows += more;
    part.documents = std::move(order);
    packing->parts_.push_back(std::move(part));
  }
  PENSTOCK_RETURN_IF_ERROR(budget.reserve(
      windows * (sizeof(uint64_t) + sizeof(Totals)) +
      std::min(all, kWindowsKept * own.spec.window) * kDocumentBytes));
  std::vector<Totals> of_windows(windows);
  PENSTOCK_RETURN_IF_ERROR(for_each(windows, [&](size_t i) -> Status {
    PENSTOCK_RETURN_IF_ERROR(budget.CheckWanted());
    PENSTOCK_ASSIGN_OR_RETURN(const Window window, packing->MakeWindow(i, 0));
    of_windows[i] = packing->TotalsOf(window);
    done(window.records.size());
    return OkStatus();
  }));
  Totals& totals = packing->totals_;
  packing->ends_.reserve(windows);
  for (const Totals& each : of_windows) {
    totals.documents += each.documents;
    totals.items += each.items;
    totals.left_out += each.left_out;
    totals.cut_off += each.cut_off;
    totals.sequences += each.sequences;
    totals.in_sequence = std::max(totals.in_sequence, each.in_sequence);
    if (totals.items + totals.cut_off > kExactMax) {
      return InvalidArgumentError("more than {} items in a pass: select fewer",
                                  kExactMax);
    }
    packing->ends_.push_back(totals.sequences);
  }
  if (totals.sequences == 0) {
    return InvalidArgumentError(
        "of {} none has an item in column '{}'{}",
        Counted(all, "document", "documents"), own.lengths.name,
        totals.left_out > 0 ? " and at most `length`" : "");
  }
  if (own.spec.documents && totals.in_sequence > *own.spec.documents) {
    return InvalidArgumentError(
        "documents: {}, and `method: split` may put {} into a sequence: give "
        "at least that many, or leave it out",
        *own.spec.documents, totals.in_sequence);
  }
  return std::shared_ptr<const Packing>(std::move(packing));
}

StatusOr<std::unique_ptr<Order>> Packing::SequencesOf(size_t part) const {
  const size_t first = parts_[part].first_window;
  const size_t end =
      part + 1 < parts_.size() ? parts_[part + 1].first_window : ends_.size();
  const uint64_t before = BeginOf(first);
  std::vector<uint64_t> run_ends;
  run_ends.reserve(end - first);
  for (size_t window = first; window < end; ++window) {
    run_ends.push_back(ends_[window] - before);
  }
  const uint64_t count = run_ends.empty() ? 0 : run_ends.back();
  if (count == 0) {
    return InvalidArgumentError("none of its documents has an item");
  }
  std::unique_ptr<Order> sequences = AllRecords(count, before);
  if (!options_.shuffle) return sequences;
  return ShuffleWindows(std::move(sequences), std::move(run_ends), 1);
}

const Packing::Part& Packing::PartOf(size_t window) const {
  return *std::prev(std::upper_bound(
      parts_.begin(), parts_.end(), window,
      [](size_t at, const Part& part) { return at < part.first_window; }));
}

uint64_t Packing::DocumentsOf(size_t window) const {
  const Part& part = PartOf(window);
  const uint64_t first = (window - part.first_window) * options_.spec.window;
  return std::min(options_.spec.window, part.documents->size() - first);
}

uint64_t Packing::RecordAt(const Part& part, uint64_t position,
                           Shuffles* shuffles) const {
  if (part.shuffled) {
    return part.documents->At((*part.shuffled)(position), 0, {}).record;
  }
  const ShuffleSpec* const spec =
      options_.shuffle ? &*options_.shuffle : nullptr;
  return part.documents->At(position, 0, {spec, shuffles}).record;
}

uint64_t Packing::ItemsUsed(uint64_t length) const {
  const uint64_t most = options_.spec.length;
  if (length <= most || splits()) return length;
  switch (options_.spec.longer) {
    case PackSpec::Longer::kCut:
      return most;
    case PackSpec::Longer::kDrop:
      return 0;
    default:
      return length;
  }
}

StatusOr<uint64_t> Packing::LengthOf(uint64_t record) const {
  const PackSpec& spec = options_.spec;
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t length,
                            LengthAt(options_.lengths, record));
  if (length > options_.length_max) {
    return InvalidArgumentError(
        "record {} has {} items by column '{}', and the list that is packed "
        "has room for {}",
        record, length, options_.lengths.name, options_.length_max);
  }
  if (length > spec.length && spec.longer == PackSpec::Longer::kFail) {
    return InvalidArgumentError(
        "record {} has {} items, a sequence {}, and `longer` is fail: use "
        "split, cut or drop, or a greater `length`",
        record, length, spec.length);
  }
  return length;
}

StatusOr<Packing::Window> Packing::MakeWindow(size_t window,
                                              uint64_t pass) const {
  const Part& part = PartOf(window);
  const size_t number = window - part.first_window;
  const uint64_t first = number * options_.spec.window;
  const uint64_t count = DocumentsOf(window);
  Window made;
  made.records.resize(count);
  made.lengths.resize(count);
  std::optional<Permutation> shuffled;
  if (options_.shuffle) {
    shuffled.emplace(count, part.seed + (number + 1) * kWindowStride, pass);
  }
  Shuffles shuffles;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t to = shuffled ? (*shuffled)(i) : i;
    made.records[to] = RecordAt(part, first + i, &shuffles);
    PENSTOCK_ASSIGN_OR_RETURN(made.lengths[to], LengthOf(made.records[to]));
  }
  const uint64_t length = options_.spec.length;
  std::vector<uint32_t> sizes(splits() ? 0 : count);
  uint64_t end = 0;
  made.ends.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t used = ItemsUsed(made.lengths[i]);
    made.ends.push_back(end += splits() ? used : used / length);
    if (!splits()) sizes[i] = static_cast<uint32_t>(used % length);
  }
  if (splits()) return made;
  if (end == 0) made.ends = {};
  const std::vector<uint32_t> documents = ByLength(sizes, length - 1);
  std::vector<uint32_t> ordered;
  ordered.reserve(documents.size());
  for (const uint32_t document : documents) ordered.push_back(sizes[document]);
  const Fitted fitted = Fit(options_.spec, ordered);
  // Bins are numbered by their first document, and have them in their order.
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> bin_of(count, kNone);
  std::vector<uint32_t> in_bin(fitted.count, 0);
  for (size_t i = 0; i < documents.size(); ++i) {
    bin_of[documents[i]] = fitted.bins[i];
    ++in_bin[fitted.bins[i]];
  }
  std::vector<uint32_t> next(fitted.count, kNone);  // where a bin's next goes
  made.packed.resize(documents.size());
  made.sequence_ends.reserve(fitted.count);
  for (uint32_t i = 0; i < count; ++i) {
    if (bin_of[i] == kNone) continue;
    uint32_t& to = next[bin_of[i]];
    if (to == kNone) {
      to = made.sequence_ends.empty() ? 0 : made.sequence_ends.back();
      made.sequence_ends.push_back(to + in_bin[bin_of[i]]);
    }
    made.packed[to++] = i;
  }
  return made;
}

// The same in any pass.
Packing::Totals Packing::TotalsOf(const Window& window) const {
  const uint64_t length = options_.spec.length;
  Totals totals;
  for (const uint64_t has : window.lengths) {
    const uint64_t used = ItemsUsed(has);
    totals.left_out += used == 0 && has > 0;
    totals.cut_off += used == 0 ? 0 : has - used;
    totals.documents += used > 0;
    totals.items += used;
  }
  if (!splits()) {
    const uint64_t whole = window.ends.empty() ? 0 : window.ends.back();
    totals.sequences = whole + window.sequence_ends.size();
    totals.in_sequence = whole > 0;
    uint32_t begin = 0;
    for (const uint32_t end : window.sequence_ends) {
      totals.in_sequence = std::max(totals.in_sequence, end - begin);
      begin = end;
    }
    return totals;
  }
  totals.sequences = (totals.items + length - 1) / length;
  // At worst the shortest of the window, and an item of each of two others.
  std::vector<uint64_t> shortest = window.lengths;
  std::erase(shortest, 0);
  std::sort(shortest.begin(), shortest.end());
  uint64_t room = length;
  uint64_t documents = 0;
  while (documents < shortest.size() && shortest[documents] <= room) {
    room -= shortest[documents++];
  }
  totals.in_sequence = static_cast<uint32_t>(
      std::min<uint64_t>({documents + 2, shortest.size(), length}));
  return totals;
}

std::shared_ptr<const Packing::Window> Packing::WindowOf(size_t window,
                                                         uint64_t pass) const {
  std::shared_ptr<Kept> kept;
  {
    const MutexLock lock(&mutex_);
    const auto found =
        std::find_if(kept_.begin(), kept_.end(), [&](const auto& each) {
          return each->number == window && each->pass == pass;
        });
    if (found != kept_.end()) {
      std::rotate(kept_.begin(), found, found + 1);
    } else {
      if (kept_.size() == kWindowsKept) kept_.pop_back();
      kept_.insert(kept_.begin(), std::make_shared<Kept>());
      kept_.front()->number = window;
      kept_.front()->pass = pass;
    }
    kept = kept_.front();
  }
  // Its lengths have been read before without an error.
  std::call_once(kept->made, [&] { kept->window = *MakeWindow(window, pass); });
  return {kept, &kept->window};
}

void Packing::PiecesOf(uint64_t sequence, uint64_t pass,
                       std::vector<Piece>* pieces) const {
  pieces->clear();
  const auto number = static_cast<size_t>(
      std::upper_bound(ends_.begin(), ends_.end(), sequence) - ends_.begin());
  const bool anew = options_.shuffle && options_.shuffle->each_epoch;
  const std::shared_ptr<const Window> window =
      WindowOf(number, anew ? pass : 0);
  const std::vector<uint64_t>& ends = window->ends;
  sequence -= BeginOf(number);
  const uint64_t length = options_.spec.length;
  const auto document_of = [&ends](uint64_t at) {
    return static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), at) -
                               ends.begin());
  };
  const auto add = [&](size_t document, uint64_t begin, uint64_t size) {
    const uint64_t at =
        pieces->empty() ? 0 : pieces->back().at + pieces->back().size;
    pieces->push_back({window->records[document], window->lengths[document],
                       begin, size, at});
  };
  if (splits()) {
    uint64_t item = sequence * length;
    const uint64_t end = std::min(item + length, ends.back());
    for (size_t i = document_of(item); item < end; ++i) {
      const uint64_t size = std::min(ends[i], end) - item;
      // Some have no items.
      if (size > 0) add(i, item + window->lengths[i] - ends[i], size);
      item += size;
    }
    return;
  }
  const uint64_t whole = ends.empty() ? 0 : ends.back();
  if (sequence < whole) {
    const size_t i = document_of(sequence);
    const uint64_t before = i == 0 ? 0 : ends[i - 1];
    return add(i, (sequence - before) * length, length);
  }
  sequence -= whole;
  const uint32_t end = window->sequence_ends[sequence];
  for (uint32_t at = sequence == 0 ? 0 : window->sequence_ends[sequence - 1];
       at < end; ++at) {
    const uint32_t i = window->packed[at];
    const uint64_t used = ItemsUsed(window->lengths[i]);
    add(i, used / length * length, used % length);
  }
}

uint64_t Packing::memory_bytes() const {
  uint64_t bytes = ends_.capacity() * sizeof(uint64_t);
  uint64_t documents = 0;
  for (const Part& part : parts_) {
    bytes += part.documents->memory_bytes();
    documents += part.documents->size();
  }
  return bytes + std::min(documents, kWindowsKept * options_.spec.window) *
                     kDocumentBytes;
}

}  // namespace penstock
