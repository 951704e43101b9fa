#include "broker/plan/packing.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "broker/plan/fit.h"
#include "broker/plan/orders.h"
#include "broker/plan/select_context.h"
#include "common/exact_max.h"
#include "common/hash.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// Odd, so that windows have seeds of their own; not those of parts
// (plan_spec.h), consumers (job_layout.cc) and windows of files (windows.cc).
constexpr uint64_t kWindowStride = 0xe703'7ed1'a0b4'28db;
// Windows of each part that a use keeps: the last rows of one are still being
// made when the next begins.
constexpr uint64_t kWindowsOfPart = 2;
// Batches ahead may reach over many small windows.
constexpr uint64_t kSmallWindows = 32;
constexpr uint64_t kSmallWindowsBytes = 1 << 20;
// A window that is kept, beside its documents.
constexpr uint64_t kKeptBytes = 320;
// What making a window takes, beside it: for each document, cut or packed, for
// each item of a sequence, and for all who do it at once, if one does not take
// more.
constexpr uint64_t kCutBytes = 24;
constexpr uint64_t kPackBytes = 64;
constexpr uint64_t kRoomBytes = 5;
constexpr uint64_t kMakersBytes = 64 << 20;

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

struct Packing::Documents {
  std::vector<uint64_t> records;
  std::vector<uint64_t> lengths;
};

// Its sequences, numbered from 0: first the whole pieces of long documents,
// then those that are packed, by the first of their documents. With `split` as
// they are cut. Lengths are asked for again: there may be many windows.
struct Packing::Window {
  // split: the documents with items; else those with whole pieces.
  std::vector<uint64_t> cut;
  // By document of `cut`: its items (split), or its whole pieces, up to its
  // end.
  std::vector<uint64_t> ends;
  // By packed sequence: where its documents end in `packed`.
  std::vector<uint32_t> sequence_ends;
  std::vector<uint64_t> packed;  // records

  uint64_t bytes() const {
    return kKeptBytes +
           (cut.capacity() + ends.capacity() + packed.capacity()) *
               sizeof(uint64_t) +
           sequence_ends.capacity() * sizeof(uint32_t);
  }
};

struct Packing::Kept {
  Key key;
  std::once_flag made;
  Window window;
};

class Packing::Maker {
 public:
  explicit Maker(const Packing& of) : of_(of) {
    const MutexLock lock(&of_.makers_mutex_);
    while (of_.makers_ >= of_.makers_max_) {
      of_.maker_left_.Wait(&of_.makers_mutex_);
    }
    ++of_.makers_;
  }
  ~Maker() {
    {
      const MutexLock lock(&of_.makers_mutex_);
      --of_.makers_;
    }
    of_.maker_left_.NotifyOne();
  }
  Maker(const Maker&) = delete;
  Maker& operator=(const Maker&) = delete;

 private:
  const Packing& of_;
};

