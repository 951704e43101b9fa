#include "broker/job/remote_rows.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "broker/job/look_ahead.h"
#include "common/crc32c.h"
#include "common/deadline.h"
#include "common/hash.h"

namespace penstock {
namespace {

constexpr uint64_t kFeatureAlign = 16;
constexpr uint64_t kRowAlign = 64;
// How much farther ahead rows are asked for than an answer takes.
constexpr double kLeadTimes = 1.5;
// What the last answer, or 200 ms, counts of a mean.
constexpr double kNewShare = 0.2;
constexpr double kSecond = 1e9;
// The part of what local workers can make that is left to them.
constexpr double kLocalShare = 0.9;
// What is wanted is told as if makers took so many.
constexpr uint32_t kAsksLeast = 8;

constexpr uint64_t RoundUp(uint64_t bytes, uint64_t to) {
  return (bytes + to - 1) / to * to;
}

double Mean(double before, double now) {
  return before == 0 ? now : before + kNewShare * (now - before);
}

}  // namespace

size_t RemoteRows::KeyHash::operator()(const Key& key) const {
  return (key.record ^ key.pass * kGolden64) * kGolden64;
}

RemoteRows::RemoteRows(std::shared_ptr<const Dataset> dataset,
                       uint64_t position)
    : dataset_(std::move(dataset)), claimed_(position) {
  // Eight bytes are never cut short or interrupted (getrandom(2)).
  (void)!getrandom(&check_key_, sizeof(check_key_), 0);
}

// ---- the control thread

void RemoteRows::SetSteps(std::shared_ptr<const StepsOfMakers> steps) {
  steps_ = std::move(steps);
  if (steps_ == nullptr) return;
  for (const RawFeature& raw : steps_->program->head_spec()) {
    form_.features.push_back(raw.feature);
    form_.offsets.push_back(form_.row_bytes);
    form_.row_bytes +=
        RoundUp(std::max<uint64_t>(raw.feature.RowBytes(), 1), kFeatureAlign);
  }
  form_.row_bytes = RoundUp(form_.row_bytes, kRowAlign);
  form_.rows_of_ask = static_cast<uint32_t>(
      std::clamp<uint64_t>(kAskBytesMax / form_.row_bytes, 1, kAskRowsMax));
  form_.places = static_cast<uint32_t>(
      std::min<uint64_t>(kBytesMax / form_.row_bytes, kPlacesMax));
}

StatusOr<int> RemoteRows::Begin(
    uint32_t asks, const std::function<Status(uint64_t)>& reserve) {
  if (form_.places < form_.rows_of_ask) {
    return ResourceExhaustedError("a row has {} bytes, more than {}",
                                  form_.row_bytes, kBytesMax);
  }
  const uint64_t bytes = form_.places * form_.row_bytes;
  MutexLock lock(&mutex_);
  if (reserved_ == 0) {
    PENSTOCK_RETURN_IF_ERROR(reserve(bytes));
    reserved_ = bytes;
  }
  Fd fd(memfd_create("penstock remote rows", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoError(errno, "memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
          0) {
    return ErrnoError(errno, "make the memory of remote rows");
  }
  memory_ = std::make_shared<const Fd>(std::move(fd));
  asks_max_ = std::min(asks, kAsksMax);
  // Places that workers have in use are of the memory before.
  places_.resize(form_.places);
  free_.clear();
  for (uint32_t place = form_.places; place-- > 0;) {
    if (places_[place].state == State::kFree) free_.push_back(place);
  }
  answer_ns_ = 0;
  next_ = 0;
  begun_.store(true, std::memory_order_relaxed);
  hungry_.store(true, std::memory_order_relaxed);
  return memory_->get();
}

void RemoteRows::SetAsks(uint32_t asks) {
  MutexLock lock(&mutex_);
  asks_max_ = std::min(asks, kAsksMax);
}

void RemoteRows::End() {
  begun_.store(false, std::memory_order_relaxed);
  hungry_.store(false, std::memory_order_relaxed);
  MutexLock lock(&mutex_);
  for (const auto& [number, ask] : asks_) lost_rows_ += ask.places.size();
  asks_.clear();
  index_.clear();
  for (Place& place : places_) {
    if (place.state != State::kInUse) place = {};
  }
  memory_.reset();
}

// So far ahead an answer comes before the workers. While ranks wait these are
// held up by nothing but the rows that they make themselves, and these are
// counted; so local workers get as many rows as they make, and makers all
// others, however fast either is. Otherwise ranks set the pace.
uint64_t RemoteRows::LeadLocked(bool ranks_wait) const {
  const double local = spread_ * local_rows_per_s_;
  const double rows = kLeadTimes *
                      (ranks_wait ? local : std::max(rows_per_s_, local)) *
                      answer_ns_ / kSecond;
  return static_cast<uint64_t>(
      std::min<double>(rows, spread_ * 4.0 * form_.places));
}

// What local workers leave of the rows that are taken.
double RemoteRows::ShareLocked(bool ranks_wait) const {
  if (ranks_wait) return 1;
  const double local = kLocalShare * spread_ * local_rows_per_s_;
  return rows_per_s_ > local ? (rows_per_s_ - local) / rows_per_s_ : 0;
}

std::optional<RemoteRows::Ask> RemoteRows::Next(const Plan& plan,
                                                const Wanted& wanted) {
  wanted_rows_.store(0, std::memory_order_relaxed);
  if (!begun() || wanted.ranks.empty()) return std::nullopt;
  MutexLock lock(&mutex_);
  const bool has_room =
      asks_.size() < asks_max_ && free_.size() >= form_.rows_of_ask;
  hungry_.store(has_room, std::memory_order_relaxed);
  spread_ = static_cast<double>(plan.world_size()) /
            static_cast<double>(wanted.ranks.size());
  const double share = ShareLocked(wanted.ranks_wait);
  if (share <= 0) return std::nullopt;
  const uint64_t claimed = claimed_.load(std::memory_order_relaxed);
  lead_ = LeadLocked(wanted.ranks_wait);
  // Rows that are asked for already hold up nobody.
  const double others =
      wanted.ranks_wait ? spread_ * static_cast<double>(index_.size()) : 0;
  uint64_t at =
      std::max(next_, claimed + lead_ + static_cast<uint64_t>(others));
  // As many as are asked for at once, and as many that have come.
  const double window =
      2 * spread_ * form_.rows_of_ask * std::max(asks_max_, kAsksLeast);
  uint64_t end =
      std::min(wanted.end, claimed + lead_ + static_cast<uint64_t>(window));
  if (const auto epochs = plan.epochs()) {
    end = std::min(end, *epochs * plan.rows_per_epoch());
  }
  if (!has_room) {
    wanted_rows_.store(end - std::min(end, at), std::memory_order_relaxed);
    return std::nullopt;
  }
  Ask ask;
  while (at < end && ask.rows.size() < form_.rows_of_ask) {
    const Positions rows =
        NextRowsOf(wanted.ranks, plan, at, form_.rows_of_ask - ask.rows.size());
    at = rows.end;
    if (rows.begin >= rows.end) continue;
    const auto count = static_cast<double>(rows.end - rows.begin);
    due_ += share * count;
    if (share < 1 && ask.rows.empty() && due_ < form_.rows_of_ask) continue;
    due_ = std::max(0.0, due_ - count);
    const uint64_t epoch = rows.begin / plan.rows_per_epoch();
    of_plan_.resize(rows.end - rows.begin);
    plan.Rows(epoch, rows.begin - epoch * plan.rows_per_epoch(),
              of_plan_.size(), &shuffles_, of_plan_.data());
    uint64_t position = rows.begin;
    for (const Plan::Row& row : of_plan_) {
      const Key key = {row.record, row.pass};
      const auto [found, is_new] = index_.try_emplace(key, kNoPlace);
      ++position;
      if (!is_new) continue;
      const uint32_t place = free_.back();
      free_.pop_back();
      found->second = place;
      places_[place] = {State::kAsked, false, 0, 0, key, position - 1};
      ask.rows.push_back({row.record, row.pass, place});
    }
  }
  next_ = at;
  if (ask.rows.empty()) return std::nullopt;
  ask.number = ++last_ask_;
  Asked& asked = asks_[ask.number];
  asked.asked_ns = MonotonicNs();
  for (const Row& row : ask.rows) asked.places.push_back(row.place);
  asked_rows_ += ask.rows.size();
  return ask;
}

uint32_t RemoteRows::MakerLocked(const std::string& name) {
  constexpr size_t kMakersMax = 4096;
  for (size_t i = 0; i < makers_.size(); ++i) {
    if (makers_[i].name == name) return static_cast<uint32_t>(i);
  }
  // Those that are too many are one.
  if (makers_.size() == kMakersMax) return kMakersMax - 1;
  makers_.push_back({name});
  return static_cast<uint32_t>(makers_.size() - 1);
}

Status RemoteRows::Made(uint64_t number, const std::string& maker_name,
                        std::span<const uint64_t> rows) {
  MutexLock lock(&mutex_);
  auto ask = asks_.extract(number);
  if (ask.empty()) return InvalidArgumentError("there is no ask {}", number);
  const std::vector<uint32_t>& places = ask.mapped().places;
  // An ask that no maker took has none.
  const uint32_t maker_number = rows.empty() ? 0 : MakerLocked(maker_name);
  Maker none;
  Maker& maker = rows.empty() ? none : makers_[maker_number];
  Status status;
  uint64_t made = 0;
  for (size_t i = 0; i + 1 < rows.size() && !maker.distrusted; i += 2) {
    const auto place = static_cast<uint32_t>(rows[i]);
    if (rows[i] >= places_.size() ||
        std::find(places.begin(), places.end(), place) == places.end()) {
      status = InvalidArgumentError("ask {} has no place {}", number, rows[i]);
      break;
    }
    Place& of_row = places_[place];
    if (of_row.state != State::kAsked) continue;  // late, or told twice
    of_row.state = State::kHere;
    of_row.crc = static_cast<uint32_t>(rows[i + 1]);
    of_row.maker = maker_number;
    of_row.checked = Mix64(check_key_ ^ maker.rows++) % kCheckedOneIn == 0;
    ++made;
  }
  maker.bytes += made * form_.row_bytes;
  made_rows_ += made;
  for (const uint32_t place : places) {
    const State state = places_[place].state;
    if (state == State::kAsked) ++lost_rows_;
    if (state == State::kAsked || state == State::kLate) FreeLocked(place);
  }
  if (!rows.empty()) {
    answer_ns_ = Mean(
        answer_ns_, static_cast<double>(MonotonicNs() - ask.mapped().asked_ns));
  }
  return status;
}

void RemoteRows::Tick(uint64_t behind, const Local& local) {
  const uint64_t claimed = claimed_.load(std::memory_order_relaxed);
  const uint64_t now_ns = MonotonicNs();
  MutexLock lock(&mutex_);
  if (noted_ns_ > 0 && now_ns > noted_ns_) {
    rows_per_s_ = Mean(rows_per_s_,
                       static_cast<double>(claimed - noted_claimed_) * kSecond /
                           static_cast<double>(now_ns - noted_ns_));
  }
  noted_ns_ = now_ns;
  noted_claimed_ = claimed;
  // Rows of other hosts take hardly any of the time.
  const uint64_t rows = local.rows - noted_.rows;
  const uint64_t used = used_rows_ - noted_used_;
  if (rows > used && local.ns > noted_.ns) {
    local_rows_per_s_ =
        Mean(local_rows_per_s_, local.workers *
                                    static_cast<double>(rows - used) * kSecond /
                                    static_cast<double>(local.ns - noted_.ns));
    noted_ = local;
    noted_used_ = used_rows_;
  }
  for (uint32_t place = 0; place < places_.size(); ++place) {
    const Place& of_row = places_[place];
    if (of_row.state == State::kHere && of_row.position + behind < claimed) {
      ++unused_rows_;
      FreeLocked(place);
    }
  }
}

void RemoteRows::FreeLocked(uint32_t place) {
  Place& of_row = places_[place];
  const auto found = index_.find(of_row.key);
  if (found != index_.end() && found->second == place) index_.erase(found);
  of_row = {};
  free_.push_back(place);
}

std::vector<std::pair<std::string, uint64_t>> RemoteRows::TakeDistrusted() {
  MutexLock lock(&mutex_);
  return std::exchange(distrusted_, {});
}

nlohmann::json RemoteRows::StatusJson() const {
  MutexLock lock(&mutex_);
  if (reserved_ == 0) return {};
  nlohmann::json makers = nlohmann::json::array();
  for (const Maker& maker : makers_) {
    makers.push_back({{"maker", maker.name},
                      {"rows", maker.rows},
                      {"bytes", maker.bytes},
                      {"checked", maker.checked},
                      {"distrusted", maker.distrusted}});
  }
  return {{"steps", steps_->count},
          {"row_bytes", form_.row_bytes},
          {"rows_wanted", wanted_rows_.load(std::memory_order_relaxed)},
          {"rows_asked", asked_rows_},
          {"rows_made", made_rows_},
          {"rows_used", used_rows_},
          {"rows_late", late_rows_},
          {"rows_lost", lost_rows_},
          {"rows_unused", unused_rows_},
          {"rows_damaged", damaged_rows_.load(std::memory_order_relaxed)},
          {"asks", asks_.size()},
          {"answer_s", answer_ns_ / kSecond},
          {"rows_ahead", lead_},
          {"makers", std::move(makers)}};
}

// ---- workers

RemoteRows::Heads RemoteRows::Take(std::span<const Plan::Row> rows) {
  Heads heads;
  if (!begun()) return heads;
  MutexLock lock(&mutex_);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto found = index_.find({rows[i].record, rows[i].pass});
    if (found == index_.end()) continue;
    Place& place = places_[found->second];
    if (place.state == State::kAsked) {
      // It is made here; what comes is thrown away.
      place.state = State::kLate;
      ++late_rows_;
    } else {
      heads.memory = memory_;
      heads.of_rows.resize(rows.size());
      place.checked |= makers_[place.maker].checked == 0;
      heads.of_rows[i] = {found->second, place.crc, place.checked};
      place.state = State::kInUse;
      ++used_rows_;
    }
    index_.erase(found);
  }
  return heads;
}

Status RemoteRows::Read(const Heads& heads, const Head& head,
                        const Plan::Row& row, std::vector<std::byte>* bytes,
                        RawRecord* made) {
  bytes->resize(form_.row_bytes);
  const uint64_t key[] = {row.record, row.pass};
  const auto at = static_cast<off_t>(head.place * form_.row_bytes);
  if (pread(heads.memory->get(), bytes->data(), bytes->size(), at) !=
          static_cast<ssize_t>(bytes->size()) ||
      Crc32c(*bytes, Crc32c(std::as_bytes(std::span(key)))) != head.crc) {
    damaged_rows_.fetch_add(1, std::memory_order_relaxed);  // shown
    return DataLossError("its bytes are not those that its maker sent");
  }
  made->resize(form_.features.size());
  for (size_t i = 0; i < made->size(); ++i) {
    const Feature& feature = form_.features[i];
    (*made)[i] = std::span<const std::byte>(*bytes).subspan(form_.offsets[i],
                                                            feature.RowBytes());
    if (feature.dtype == DType::kBool && FirstNotBool((*made)[i])) {
      return DataLossError("a bool is neither 0 nor 1");
    }
  }
  return OkStatus();
}

void RemoteRows::Agrees(const Head& head) {
  MutexLock lock(&mutex_);
  ++makers_[places_[head.place].maker].checked;
}

void RemoteRows::Differs(const Head& head, uint64_t record) {
  MutexLock lock(&mutex_);
  const uint32_t number = places_[head.place].maker;
  Maker& maker = makers_[number];
  if (std::exchange(maker.distrusted, true)) return;
  distrusted_.emplace_back(maker.name, record);
  for (uint32_t place = 0; place < places_.size(); ++place) {
    if (places_[place].state == State::kHere &&
        places_[place].maker == number) {
      FreeLocked(place);
    }
  }
}

void RemoteRows::Free(const Heads& heads) {
  MutexLock lock(&mutex_);
  for (const Head& head : heads.of_rows) {
    if (head.place == kNoPlace) continue;
    FreeLocked(head.place);
  }
}

// ----

nlohmann::ordered_json SpecForMakers(const DatasetSpec& spec, size_t steps,
                                     uint32_t rows) {
  const nlohmann::ordered_json json = DatasetSpecToJson(spec);
  nlohmann::ordered_json made;
  made["dataset"] = json.at("dataset");
  made["source"] = json.at("source");
  made["seed"] = json.at("seed");
  made["map"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < steps; ++i) {
    made["map"].push_back(json.at("map").at(i));
  }
  made["batch"] = {{"size", rows}};
  // Two are made while one is sent.
  made["prefetch"] = 2;
  made["hold"] = 1;
  made["on_error"] = "skip";
  made["asked"] = true;
  return made;
}

}  // namespace penstock
