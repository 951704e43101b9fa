// Which steps of `map` draw random numbers: those that draw none make the same
// of a record in every epoch.
#ifndef BROKER_TRANSFORM_DRAWS_H_
#define BROKER_TRANSFORM_DRAWS_H_

#include <cstddef>
#include <span>

#include "broker/transform/kinds.h"

namespace penstock {

// As the step is written: a flip of probability 1 draws none. Functions of
// users count as such that do.
bool Draws(const TransformSpec& step);

// The pictures that it makes have channels first, as few steps take them.
bool PutsChannelsFirst(const TransformSpec& step);

// The steps at the beginning whose result can be kept, and the rest run later:
// they draw none, and leave the channels of pictures last, as other steps want
// them, unless they are all that there are.
size_t StepsToKeep(std::span<const MapStep> steps);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_DRAWS_H_