StatusOr<std::shared_ptr<const Packing>> Packing::Make(
    Options options, std::vector<std::unique_ptr<Order>> documents,
    const ForEach& for_each, const OrderBudget& budget,
    const std::function<void(uint64_t)>& done) {
  std::shared_ptr<Packing> packing(new Packing(std::move(options)));
  const Options& own = packing->options_;
  size_t windows = 0;
  uint64_t all = 0;
  uint64_t largest = 0;  // of windows, in documents
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
    largest = std::max(largest, std::min(rows, own.spec.window));
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
  const uint64_t of_maker =
      packing->splits() ? std::max(largest, uint64_t{1}) * kCutBytes
                        : largest * kPackBytes + own.spec.length * kRoomBytes;
  packing->makers_max_ = std::clamp<uint64_t>(
      kMakersBytes / of_maker, 1,
      std::max(1U, std::min(std::thread::hardware_concurrency(),
                            static_cast<unsigned>(windows))));
  packing->maker_bytes_ = packing->makers_max_ * of_maker;
  const auto reserve = [&](uint64_t bytes) {
    const Status status = budget.reserve(bytes);
    return status.ok() ? status
                       : status.Prepend(Format(
                             "windows of {} in {} (a smaller `window` needs "
                             "less memory)",
                             Counted(own.spec.window, "document", "documents"),
                             Counted(packing->parts_.size(), "part", "parts")));
  };
  PENSTOCK_RETURN_IF_ERROR(
      reserve(windows * (2 * sizeof(uint64_t) + sizeof(Totals)) +
              packing->maker_bytes_));
  std::vector<Totals> of_windows(windows);
  packing->bytes_.resize(windows);
  PENSTOCK_RETURN_IF_ERROR(for_each(windows, [&](size_t i) -> Status {
    PENSTOCK_RETURN_IF_ERROR(budget.CheckWanted());
    const Maker maker(*packing);
    PENSTOCK_ASSIGN_OR_RETURN(const Documents read, packing->ReadWindow(i, 0));
    const Window window = packing->MakeWindow(read);
    of_windows[i] = packing->TotalsOf(read, window);
    packing->bytes_[i] = window.bytes();
    done(read.records.size());
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
    totals.digest = Mix64(totals.digest + each.digest + kGolden64);
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
  uint64_t widest = 0;
  for (size_t i = 0, window = 0; i < packing->parts_.size(); ++i) {
    const size_t end = i + 1 < packing->parts_.size()
                           ? packing->parts_[i + 1].first_window
                           : windows;
    uint64_t of_part = 0;
    for (; window < end; ++window) {
      packing->parts_[i].items += of_windows[window].items;
      packing->parts_[i].sequences += of_windows[window].sequences;
      of_part = std::max(of_part, packing->bytes_[window]);
    }
    widest = std::max(widest, of_part);
    packing->use_bytes_ += kWindowsOfPart * of_part;
  }
  packing->use_bytes_ += std::min(kSmallWindows * widest, kSmallWindowsBytes);
  PENSTOCK_RETURN_IF_ERROR(reserve(packing->KeptMax(0)));
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

uint64_t Packing::ItemsOf(size_t part, uint64_t sequences) const {
  const Part& of = parts_[part];
  return static_cast<uint64_t>(
      std::llround(static_cast<double>(sequences) *
                   (static_cast<double>(of.items) /
                    static_cast<double>(std::max<uint64_t>(of.sequences, 1)))));
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

StatusOr<Packing::Documents> Packing::ReadWindow(size_t window,
                                                 uint64_t pass) const {
  const Part& part = PartOf(window);
  const size_t number = window - part.first_window;
  const uint64_t first = number * options_.spec.window;
  const uint64_t count = DocumentsOf(window);
  Documents read;
  read.records.resize(count);
  read.lengths.resize(count);
  std::optional<Permutation> shuffled;
  if (options_.shuffle) {
    shuffled.emplace(count, part.seed + (number + 1) * kWindowStride, pass);
  }
  Shuffles shuffles;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t to = shuffled ? (*shuffled)(i) : i;
    read.records[to] = RecordAt(part, first + i, &shuffles);
    PENSTOCK_ASSIGN_OR_RETURN(read.lengths[to], LengthOf(read.records[to]));
  }
  return read;
}

Packing::Window Packing::Cut(const Documents& documents) const {
  const std::vector<uint64_t>& lengths = documents.lengths;
  const size_t count = lengths.size() - static_cast<size_t>(std::count(
                                            lengths.begin(), lengths.end(), 0));
  Window cut;
  cut.cut.reserve(count);
  cut.ends.reserve(count);
  uint64_t end = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] == 0) continue;
    cut.cut.push_back(documents.records[i]);
    cut.ends.push_back(end += lengths[i]);
  }
  return cut;
}

Packing::Window Packing::Pack(const Documents& from) const {
  const uint64_t length = options_.spec.length;
  const auto count = static_cast<uint32_t>(from.records.size());
  Window made;
  std::vector<uint32_t> sizes(count);
  size_t have_whole = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t used = ItemsUsed(from.lengths[i]);
    sizes[i] = static_cast<uint32_t>(used % length);
    have_whole += used >= length;
  }
  made.cut.reserve(have_whole);
  made.ends.reserve(have_whole);
  uint64_t whole = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t used = ItemsUsed(from.lengths[i]);
    if (used < length) continue;
    made.cut.push_back(from.records[i]);
    made.ends.push_back(whole += used / length);
  }
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
    made.packed[to++] = from.records[i];
  }
  return made;
}

Packing::Window Packing::MakeWindow(const Documents& documents) const {
  return splits() ? Cut(documents) : Pack(documents);
}

