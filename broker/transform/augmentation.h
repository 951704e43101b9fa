// Counter-based random numbers for augmentation: number `draw` of (seed, epoch,
// sample, op) is the same in every process, order and thread.
//
// To compute them elsewhere: Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011; Debian's librandom123-dev), with
//
//   key     = { seed's low half, seed's high half }
//   counter = { sample's low half, sample's high half,
//               epoch modulo 2^32, op * 2^16 + block }
//
// Halves are 32 bits. A block is four words w0..w3 and holds two draws: draw d
// is in block d / 2, from (w0, w1) when d is even and (w2, w3) when d is odd:
//
//   uniform = floor((second word * 2^32 + first word) / 2^11) / 2^53
//
// that is, the upper 53 bits, in [0, 1). op is the operation's index in the
// spec's `map` list, from 0; 0xff00 and up are reserved for uses outside that
// list. The code that draws documents which draw it uses for what (crop.h,
// pixel_pass.h, color.h).
#ifndef BROKER_TRANSFORM_AUGMENTATION_H_
#define BROKER_TRANSFORM_AUGMENTATION_H_

#include <Random123/philox.h>

#include <array>
#include <cstdint>

namespace penstock {

// The key of the draws, together with the op.
struct AugmentationKey {
  uint64_t seed = 0;
  uint64_t epoch = 0;
  uint64_t sample = 0;
};

// Op numbers are below this.
inline constexpr uint32_t kAugmentationOpsMax = 0xff00;

// The draws of one op on one sample. Immutable.
class AugmentationDraws {
 public:
  AugmentationDraws(const AugmentationKey& key, uint32_t op)
      : key_(key), op_(op) {}

  // draw < 2^17. In [0, 1).
  double Uniform(uint32_t draw) const {
    return static_cast<double>(Bits(draw) >> 11) * 0x1p-53;
  }
  // Its two words, of which Uniform takes the upper bits.
  uint64_t Bits(uint32_t draw) const {
    r123::Philox4x32::key_type key = {{static_cast<uint32_t>(key_.seed),
                                       static_cast<uint32_t>(key_.seed >> 32)}};
    r123::Philox4x32::ctr_type counter = {
        {static_cast<uint32_t>(key_.sample),
         static_cast<uint32_t>(key_.sample >> 32),
         static_cast<uint32_t>(key_.epoch), op_ << 16 | draw / 2}};
    const r123::Philox4x32::ctr_type block = r123::Philox4x32()(counter, key);
    const uint32_t first = draw % 2 * 2;
    return uint64_t{block[first + 1]} << 32 | block[first];
  }
  // From range[0] up to, but not, range[1]: low + draw * (high - low).
  double Within(uint32_t draw, const std::array<double, 2>& range) const {
    return range[0] + Uniform(draw) * (range[1] - range[0]);
  }
  // A number from 0 to count - 1.
  int64_t Choice(uint32_t draw, int64_t count) const {
    return static_cast<int64_t>(Uniform(draw) * static_cast<double>(count));
  }

 private:
  AugmentationKey key_;
  uint32_t op_;
};

// A number of mean 0 and standard deviation 1, by draws `draw` and draw + 1
// (Box and Muller).
double NormalVariate(const AugmentationDraws& draws, uint32_t draw);

// Number g of shape alpha > 0 and scale 1, and 1e-300, so that a sum of tiny
// ones can be divided by. Marsaglia and Tsang, "A simple method for generating
// gamma variables", ACM TOMS 26 (2000): attempt t of 0..20 uses draws 64g + 3t
// and 64g + 3t + 1 for a normal number and 64g + 3t + 2 to
// accept it; draw 64g + 63 brings alpha below 1 up.
double GammaVariate(double alpha, const AugmentationDraws& draws, uint32_t g);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_AUGMENTATION_H_
