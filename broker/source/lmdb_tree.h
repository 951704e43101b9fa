// The entries of an LMDB file, in the order of their keys (lmdb.h and mdb.c of
// LMDB 0.9: version 1 of the format, as 64-bit little-endian machines write
// it).
//
// Untrusted input. liblmdb maps the file and trusts it, so a damaged or cut
// file ends the process: here pages are read and checked. No lock is taken and
// nothing is written; a commit meanwhile is told by its transaction number.
#ifndef BROKER_SOURCE_LMDB_TREE_H_
#define BROKER_SOURCE_LMDB_TREE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/index/index.h"
#include "common/status.h"

namespace penstock {

struct LmdbEntry {
  std::string_view key;  // until the next call of its tree
  uint64_t key_at = 0;   // in the file
  uint64_t offset = 0;   // of its value
  uint64_t bytes = 0;
  uint16_t flags = 0;
  std::span<const std::byte> in_page;  // what its page has of the value
};

// One thread. A copy reads other pages of the same file.
class LmdbTree {
 public:
  // The named database, or with "" the main one. Errors: InvalidArgument (no
  // LMDB file, of another format, no such database, several values a key),
  // DataLoss (damaged or cut off).
  static StatusOr<LmdbTree> Open(const std::string& database,
                                 ScannedFile* file);

  // False: no more are wanted.
  using Visit = std::function<StatusOr<bool>(const LmdbEntry& entry)>;
  // Every entry that is no database. Errors: DataLoss, with page and offset;
  // InvalidArgument: there are databases alone; visit's.
  Status ForEach(const Visit& visit);
  // From the first one on whose key is not less.
  Status ForEachFrom(std::string_view key, const Visit& visit);
  // InvalidArgument: keys are not in the order of their bytes.
  StatusOr<std::optional<LmdbEntry>> Find(std::string_view key);

  // FailedPrecondition: a writer has committed since it was opened.
  Status CheckUnchanged() const;

 private:
  struct Header {
    uint16_t flags = 0;
    uint64_t entries = 0;
    uint64_t root = 0;
  };
  struct Meta {
    uint64_t page_bytes = 0;
    uint64_t last_page = 0;
    uint64_t transaction = 0;
    Header main;
  };
  // A page on the way to an entry, checked.
  struct Page {
    std::vector<std::byte> bytes;
    uint64_t number = UINT64_MAX;
    uint64_t nodes = 0;
    bool is_leaf = false;
    // A remote file's: they are asked for at once.
    std::shared_ptr<const HeldRanges> children;
  };

  LmdbTree(ScannedFile* file, const Meta& meta);
  static Header HeaderAt(std::span<const std::byte> bytes);
  static std::optional<Meta> MetaAt(std::span<const std::byte> page);
  static StatusOr<Meta> ReadMeta(ScannedFile* file);

  Status Damaged(uint64_t page, std::string_view what) const;
  Status Load(uint64_t number, size_t depth);
  // A branch has the number of a page in offset.
  StatusOr<LmdbEntry> EntryAt(const Page& page, uint64_t i) const;
  StatusOr<uint64_t> Search(const Page& page, std::string_view key) const;
  StatusOr<bool> Walk(uint64_t number, size_t depth,
                      std::optional<std::string_view> from, const Visit& visit);
  // Databases too; as many as the header says.
  Status WalkAll(const Visit& visit);

  ScannedFile* file_;
  uint64_t page_bytes_;
  uint64_t pages_;
  uint64_t transaction_;
  Header header_;
  std::vector<Page> path_;  // by depth
  uint64_t visited_ = 0;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_LMDB_TREE_H_