// The same in any pass.
Packing::Totals Packing::TotalsOf(const Documents& documents,
                                  const Window& window) const {
  const uint64_t length = options_.spec.length;
  Totals totals;
  for (const uint64_t has : documents.lengths) {
    const uint64_t used = ItemsUsed(has);
    totals.left_out += used == 0 && has > 0;
    totals.cut_off += used == 0 ? 0 : has - used;
    totals.documents += used > 0;
    totals.items += used;
    totals.digest = Mix64(totals.digest + has + kGolden64);
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
  std::vector<uint64_t> shortest = documents.lengths;
  std::erase(shortest, 0);
  std::sort(shortest.begin(), shortest.end());
  uint64_t room = length;
  uint64_t fit = 0;
  while (fit < shortest.size() && shortest[fit] <= room) {
    room -= shortest[fit++];
  }
  totals.in_sequence = static_cast<uint32_t>(
      std::min<uint64_t>({fit + 2, shortest.size(), length}));
  return totals;
}

void Packing::ForgetLocked() const {
  while (kept_bytes_ > KeptMax(uses_) && kept_.size() > 1) {
    kept_bytes_ -= bytes_[kept_.back()->key.first];
    places_.erase(kept_.back()->key);
    kept_.pop_back();
  }
}

void Packing::ChangeUses(int by) const {
  const MutexLock lock(&mutex_);
  uses_ += static_cast<uint64_t>(by);
  ForgetLocked();
}

std::shared_ptr<const void> Packing::Use(
    std::shared_ptr<const Packing> packing) {
  packing->ChangeUses(1);
  const Packing* const used = packing.get();
  return {used, [packing = std::move(packing)](const Packing*) {
            packing->ChangeUses(-1);
          }};
}

std::shared_ptr<const Packing::Window> Packing::WindowOf(size_t window,
                                                         uint64_t pass) const {
  std::shared_ptr<Kept> kept;
  {
    const MutexLock lock(&mutex_);
    const auto [place, is_new] = places_.try_emplace({window, pass});
    if (is_new) {
      kept_.push_front(std::make_shared<Kept>());
      kept_.front()->key = place->first;
      place->second = kept_.begin();
      kept_bytes_ += bytes_[window];
      ForgetLocked();
    } else {
      kept_.splice(kept_.begin(), kept_, place->second);
    }
    kept = kept_.front();
  }
  std::call_once(kept->made, [&] {
    const Maker maker(*this);
    // Its lengths have been read before without an error.
    kept->window = MakeWindow(*ReadWindow(window, pass));
  });
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
  const auto add = [&](uint64_t record, uint64_t has, uint64_t begin,
                       uint64_t size) {
    const uint64_t at =
        pieces->empty() ? 0 : pieces->back().at + pieces->back().size;
    pieces->push_back({record, has, begin, size, at});
  };
  const auto before = [&ends](size_t i) { return i == 0 ? 0 : ends[i - 1]; };
  if (splits()) {
    uint64_t item = sequence * length;
    const uint64_t end = std::min(item + length, ends.back());
    for (size_t i = document_of(item); item < end; ++i) {
      const uint64_t size = std::min(ends[i], end) - item;
      add(window->cut[i], ends[i] - before(i), item - before(i), size);
      item += size;
    }
    return;
  }
  const uint64_t whole = ends.empty() ? 0 : ends.back();
  if (sequence < whole) {
    const size_t i = document_of(sequence);
    return add(window->cut[i], *LengthOf(window->cut[i]),
               (sequence - before(i)) * length, length);
  }
  sequence -= whole;
  const uint32_t end = window->sequence_ends[sequence];
  for (uint32_t at = sequence == 0 ? 0 : window->sequence_ends[sequence - 1];
       at < end; ++at) {
    const uint64_t has = *LengthOf(window->packed[at]);
    const uint64_t used = ItemsUsed(has);
    add(window->packed[at], has, used / length * length, used % length);
  }
}

uint64_t Packing::memory_bytes() const {
  uint64_t bytes = (ends_.capacity() + bytes_.capacity()) * sizeof(uint64_t) +
                   maker_bytes_ + KeptMax(0);
  for (const Part& part : parts_) bytes += part.documents->memory_bytes();
  return bytes;
}

}  // namespace penstock
