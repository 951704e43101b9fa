// The pixels of a picture that a nearest-neighbour resize takes. Pure.
#ifndef BROKER_TRANSFORM_NEAREST_H_
#define BROKER_TRANSFORM_NEAREST_H_

#include <cstdint>
#include <vector>

namespace penstock {

// For each of `to` pixels the one of `from` pixels whose place is nearest:
// floor((i + 0.5) * from / to), as Pillow's NEAREST and tf.image compute it.
// They never decrease.
void FindNearest(int64_t from, int64_t to, std::vector<int64_t>* pixels);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_NEAREST_H_
