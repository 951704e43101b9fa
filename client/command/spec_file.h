// A dataset spec file named on the command line, and the broker's answer about
// it.
#ifndef CLIENT_COMMAND_SPEC_FILE_H_
#define CLIENT_COMMAND_SPEC_FILE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/private_broker/control_call.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

struct SpecFile {
  std::string name;  // as given; begins messages
  std::string path;  // absolute
  std::string base;  // absolute folder of its relative paths
  std::string text;

  // The fields spec, file and base of a request.
  nlohmann::json Request(const char* op) const;
};

// Only reads the text: a broker parses it, and answers a request with
// InvalidArgument "FILE:LINE:COLUMN: ...". Errors: NotFound and so on.
StatusOr<SpecFile> ReadSpecFile(const std::string& name);

// An error about a spec that a command has made of a file, and whose request
// had no file name: with the file's name, and the numbers that steps of `map`
// have there. steps: of each step of the made spec. Such a spec has no lines.
Status InFile(const Status& status, const SpecFile& file,
              const std::vector<size_t>& steps);

// The broker's description of the opened source.
struct DatasetIndex {
  std::string dataset;  // its name
  nlohmann::json spec;  // canonical, with every default
  std::string text;     // of it, as JSON with its keys in order
  uint64_t records = 0;
  ElementSpec element_spec;
  std::vector<ElementSpec> element_spec_by_part;  // where shapes differ
  uint64_t global_batch = 0;
  uint64_t steps_per_epoch = 0;
  uint64_t memory_bytes = 0;             // of the job; 0: unknown
  uint64_t retained_bytes = 0;           // part of it, for rows held for long
  std::vector<std::string> class_names;  // of the feature "label"
  uint64_t rows_per_epoch = 0;           // padding not counted
  std::optional<uint64_t> epochs;        // nullopt: forever
  nlohmann::json answer;                 // without the spec

  // The options of the source, if it is of this kind; else null.
  const nlohmann::json& SourceOf(const char* kind) const;
  // Whether producers put its rows.
  bool IsStream() const { return !SourceOf("stream").is_null(); }
  // FailedPrecondition: a stream, which has no rows without producers.
  Status CheckHasRows(const SpecFile& file) const;
};

// Asks `call`'s broker to index the source, with a progress bar. more: further
// fields of the request.
StatusOr<DatasetIndex> IndexDataset(
    const BrokerCall& call, const SpecFile& file, int world_size,
    const nlohmann::json& more = nlohmann::json::object());
// Checks the answer to "index". Internal: a field is missing or wrong.
StatusOr<DatasetIndex> DatasetIndexFromJson(const nlohmann::json& answer);

}  // namespace penstock
#endif  // CLIENT_COMMAND_SPEC_FILE_H_
