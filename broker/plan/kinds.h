// All steps of `select`, in the order in which people are told of them. A new
// one is a pair of files with a struct, its Declared and its Apply, and a line
// of each list here.
#ifndef BROKER_PLAN_KINDS_H_
#define BROKER_PLAN_KINDS_H_

#include <variant>

#include "broker/plan/balance.h"
#include "broker/plan/filter.h"
#include "broker/plan/interleave.h"
#include "broker/plan/repeat.h"
#include "broker/plan/sample.h"
#include "broker/plan/shard.h"
#include "broker/plan/split.h"
#include "broker/plan/take.h"

namespace penstock {

using SelectSpec = std::variant<  //
    FilterStep,                   //
    TakeStep,                     //
    SkipStep,                     //
    ShardStep,                    //
    RepeatStep,                   //
    SplitStep,                    //
    FoldStep,                     //
    BalanceStep,                  //
    SampleStep,                   //
    InterleaveStep>;

}  // namespace penstock
#endif  // BROKER_PLAN_KINDS_H_
