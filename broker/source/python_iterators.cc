// Batches of an iterable dataset: each process has an iterator of it, and they
// are asked in turn, as PyTorch's workers are, so the order is fixed. A record
// is the number of a batch in its pass. One worker asks for them, in the order
// of their numbers; for one that was asked for before, the iterators begin
// again.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "broker/source/python_records.h"

namespace penstock {
namespace {

// Processes that may end while one batch is made.
constexpr int kIteratorEndsMax = 3;

// A number of a batch's head (python_batches.py) that is written here: the size
// of the position behind the batch.
constexpr size_t kPositionBytes = 5 * sizeof(uint64_t);
constexpr size_t kBatchBytesMin = 6 * sizeof(uint64_t);
constexpr char kNoPosition[] = "the state's `iterators` is damaged";

// Where the iterators are: this, then each of them, then their datasets'
// states.
struct PositionHead {
  uint64_t pass = 0;
  uint64_t number = 0;  // of the next batch
  uint64_t turn = 0;    // whose it is, unless that one has ended
  uint64_t iterators = 0;
};
struct PositionOfIterator {
  uint64_t ended = 0;
  uint64_t state_bytes = 0;
};

// What comes where there are no more batches: their number, and a batch of no
// rows behind it. Its head has neither a pickle nor buffers.
struct EndOfPass {
  uint64_t bytes = 0;
  uint64_t zeros[5] = {};
  uint64_t batches = 0;
  uint64_t empty_bytes = 0;
};
static_assert(sizeof(EndOfPass) == 64);  // tensors are aligned

template <typename T>
void Append(const T& value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
bool Take(std::string_view* from, T* value) {
  if (from->size() < sizeof(*value)) return false;
  std::memcpy(value, from->data(), sizeof(*value));
  from->remove_prefix(sizeof(*value));
  return true;
}

class PythonIterators final : public Source::Maker {
 public:
  PythonIterators(std::shared_ptr<const PythonRecords> records,
                  Cancelled cancelled)
      : records_(std::move(records)), cancelled_(std::move(cancelled)) {}

  void Expect(uint64_t, std::span<const Source::Wanted>) override {}
  bool makes_batches() const override { return true; }
  size_t begun() const override { return 0; }

  Status Make(uint64_t seed, const Source::Wanted& wanted,
              RawRecord* raw) override {
    const Status status = MakeOne(seed, wanted, raw);
    // Another record may be wanted all the same: of a lane whose ranks have not
    // come to this one yet.
    if (!status.ok()) iterators_.clear();
    return status;
  }

 private:
  Status MakeOne(uint64_t seed, const Source::Wanted& wanted, RawRecord* raw) {
    if (iterators_.empty() || seed != seed_ || wanted.pass != pass_ ||
        wanted.record < number_) {
      seed_ = seed;
      PENSTOCK_RETURN_IF_ERROR(Begin(wanted));
    }
    std::span<const std::byte> batch;
    while (number_ <= wanted.record && live() > 0) {
      const uint64_t rounds = (wanted.record - number_) / live();
      if (rounds > 0 && asked() == 0) {
        PENSTOCK_RETURN_IF_ERROR(PassOver(rounds));
      } else {
        PENSTOCK_ASSIGN_OR_RETURN(batch, Next(/*asks=*/rounds == 0));
      }
    }
    raw->assign(1, number_ > wanted.record ? batch : End());
    return OkStatus();
  }

  struct Iterator {
    Iterator(std::shared_ptr<const PythonRecords> records, uint32_t index,
             Cancelled cancelled)
        : process(std::move(records), index, std::move(cancelled)) {}

    PythonRecordProcess process;
    std::string state;         // of its dataset; "": the begin, or it has none
    uint64_t since_state = 0;  // batches
    bool ended = false;
    // A process that dies is asked again.
    bool began = false;
    bool asked = false;
    uint64_t over = 0;  // what it is asked for: batches to pass over,
    bool makes = true;  // and to make one
    int ends = 0;       // of processes, since the last answer
  };
  struct Answer {
    uint64_t memory_bytes = 0;
    uint64_t passed = 0;
    uint64_t ended = 0;
    uint64_t offset = 0;
    uint64_t size = 0;
    uint64_t state_bytes = 0;
  };

  size_t live() const {
    return static_cast<size_t>(
        std::count_if(iterators_.begin(), iterators_.end(),
                      [](const auto& each) { return !each->ended; }));
  }
  size_t asked() const {
    return static_cast<size_t>(
        std::count_if(iterators_.begin(), iterators_.end(),
                      [](const auto& each) { return each->asked; }));
  }

  // At the position that the job begins at, or at a pass's begin. The processes
  // are new ones, as those of an epoch are in PyTorch.
  Status Begin(const Source::Wanted& wanted) {
    pass_ = wanted.pass;
    number_ = turn_ = 0;
    iterators_.clear();
    for (uint32_t i = 0; i < records_->iterators; ++i) {
      iterators_.push_back(std::make_unique<Iterator>(records_, i, cancelled_));
    }
    std::string_view begin = records_->begin;
    PositionHead head;
    if (!Take(&begin, &head) || head.pass != wanted.pass ||
        head.number > wanted.record) {
      return OkStatus();
    }
    if (head.iterators != iterators_.size() || head.turn >= head.iterators) {
      return InvalidArgumentError(
          "the state is of {} iterators, and there are {} now: begin with as "
          "many workers, or without the state's `iterators`, to pass over its "
          "batches",
          head.iterators, iterators_.size());
    }
    number_ = head.number;
    turn_ = head.turn;
    std::vector<PositionOfIterator> places(iterators_.size());
    for (PositionOfIterator& each : places) {
      if (!Take(&begin, &each)) return InvalidArgumentError("{}", kNoPosition);
    }
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i].state_bytes > begin.size()) {
        return InvalidArgumentError("{}", kNoPosition);
      }
      iterators_[i]->ended = places[i].ended != 0;
      iterators_[i]->state = begin.substr(0, places[i].state_bytes);
      begin.remove_prefix(places[i].state_bytes);
    }
    return OkStatus();
  }

