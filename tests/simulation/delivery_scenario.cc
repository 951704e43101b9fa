#include "tests/simulation/delivery_scenario.h"

#include <algorithm>
#include <memory>

#include "common/format.h"
#include "common/wake.h"
#include "tests/simulation/delivery_broker.h"
#include "tests/simulation/delivery_judge.h"
#include "tests/simulation/delivery_rank.h"

namespace penstock {
namespace delivery_simulation {
namespace {

using simulation::Mortality;
using simulation::Scenario;

World* world = nullptr;  // the running scenario, for SendWake

}  // namespace

Scenario TheWorld(const Config& config) {
  return [=](Run& run) {
    auto of = std::make_shared<World>(&run, config);
    world = of.get();
    World* const w = world;
    for (int instance = 0; instance < config.instances; ++instance) {
      const auto broker = std::make_shared<std::unique_ptr<Broker>>();
      w->broker_process[instance] = run.AddProcess(
          Format("broker {}", instance + 1),
          [=, &run] {
            if (instance > 0) {
              const auto all_before = [=](const auto& are) {
                return std::all_of(w->broker_process.begin(),
                                   w->broker_process.begin() + instance, are);
              };
              run.WaitUntil([&] {
                return all_before([&](int each) { return run.gone(each); });
              });
              const bool dead =
                  all_before([&](int each) { return run.dead(each); });
              run.Observe(dead);
              if (!dead) return;
              *broker = std::make_unique<Broker>(w, instance);
            }
            (*broker)->Run();
          },
          instance + 1 < config.instances ? Mortality::kMayDie
                                          : Mortality::kNeverDies);
      if (instance == 0) {
        w->kept.launch = Launch(config.world, config.world);
        *broker = std::make_unique<Broker>(w, 0);
      }
      if (instance == 0) {
        w->ranks = static_cast<int>(config.world + config.replacements);
        for (int i = 0; i < w->ranks; ++i) {
          const bool replaces = i >= static_cast<int>(config.world);
          w->rank_process[i] = run.AddProcess(
              replaces ? "replacement" : Format("rank {}", i),
              [=] {
                (void)of;
                Rank rank(w, i);
                const auto number = static_cast<uint32_t>(i);
                if (replaces) {
                  rank.RunAsReplacement();
                } else if (number + config.late >= config.world) {
                  rank.RunLate(number);
                } else {
                  rank.Run(number);
                }
              },
              i < static_cast<int>(config.may_die) ? Mortality::kMayDie
                                                   : Mortality::kNeverDies);
        }
        for (uint32_t i = 0; i < config.world - config.late; ++i) {
          w->sessions[0][i].number = i;
          (*broker)->AttachAtOnce(static_cast<int>(i));
          w->sessions[0][i].answered = true;
        }
      }
    }
    if (config.evict) {
      run.AddProcess("operator", [=, &run] {
        run.Step("asks for an eviction");
        w->evict_requested = true;
      });
    }
    for (int instance = 0; instance < config.instances; ++instance) {
      const int broker = w->broker_process[instance];
      Segment& segment = w->segments[instance];
      for (uint32_t i = 0; i < kSeats; ++i) {
        run.Share(&segment.rings[i], sizeof(Ring), broker);
        run.Name(&segment.rings[i].cells[0].generation, "cell 0 generation");
        run.Name(&segment.rings[i].cells[1].generation, "cell 1 generation");
        run.Name(&segment.rings[i].closed, "closed");
        run.Name(&segment.rings[i].broker_waiting, "broker_waiting");
      }
      run.Share(&segment.slots, sizeof(segment.slots), broker);
      for (int i = 0; i < w->ranks; ++i) {
        Session& session = w->sessions[instance][i];
        const int rank = w->rank_process[i];
        session.to_rank.Connect(&run, broker, rank);
        session.to_broker.Connect(&run, rank, broker);
        CursorPage& page = session.page;
        constexpr size_t kUnusedLeases = kLeasesMax - kLeases;
        run.Share(&page,
                  offsetof(CursorPage, released) + kLeases * sizeof(uint64_t),
                  rank);
        run.ShareConstant(&page.released[kLeases],
                          kUnusedLeases * sizeof(uint64_t));
        run.Share(&page.leases, kLeases * sizeof(LeaseRecord), rank);
        run.ShareConstant(&page.leases[kLeases],
                          kUnusedLeases * sizeof(LeaseRecord));
        run.Name(&page.taken, "taken");
        run.Name(&page.position, "position");
        run.Name(&page.waiting, "waiting");
        for (uint32_t lease = 0; lease < kLeases; ++lease) {
          LeaseRecord& record = page.leases[lease];
          run.Name(&page.released[lease], "released");
          run.Name(&record.generation, "generation");
          run.Name(&record.step, "lease's step");
        }
      }
    }
    if (config.options.mode == DeliveryMode::kDynamic) {
      run.Always([=] { w->CheckNextIsAtHand(); });
    }
    run.AtEnd([=] {
      (void)of;
      CheckEnd(*w);
    });
  };
}

}  // namespace delivery_simulation

// This program's version of common/wake.h.
void SendWake(int socket) {
  using delivery_simulation::kRanksMax;
  delivery_simulation::world->sessions[socket / kRanksMax][socket % kRanksMax]
      .to_rank.Send();
}

}  // namespace penstock
