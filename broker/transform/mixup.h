// map: mixup and cutmix. Finished rows, two by two -> the same, mixed with each
// other: Zhang et al., "mixup: Beyond Empirical Risk Minimization" (2018); Yun
// et al., "CutMix" (2019). The arithmetic is that of torchvision's v2.MixUp and
// v2.CutMix.
#ifndef BROKER_TRANSFORM_MIXUP_H_
#define BROKER_TRANSFORM_MIXUP_H_

#include <cstdint>
#include <optional>

#include "broker/transform/picture.h"

namespace penstock {

class RowBuilder;

// The row of the epoch that is mixed with row `row` of its `rows`; nullopt: it
// is the only one. Rows 4g to 4g + 3 are two pairs, in one of the three ways:
// draw 0 of op 0xff00 of sample g says with which of the others the first is,
// the first of these if they are fewer than four. A last row that is left alone
// is mixed with the row before it, which is not mixed with it. So it depends on
// neither batch nor ranks.
std::optional<uint64_t> PartnerOf(uint64_t row, uint64_t rows, uint64_t seed,
                                  uint64_t epoch);
// Pairs do not cross a multiple of so many rows, but for the last row's.
inline constexpr uint64_t kPairedRows = 4;

// Draws of the pair's first row (its place in the epoch is the sample):
// gamma variates 0 and 1 of alpha (augmentation.h), lambda the part of the
// first in their sum, that is, of Beta(alpha, alpha); draw 128 below
// probability: they are mixed; 129 below switch_probability: by cutmix. Its box
// has the centre [x, y] of draws 130 and 131 and the sides of the picture times
// sqrt(1 - lambda), cut off at its edges; lambda is then the part outside the
// box.
//
// Each row keeps lambda of itself and gets 1 - lambda of the other.
struct MixupOp {
  FeatureNames feature = DefaultFeature();
  FeatureNames label = {"label"};
  double alpha = 0.2;
  double cutmix_alpha = 0;
  double switch_probability = 0.5;
  double probability = 1;
  bool operator==(const MixupOp&) const = default;

  static const Declaration<MixupOp>& Declared();
  Status AddToPairs(RowBuilder* row, uint32_t number) const;
};

// Mixup by boxes alone.
struct CutmixOp {
  FeatureNames feature = DefaultFeature();
  FeatureNames label = {"label"};
  double alpha = 1;
  double probability = 1;
  bool operator==(const CutmixOp&) const = default;

  static const Declaration<CutmixOp>& Declared();
  Status AddToPairs(RowBuilder* row, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_MIXUP_H_
