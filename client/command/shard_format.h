// The formats that `penstock convert` writes. Each makes shards of rows: whole
// files, in memory until they are full.
//
// Their bytes are a function of the rows and of the format alone.
#ifndef CLIENT_COMMAND_SHARD_FORMAT_H_
#define CLIENT_COMMAND_SHARD_FORMAT_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

// A feature of a row, with the one that tells its length.
struct RowColumn {
  enum class Kind { kValues, kList, kText, kFile };

  Feature feature;
  Kind kind = Kind::kValues;
  uint32_t place = 0;  // in the row
  // Where there is one: its place and name.
  std::optional<uint32_t> length;
  std::string length_name = {};
};
// file_room: lists of uint8 with room for so many are files (keep_encoded).
std::vector<RowColumn> ColumnsOf(const ElementSpec& features,
                                 uint64_t file_room);

// What a row has of a column, without what fills its room.
struct RowValue {
  std::string_view bytes;
  uint64_t items = 0;  // of a list
};

struct ShardFormatOptions {
  std::string format;   // one of kShardFormats
  std::string feature;  // tokens: which; "": the only list of integers
  std::string dtype;    // tokens: as what they are written; "": their own
};
inline constexpr const char* kShardFormats[] = {"webdataset", "mds", "fixed",
                                                "tokens", "parquet"};

// A shard that is written.
struct Shard {
  uint64_t rows = 0;
  uint64_t bytes = 0;
};
// "000007.tar"
std::string ShardName(size_t number, std::string_view extension);

class ShardFormat {
 public:
  // InvalidArgument: it cannot hold such rows, with the way out;
  // FailedPrecondition: there is no pyarrow.
  static StatusOr<std::unique_ptr<ShardFormat>> Make(
      const ShardFormatOptions& options, std::vector<RowColumn> columns);
  virtual ~ShardFormat() = default;

  virtual const char* extension() const = 0;
  // key: names the row where the format has names; one of its own in the shard.
  // Errors are the row's: DataLoss.
  virtual Status Add(const std::string& key, std::span<const RowValue> row) = 0;
  // That the shard has so far.
  virtual uint64_t bytes() const { return text_.size(); }
  // The file of the shard; the next one begins. Errors: Parquet's.
  virtual StatusOr<std::string> Take() = 0;

  // ---- of all shards

  // `source` of a spec beside them that reads them.
  virtual nlohmann::ordered_json Source(
      std::span<const Shard> shards) const = 0;
  // The text of index.json; "": there is none.
  virtual std::string Index(std::span<const Shard>) const { return ""; }
  // What its shards have in common and only rows tell, for another process that
  // goes on.
  virtual nlohmann::ordered_json learned() const { return nullptr; }
  virtual void Learn(const nlohmann::ordered_json&) {}

 protected:
  explicit ShardFormat(std::vector<RowColumn> columns)
      : columns_(std::move(columns)) {}

  const std::vector<RowColumn> columns_;
  std::string text_;
};

}  // namespace penstock
#endif  // CLIENT_COMMAND_SHARD_FORMAT_H_
