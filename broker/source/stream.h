// source: stream. Rows that producers put while the job runs
// (penstock_produce). Each row is delivered once, in put order: no shuffle, one
// epoch, no seek.
#ifndef BROKER_SOURCE_STREAM_H_
#define BROKER_SOURCE_STREAM_H_

#include "broker/source/source.h"

namespace penstock {

struct StreamSource {
  ElementSpec features;
  // The data end when this many producers have finished, or more if more were
  // at work at once.
  uint64_t producers = 1;
  bool operator==(const StreamSource&) const = default;

  static const Declaration<StreamSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress*) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_STREAM_H_
