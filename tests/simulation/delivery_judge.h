// The simulation of delivery: what must hold when all processes are gone.
#ifndef TESTS_SIMULATION_DELIVERY_JUDGE_H_
#define TESTS_SIMULATION_DELIVERY_JUDGE_H_

#include "tests/simulation/delivery_world.h"

namespace penstock::delivery_simulation {

void CheckEnd(World& world);

}  // namespace penstock::delivery_simulation
#endif  // TESTS_SIMULATION_DELIVERY_JUDGE_H_
