// Orders made of others. The steps of `select`, the sources made of parts,
// `shuffle.window_files` and `shard: file` make them.
#ifndef BROKER_PLAN_ORDERS_H_
#define BROKER_PLAN_ORDERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "broker/plan/select_context.h"

namespace penstock {

// ---- subset.cc

// Every stride-th row from first on, count of them: take, skip and shard.
std::unique_ptr<Order> Slice(std::unique_ptr<Order> of, uint64_t first,
                             uint64_t count, uint64_t stride = 1);

// The rows of a pass whose positions satisfy keep. InvalidArgument: there is
// none. Other errors: those of the budget, Cancelled.
StatusOr<std::unique_ptr<Order>> Pick(
    std::unique_ptr<Order> of, const std::function<bool(uint64_t index)>& keep,
    const OrderBudget& budget);

// These rows of a pass, in this order. Several share one list.
using RowList = std::shared_ptr<const std::vector<uint64_t>>;
std::unique_ptr<Order> ListRows(std::shared_ptr<const Order> of, RowList rows,
                                size_t first, size_t count);

// ---- concatenate.cc

// One after the other. InvalidArgument: too many rows.
StatusOr<std::unique_ptr<Order>> Concatenate(
    std::vector<std::unique_ptr<Order>> parts);

// ---- cyclic.cc

// Megatron's sampler `cyclic` (MegatronPretrainingRandomSampler): the rows of
// each step are those of `ranks` ranks, one after the other, of so many samples
// each. Pass n is its epoch n, and ends with the last whole step. sharded: each
// rank has a share of the samples of its own (--no-data-sharding: not).
// InvalidArgument: too few rows, or too many. CyclicBytes of memory.
StatusOr<std::unique_ptr<Order>> Cyclic(std::unique_ptr<Order> of,
                                        uint64_t micro_batch, uint32_t ranks,
                                        bool sharded,
                                        const OrderBudget& budget);
// permuted: the samples of a permutation.
inline uint64_t CyclicBytes(uint64_t permuted) {
  return 2 * permuted * sizeof(uint32_t);
}
// torch.randperm(size, generator=torch.Generator().manual_seed(seed)) of
// PyTorch 2.13, on a processor.
std::vector<uint32_t> PermutationAsTorch(uint64_t size, uint32_t seed);

// ---- repeat.cc, interleave.cc, sample.cc

// times passes in one. InvalidArgument: too many rows.
StatusOr<std::unique_ptr<Order>> Repeat(std::unique_ptr<Order> of,
                                        uint64_t times);

// `block` rows of each of `files` runs in turn, until all of them are out; then
// the next `files`. A row costs O(files * log(rows of a run)).
std::unique_ptr<Order> Interleave(std::unique_ptr<Order> of,
                                  std::vector<uint64_t> run_ends,
                                  uint64_t files, uint64_t block);

// rows of a pass, each drawn from all of them in proportion to its weight, with
// replacement, by the seed and anew in each pass. weights: of each row, 0 or
// more, of fewer than 2^32, their sum above 0 and finite; empty: all have the
// same. kDrawBytes a row meanwhile, 8 afterwards.
inline constexpr uint64_t kDrawBytes = 20;
std::unique_ptr<Order> Draw(std::unique_ptr<Order> of, uint64_t rows,
                            uint64_t seed, std::vector<double> weights);

// ---- windows.cc

// The runs (files) in an order of their own in each pass, and the rows shuffled
// within windows of so many of them: a window is read before the next begins.
// A thread keeps 8 bytes a window; a pass begins with O(runs) work, a window
// with O(files). InvalidArgument: more than kWindowsMax windows.
inline constexpr uint64_t kWindowsMax = uint64_t{1} << 20;
StatusOr<std::unique_ptr<Order>> ShuffleWindows(std::unique_ptr<Order> of,
                                                std::vector<uint64_t> run_ends,
                                                uint64_t files);

// Shuffles within windows of files, if there are any (shuffle.window_files):
// for storage that reads a file from its beginning to its end much faster than
// here and there.
StatusOr<std::unique_ptr<Order>> InWindows(const ShuffleSpec& shuffle,
                                           std::unique_ptr<Order> of,
                                           const SelectContext& context);

// ---- shard_by_file.cc

// `shard: file`: the files, in the order in which they come, are dealt to so
// many shards, as tf.data deals them; each is shuffled within windows of its
// own files, if there are any. InvalidArgument: no files, fewer files than
// shards, an order that repeats or mixes, fewer rows in a batch than shards.
StatusOr<std::unique_ptr<Order>> ShardByFile(std::unique_ptr<Order> of,
                                             uint32_t shards,
                                             uint64_t global_batch,
                                             const ShuffleSpec* shuffle,
                                             const SelectContext& context);

}  // namespace penstock
#endif  // BROKER_PLAN_ORDERS_H_
