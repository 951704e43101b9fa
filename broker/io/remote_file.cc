#include "broker/io/remote_file.h"

#include <algorithm>
#include <chrono>

#include "broker/io/stores.h"

namespace penstock {

void FetchSignal::Notify() {
  const std::lock_guard lock(mutex_);
  notified_ = true;
  changed_.notify_all();
}

void FetchSignal::Wait(uint64_t ns) {
  // Longer waits would overflow the clock.
  constexpr uint64_t kMostNs = uint64_t{3600} * 1'000'000'000;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(std::min(ns, kMostNs)),
                    [this] { return notified_; });
  notified_ = false;
}

Status FetchWait::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void FetchWait::Finish(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
  }
  left_.fetch_sub(1, std::memory_order_acq_rel);
  signal_->Notify();
}

RemoteFile::RemoteFile(Opened opened, Fd fd, Asks asks)
    : url_(std::move(opened.url)),
      version_(std::move(opened.version)),
      path_(std::move(opened.path)),
      bytes_(opened.bytes),
      ahead_bytes_(opened.ahead_bytes),
      room_bytes_(opened.room_bytes),
      kept_bytes_(opened.kept_bytes),
      asked_room_bytes_(opened.asked_room_bytes),
      fd_(std::move(fd)),
      unit_bytes_(std::move(opened.unit_bytes)),
      asks_(std::move(asks)),
      kept_(bytes_ / kBlockBytes / 64 + 1),
      copy_(opened.copy),
      asked_(kept_.size()) {}

RemoteFile::~RemoteFile() { asks_(Ask::kClose, copy_, {}); }

RemoteFile::Range RemoteFile::RangeOf(uint64_t first, uint64_t end) const {
  const uint64_t offset = first * kBlockBytes;
  return {offset, std::min(end * kBlockBytes, bytes_) - offset};
}

bool RemoteFile::Keeps(uint64_t offset, uint64_t bytes) const {
  const Range range = {offset, bytes};
  for (uint64_t i = FirstBlock(range); i < EndBlock(range); ++i) {
    if (!Has(kept_, i)) return false;
  }
  return true;
}

bool RemoteFile::IsThere(uint64_t block) const {
  if (Has(kept_, block)) return true;
  const auto held = held_.find(block);
  return held != held_.end() && held->second.there;
}

uint64_t RemoteFile::Hold(const Range& range,
                          const std::shared_ptr<FetchWait>& wait, Ask ask) {
  const std::lock_guard lock(mutex_);
  const uint64_t end = EndBlock(range);
  uint64_t asked = 0;
  bool all = true;
  uint64_t absent = end;  // the first of a run of absent blocks
  for (uint64_t i = FirstBlock(range); i < end; ++i) {
    bool there = Has(kept_, i);
    if (!there) {
      Held& held = held_[i];
      ++held.holds;
      there = held.there;
    }
    if (!there && absent == end) absent = i;
    if (there && absent != end) {
      asked += AskFor(absent, i, ask);
      absent = end;
    }
    all = all && there;
  }
  if (absent != end) asked += AskFor(absent, end, ask);
  if (!all && wait != nullptr) {
    wait->Add();
    waiting_.push_back({FirstBlock(range), end, wait});
  }
  return asked;
}

// Asks for those of the blocks that nobody has asked for, with the rest of
// their units; others that somebody waits for now are promoted. No block is
// asked for twice: the second answer could come after the block was given up.
uint64_t RemoteFile::AskFor(uint64_t first, uint64_t end, Ask ask) {
  const uint64_t blocks = (bytes_ + kBlockBytes - 1) / kBlockBytes;
  // Relaxed: a late view fetches a little more or less.
  const uint64_t unit =
      whole_units_.load(std::memory_order_relaxed)
          ? std::max<uint64_t>(
                unit_bytes_->load(std::memory_order_relaxed) / kBlockBytes, 1)
          : 1;
  const uint64_t from = first / unit * unit;
  const uint64_t to = std::min((end + unit - 1) / unit * unit, blocks);
  uint64_t bytes = 0;
  for (uint64_t i = from; i < to;) {
    const bool asked = Has(asked_, i);
    const auto alike = [&](uint64_t block) {
      return !IsThere(block) && Has(asked_, block) == asked;
    };
    const uint64_t begin = i;
    while (i < to && alike(i)) ++i;
    if (i == begin) {
      ++i;
    } else if (!asked) {
      for (uint64_t block = begin; block < i; ++block) Set(&asked_, block);
      const Range range = RangeOf(begin, i);
      bytes += range.bytes;
      asks_(ask, copy_, range);
    } else if (ask == Ask::kHurry && begin < end && i > first) {
      asks_(Ask::kPromote, copy_,
            RangeOf(std::max(begin, first), std::min(i, end)));
    }
  }
  return bytes;
}

