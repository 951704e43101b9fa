// `check --all`: reads and makes every record of a dataset once, and lists
// those that are broken for `select: [exclude: FILE]`.
#ifndef CLIENT_COMMAND_CHECK_ALL_H_
#define CLIENT_COMMAND_CHECK_ALL_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "client/command/spec_file.h"
#include "client/private_broker/private_broker.h"
#include "common/status.h"

namespace penstock {

// The spec without the steps of `select` that exclude the records of this file,
// which is to be made anew, and may be of other data.
StatusOr<SpecFile> WithoutList(PrivateBroker* broker, const SpecFile& file,
                               const std::string& list);

// The spec without `select` and buckets: a broken record cannot keep it from
// opening, since no column is read.
StatusOr<SpecFile> OfAllRecords(PrivateBroker* broker, const SpecFile& file);

struct AllChecked {
  uint64_t records = 0;  // read and made, or broken
  uint64_t count = 0;    // broken
  // count, by kind, the first of them.
  nlohmann::ordered_json broken;
};

// index: of the file. Writes the list, whole or not at all, with no record in
// it if none is broken. FailedPrecondition: a stream; a mix, which has a record
// at another place in each pass, so that nothing is left out of it by number.
// Unavailable: penstockd died on the way, and some records are not known of.
StatusOr<AllChecked> CheckAllRecords(PrivateBroker* broker,
                                     const SpecFile& file,
                                     const DatasetIndex& index,
                                     const std::string& list);

// For people: what was found, and how the list is used.
void TellChecked(const AllChecked& checked, const SpecFile& file,
                 const DatasetIndex& index, const std::string& list);

}  // namespace penstock
#endif  // CLIENT_COMMAND_CHECK_ALL_H_
