#include <algorithm>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/plan/file_runs.h"
#include "broker/plan/kinds.h"
#include "broker/plan/orders.h"

namespace penstock {
namespace {

class Interleaved final : public InRuns {
 public:
  Interleaved(std::unique_ptr<Order> of, std::vector<uint64_t> ends,
              uint64_t files, uint64_t block)
      : InRuns(std::move(of), std::move(ends), files), block_(block) {}

  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    // A window has the rows that its runs have in their order.
    const auto at = static_cast<uint64_t>(
        std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    const uint64_t first = at / files_ * files_;
    const uint64_t last = std::min(first + files_, runs());
    uint64_t left = index - BeginOf(first);
    // The last round that begins at or before the row.
    const auto before = [&](uint64_t round) {
      uint64_t rows = 0;
      for (uint64_t run = first; run < last; ++run) {
        rows += std::min(SizeOf(run), round * block_);
      }
      return rows;
    };
    uint64_t round = 0;
    uint64_t beyond = left / block_ + 1;  // a round has a block at least
    while (beyond - round > 1) {
      const uint64_t middle = round + (beyond - round) / 2;
      if (before(middle) <= left) {
        round = middle;
      } else {
        beyond = middle;
      }
    }
    left -= before(round);
    uint64_t run = first;
    for (;; ++run) {
      const uint64_t size = SizeOf(run);
      const uint64_t taken = std::min(size, round * block_);
      const uint64_t here = std::min(block_, size - taken);
      if (left < here)
        return of_->At(BeginOf(run) + taken + left, pass, shuffling);
      left -= here;
    }
  }

 private:
  const uint64_t block_;
};

}  // namespace

std::unique_ptr<Order> Interleave(std::unique_ptr<Order> of,
                                  std::vector<uint64_t> run_ends,
                                  uint64_t files, uint64_t block) {
  return std::make_unique<Interleaved>(std::move(of), std::move(run_ends),
                                       files, block);
}

const Declaration<InterleaveStep>& InterleaveStep::Declared() {
  constexpr uint32_t kFilesMax = 1024;
  static const auto declared =
      Declaration<InterleaveStep>(
          "interleave",
          "Records of several files in turn, each file read from its beginning "
          "to its end: an order for data that are not shuffled.")
          .Example("{files: 8}")
          .Optional("files", &InterleaveStep::files,
                    WholeNumber<uint32_t>(1, kFilesMax),
                    "how many at a time, until all of them are out")
          .Optional("block", &InterleaveStep::block,
                    WholeNumber<uint32_t>(1, uint32_t{1} << 24),
                    "how many records of a file before the next file's turn");
  return declared;
}

StatusOr<std::unique_ptr<Order>> InterleaveStep::Apply(
    std::unique_ptr<Order> of, const SelectContext& context) const {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<uint64_t> runs,
                            FileRunsOf(*of, context));
  return Interleave(std::move(of), std::move(runs), files, block);
}

}  // namespace penstock