  // That many batches of each, by all at once. The order after it is the same
  // when some of them end meanwhile.
  Status PassOver(uint64_t rounds) {
    for (const auto& each : iterators_) {
      if (each->ended) continue;
      PENSTOCK_RETURN_IF_ERROR(Ask(*each, rounds, false));
    }
    for (auto& each : iterators_) {
      if (each->ended) continue;
      PENSTOCK_ASSIGN_OR_RETURN(const Answer answer, Receive(*each));
      number_ += answer.passed;
      each->since_state += answer.passed;
      if (answer.ended) EndOne(*each, answer);
    }
    return OkStatus();
  }

  // The batch of the iterator whose turn it is; empty: they all have ended.
  // asks: for the ones after it.
  StatusOr<std::span<const std::byte>> Next(bool asks) {
    for (auto& each : iterators_) {
      if (!asks || each->ended || each->asked) continue;
      PENSTOCK_RETURN_IF_ERROR(Ask(*each, 0, true));
    }
    while (live() > 0) {
      Iterator& each = *iterators_[turn_];
      if (each.ended) {
        turn_ = (turn_ + 1) % iterators_.size();
        continue;
      }
      if (!each.asked) PENSTOCK_RETURN_IF_ERROR(Ask(each, 0, true));
      PENSTOCK_ASSIGN_OR_RETURN(const Answer answer, Receive(each));
      turn_ = (turn_ + 1) % iterators_.size();
      if (answer.ended) {
        EndOne(each, answer);
        continue;
      }
      ++number_;
      const std::byte* const data =
          each.process.memory().data() + answer.offset;
      ++each.since_state;
      if (answer.state_bytes > 0) {
        each.since_state = 0;
        each.state.assign(reinterpret_cast<const char*>(data) + answer.size,
                          answer.state_bytes);
      }
      const std::span<const std::byte> batch =
          WithPosition({data, answer.size});
      // Beside the batch, which stays where it is.
      if (asks) PENSTOCK_RETURN_IF_ERROR(Ask(each, 0, true));
      return batch;
    }
    return std::span<const std::byte>();
  }

  void EndOne(Iterator& each, const Answer& answer) {
    each.ended = true;
    each.state.clear();
    if (empty_.empty() && answer.size + sizeof(EndOfPass) <=
                              records_->features[0].feature.RowBytes()) {
      empty_.assign(reinterpret_cast<const char*>(each.process.memory().data() +
                                                  answer.offset),
                    answer.size);
    }
    each.process.End();
  }

