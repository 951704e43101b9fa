// The simulation of delivery: its processes and what they share, for the
// explorer.
#ifndef TESTS_SIMULATION_DELIVERY_SCENARIO_H_
#define TESTS_SIMULATION_DELIVERY_SCENARIO_H_

#include "tests/simulation/delivery_world.h"

namespace penstock::delivery_simulation {

simulation::Scenario TheWorld(const Config& config);

}  // namespace penstock::delivery_simulation
#endif  // TESTS_SIMULATION_DELIVERY_SCENARIO_H_
