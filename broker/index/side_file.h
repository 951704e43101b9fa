// A file beside the data, which a step of `map` or `select` reads once, when
// the dataset opens: a vocabulary, statistics, the records that a predicate
// kept, a list of records.
#ifndef BROKER_INDEX_SIDE_FILE_H_
#define BROKER_INDEX_SIDE_FILE_H_

#include <cstdint>
#include <string>

namespace penstock {

// Constant once opened: any thread may use it.
class SideFile {
 public:
  virtual ~SideFile() = default;
  // The path now leads to another file, or the file was rewritten.
  virtual bool Changed() const = 0;
  virtual uint64_t memory_bytes() const = 0;
  // The same for the same content.
  virtual std::string digest() const = 0;
};

}  // namespace penstock
#endif  // BROKER_INDEX_SIDE_FILE_H_
