// Random numbers with a normal distribution, and with a gamma distribution, of
// which beta and Dirichlet distributed ones are made.
#ifndef BROKER_TRANSFORM_GAMMA_H_
#define BROKER_TRANSFORM_GAMMA_H_

#include <cstdint>

#include "broker/transform/augmentation.h"

namespace penstock {

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
#endif  // BROKER_TRANSFORM_GAMMA_H_
