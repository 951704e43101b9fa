// source: synthetic. Records made without I/O and memory, to measure everything
// but I/O, and to know every byte that a test must receive.
//
// The formula. Mix is the output function of SplitMix64 (Steele, Lea, Flood:
// Fast Splittable Pseudorandom Number Generators, 2014). Feature f of record r
// is the stream of 64-bit words, little-endian,
//
//   word[k] = Mix(Mix(Mix(r) + f) + (k + 1) * 0x9e3779b97f4a7c15)
//
// for k = 0, 1, ..., cut to the feature's bytes. An integer dtype uses these
// bytes as they are, a bool the lowest bit of each. A float reads each value's
// bytes as an unsigned number u of b bits and becomes (u >> (b - p)) * 2^-p,
// where p is its number of significant bits (float64 53, float32 24, float16
// 11, bfloat16 8): exact, uniform in [0, 1), never NaN.
#ifndef BROKER_SOURCE_SYNTHETIC_H_
#define BROKER_SOURCE_SYNTHETIC_H_

#include "broker/source/source.h"

namespace penstock {

struct SyntheticSource {
  uint64_t records = 0;
  ElementSpec features;
  uint64_t cost_us = 0;  // CPU microseconds burnt per record
  bool operator==(const SyntheticSource&) const = default;

  static const Declaration<SyntheticSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress*) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_SYNTHETIC_H_