void RemoteFile::Release(const Range& range) {
  const std::lock_guard lock(mutex_);
  const uint64_t end = EndBlock(range);
  uint64_t unused = end;
  for (uint64_t i = FirstBlock(range); i < end; ++i) {
    bool passes = false;
    if (const auto held = held_.find(i);
        held != held_.end() && --held->second.holds == 0) {
      passes = held->second.there;
      held_.erase(held);
    }
    if (passes && unused == end) unused = i;
    if (!passes && unused != end) {
      asks_(Ask::kGiveUp, copy_, RangeOf(unused, i));
      unused = end;
    }
  }
  if (unused != end) asks_(Ask::kGiveUp, copy_, RangeOf(unused, end));
}

void RemoteFile::Arrived(const Range& range, bool kept) {
  const std::lock_guard lock(mutex_);
  if (range.offset >= bytes_ || range.bytes > bytes_ - range.offset) return;
  const uint64_t end = EndBlock(range);
  for (uint64_t i = FirstBlock(range); i < end; ++i) {
    Clear(&asked_, i);
    const auto held = held_.find(i);
    if (kept) {
      Set(&kept_, i);
      if (held != held_.end()) held_.erase(held);
    } else if (held != held_.end()) {
      held->second.there = true;
    } else if (!Has(kept_, i)) {
      asks_(Ask::kGiveUp, copy_, RangeOf(i, i + 1));
    }
  }
  EndWaits(range, OkStatus());
}

void RemoteFile::Failed(const Range& range, const Status& status) {
  const std::lock_guard lock(mutex_);
  if (range.offset >= bytes_ || range.bytes > bytes_ - range.offset) return;
  for (uint64_t i = FirstBlock(range); i < EndBlock(range); ++i) {
    Clear(&asked_, i);
  }
  EndWaits(range, status);
}

// Those that wait for a part of the range: with the error, or with all of
// theirs there.
void RemoteFile::EndWaits(const Range& range, const Status& status) {
  const uint64_t first = FirstBlock(range);
  const uint64_t end = EndBlock(range);
  std::erase_if(waiting_, [&](const Waiting& each) {
    if (each.end <= first || each.first >= end) return false;
    if (status.ok()) {
      for (uint64_t i = each.first; i < each.end; ++i) {
        if (!IsThere(i)) return false;
      }
    }
    each.wait->Finish(status);
    return true;
  });
}

void RemoteFile::AskAgain(uint64_t copy) {
  const std::lock_guard lock(mutex_);
  copy_ = copy;
  for (std::atomic<uint64_t>& word : asked_) {
    word.store(0, std::memory_order_relaxed);
  }
  std::vector<uint64_t> absent;
  for (const auto& [block, held] : held_) {
    if (!held.there) absent.push_back(block);
  }
  std::sort(absent.begin(), absent.end());
  for (size_t i = 0; i < absent.size();) {
    const uint64_t first = absent[i];
    uint64_t end = first;
    while (i < absent.size() && absent[i] == end) {
      ++end;
      ++i;
    }
    AskFor(first, end, Ask::kHurry);  // somebody may wait for it
  }
}

HeldRanges::HeldRanges(RemoteFile* file, std::vector<RemoteFile::Range> ranges,
                       const std::shared_ptr<FetchWait>& wait,
                       RemoteFile::Ask ask)
    : file_(file), ranges_(std::move(ranges)) {
  for (const RemoteFile::Range& each : ranges_) {
    asked_bytes_ += file_->Hold(each, wait, ask);
  }
}

StatusOr<HeldRanges> HeldRanges::Await(RemoteFile* file,
                                       std::vector<RemoteFile::Range> ranges,
                                       const std::function<Status()>& check) {
  constexpr uint64_t kLookNs = 100'000'000;
  const auto signal = std::make_shared<FetchSignal>();
  const auto wait = std::make_shared<FetchWait>(signal);
  HeldRanges held(file, std::move(ranges), wait, RemoteFile::Ask::kHurry);
  while (!wait->over()) {
    PENSTOCK_RETURN_IF_ERROR(check());
    signal->Wait(kLookNs);
  }
  PENSTOCK_RETURN_IF_ERROR(wait->status());
  return held;
}

std::optional<size_t> RemoteFolder::Find(std::string_view name) const {
  const auto found = std::lower_bound(names.begin(), names.end(), name);
  if (found == names.end() || *found != name) return std::nullopt;
  return static_cast<size_t>(found - names.begin());
}

Status NoStoresError(const std::string& url) {
  return InvalidArgumentError(
      "{} is an address, and this broker reads only files that this machine "
      "has mounted: a service reads object stores with `fetcher` in its "
      "configuration, a private broker (no `socket`) with a cache folder",
      url);
}

}  // namespace penstock