  // The batch, and behind it where the iterators are, if that is known.
  std::span<const std::byte> WithPosition(std::span<const std::byte> batch) {
    const bool known = std::all_of(
        iterators_.begin(), iterators_.end(),
        [](const auto& each) { return each->ended || each->since_state == 0; });
    if (!known) return batch;
    std::string position;
    Append(PositionHead{pass_, number_, turn_, iterators_.size()}, &position);
    for (const auto& each : iterators_) {
      Append(PositionOfIterator{each->ended, each->state.size()}, &position);
    }
    for (const auto& each : iterators_) position += each->state;
    if (batch.size() + position.size() >
        records_->features[0].feature.RowBytes()) {
      return batch;
    }
    whole_.resize(batch.size() + position.size());
    std::memcpy(whole_.data(), batch.data(), batch.size());
    std::memcpy(whole_.data() + batch.size(), position.data(), position.size());
    const uint64_t bytes = position.size();
    std::memcpy(whole_.data() + kPositionBytes, &bytes, sizeof(bytes));
    return whole_;
  }

  std::span<const std::byte> End() {
    EndOfPass end;
    end.bytes = sizeof(end) + empty_.size();
    end.batches = number_;
    end.empty_bytes = empty_.size();
    whole_.resize(end.bytes);
    std::memcpy(whole_.data(), &end, sizeof(end));
    std::memcpy(whole_.data() + sizeof(end), empty_.data(), empty_.size());
    return whole_;
  }

  // Starts its process where there is none; that goes on from the state.
  Status Ask(Iterator& each, uint64_t over, bool makes) {
    each.over = over;
    each.makes = makes;
    const size_t state = each.began ? 0 : each.state.size();
    PENSTOCK_RETURN_IF_ERROR(each.process.Start(kPythonHeap + state));
    std::memcpy(each.process.memory().data() + kPythonHeap, each.state.data(),
                state);
    const uint64_t call[] = {
        each.process.memory().bytes(),     seed_, pass_, !each.began,
        each.began ? 0 : each.since_state, over,  makes, state};
    const Status sent = each.process.Send(call);
    each.began = each.asked = true;
    // That it has ended is found when its answer is waited for.
    return sent.code() == StatusCode::kUnavailable ? OkStatus() : sent;
  }

  StatusOr<Answer> Receive(Iterator& each) {
    for (;;) {
      StatusOr<Answer> answer = ReceiveOf(each);
      if (answer.ok()) {
        each.asked = false;
        each.ends = 0;
        return answer;
      }
      const Status ended = each.process.Ended(answer.status(), number_);
      if (ended.code() != StatusCode::kAborted) return ended;
      if (++each.ends >= kIteratorEndsMax) {
        return InvalidArgumentError("{}, {} times while one batch was made",
                                    answer.status().message(), each.ends);
      }
      each.began = false;
      PENSTOCK_RETURN_IF_ERROR(Ask(each, each.over, each.makes));
    }
  }

  StatusOr<Answer> ReceiveOf(Iterator& each) {
    PythonProcess::Answer received;
    do {
      PENSTOCK_ASSIGN_OR_RETURN(received, each.process.Receive(0));
    } while (received.kind == PythonProcess::Answer::Kind::kMore);
    if (received.kind == PythonProcess::Answer::Kind::kFailed) {
      return InvalidArgumentError("{}", received.body);
    }
    std::string_view body = received.body;
    Answer answer;
    const uint64_t bytes = each.process.memory().bytes();
    if (!Take(&body, &answer) || answer.offset > bytes ||
        answer.size > bytes - answer.offset ||
        answer.state_bytes > bytes - answer.offset - answer.size ||
        answer.size > records_->features[0].feature.RowBytes() ||
        (!answer.ended && answer.passed != each.over) ||
        answer.passed > each.over ||
        (!answer.ended && each.makes && answer.size < kBatchBytesMin)) {
      return PythonRecordProcess::WrongAnswer();
    }
    return answer;
  }

  const std::shared_ptr<const PythonRecords> records_;
  const Cancelled cancelled_;
  std::vector<std::unique_ptr<Iterator>> iterators_;
  uint64_t seed_ = 0;
  uint64_t pass_ = 0;
  uint64_t number_ = 0;  // of the next batch
  size_t turn_ = 0;      // the iterator that has it, unless that one has ended
  std::string empty_;    // a batch of no rows
  std::vector<std::byte>
      whole_;  // what was given last, where it was put together
};

}  // namespace

std::unique_ptr<Source::Maker> MakePythonIterators(
    std::shared_ptr<const PythonRecords> records, Cancelled cancelled) {
  return std::make_unique<PythonIterators>(std::move(records),
                                           std::move(cancelled));
}

}  // namespace penstock
