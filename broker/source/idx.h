// source: idx. The MNIST file format
// (http://yann.lecun.com/exdb/mnist, "the IDX file format"): two zero bytes, a
// type byte, the number of dimensions, each dimension as a big-endian uint32,
// then the values, big-endian, the last dimension fastest.
//
// A gzip file (detected by its magic, not its name) is unpacked into memory as
// a whole; a plain one is read record by record. Labels are always in memory,
// as int64. Every number in a header is checked against the file before memory
// is allocated for it.
#ifndef BROKER_SOURCE_IDX_H_
#define BROKER_SOURCE_IDX_H_

#include "broker/index/data_file.h"
#include "broker/source/source.h"

namespace penstock {

struct IdxSource {
  std::string images;
  std::string labels;  // empty: no label feature
  Io io = Io::kAuto;   // of images; labels are held in memory
  bool operator==(const IdxSource&) const = default;

  static const Declaration<IdxSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress* progress) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_IDX_H_
