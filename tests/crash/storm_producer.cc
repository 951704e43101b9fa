#include "tests/crash/storm_producer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

#include "client/penstock.hpp"

namespace penstock {
namespace {

constexpr uint64_t kPutRowsMax = 24;

// Puts the rows from the stream's position to its end.
void PutTheRest(const StormRankOptions& options, std::mt19937_64* random) {
  ProducerOptions wanted;
  wanted.features = {
      {"bytes", PENSTOCK_UINT8, {static_cast<int64_t>(JobKind::kRowBytes)}}};
  wanted.rows = kPutRowsMax;
  wanted.job = options.job;
  wanted.socket = options.socket;
  Producer producer(wanted);
  for (uint64_t at = producer.next_row(); at < options.kind.records;) {
    const uint64_t rows =
        std::min(1 + (*random)() % kPutRowsMax, options.kind.records - at);
    producer.reserve(rows);
    auto* row = producer.data<std::byte>(0);
    for (uint64_t i = 0; i < rows; ++i, row += JobKind::kRowBytes) {
      JobKind::FillRow(static_cast<int64_t>(at + i), row);
    }
    producer.put(rows);
    at += rows;
    if (options.pace_us > 0) {
      std::this_thread::sleep_for(
          std::chrono::microseconds((*random)() % options.pace_us));
    }
  }
  producer.finish();
}

}  // namespace

int RunStormProducer(const StormRankOptions& options) {
  std::mt19937_64 random(options.seed);
  for (;;) {
    try {
      PutTheRest(options, &random);
    } catch (const Error& error) {
      // All rows are put, or the ranks have left, or the broker is restarting.
      if (error.code() != PENSTOCK_FAILED_PRECONDITION &&
          error.code() != PENSTOCK_ABORTED &&
          error.code() != PENSTOCK_UNAVAILABLE) {
        std::fprintf(stderr, "the producer of job '%s': %s\n",
                     options.job.c_str(), error.what());
        return 1;
      }
    }
    // Limits the rate of retries.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace penstock
