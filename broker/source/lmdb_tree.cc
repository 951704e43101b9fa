#include "broker/source/lmdb_tree.h"

#include <algorithm>
#include <bit>

#include "broker/index/values.h"
#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {
namespace {

using Bytes = std::span<const std::byte>;

// MDB_page, MDB_meta, MDB_db and MDB_node.
constexpr uint64_t kPageHeaderBytes = 16;
constexpr uint64_t kPageFlagsAt = 10;
constexpr uint64_t kLowerAt = 12;
constexpr uint16_t kBranch = 0x01;
constexpr uint16_t kLeaf = 0x02;
constexpr uint16_t kMeta = 0x08;
constexpr uint16_t kPageKinds = 0x6f;

constexpr uint32_t kLmdbMagic = 0xbeefc0de;
constexpr uint32_t kLmdbVersion = 1;
constexpr uint64_t kMetaBytes = 136;
constexpr uint64_t kHeadBytes = kPageHeaderBytes + kMetaBytes;
constexpr uint64_t kPageBytesAt = 24;
constexpr uint64_t kMainAt = 72;
constexpr uint64_t kLastPageAt = 120;
constexpr uint64_t kTransactionAt = 128;
constexpr uint64_t kMagicAtOf32Bit = 12;
constexpr uint64_t kPageBytesMin = 256;
constexpr uint64_t kPageBytesMax = 32768;

constexpr uint64_t kTreeBytes = 48;
constexpr uint64_t kHeaderFlagsAt = 4;
constexpr uint64_t kEntriesAt = 32;
constexpr uint64_t kRootAt = 40;
constexpr uint16_t kSeveralValues = 0x04;  // MDB_DUPSORT
constexpr uint16_t kOtherOrder = 0x0a;     // MDB_REVERSEKEY, MDB_INTEGERKEY
constexpr uint16_t kKnownFlags = 0x7e;
constexpr uint64_t kNoPage = UINT64_MAX;

constexpr uint64_t kNodeBytes = 8;
constexpr uint16_t kOverflows = 0x01;
constexpr uint16_t kIsDatabase = 0x02;

constexpr size_t kDepthMax = 32;  // CURSOR_STACK

bool IsDatabase(uint16_t flags) { return (flags & kIsDatabase) != 0; }

void AddName(std::string_view name, std::string* names) {
  constexpr size_t kBytesMax = 200;  // in an error
  if (names->size() > kBytesMax) return;
  *names += Format("{}'{}'", names->empty() ? "" : ", ", Printable(name));
}

}  // namespace

LmdbTree::LmdbTree(ScannedFile* file, const Meta& meta)
    : file_(file),
      page_bytes_(meta.page_bytes),
      // A file may have been made as large as it may become.
      pages_(std::min(file->bytes() / page_bytes_ - 1, meta.last_page) + 1),
      transaction_(meta.transaction),
      header_(meta.main),
      path_(kDepthMax) {}

LmdbTree::Header LmdbTree::HeaderAt(Bytes bytes) {
  return {ValueAt<uint16_t>(&bytes[kHeaderFlagsAt]),
          ValueAt<uint64_t>(&bytes[kEntriesAt]),
          ValueAt<uint64_t>(&bytes[kRootAt])};
}

std::optional<LmdbTree::Meta> LmdbTree::MetaAt(Bytes page) {
  const Bytes meta = page.subspan(kPageHeaderBytes);
  const uint64_t page_bytes = ValueAt<uint32_t>(&meta[kPageBytesAt]);
  if ((ValueAt<uint16_t>(&page[kPageFlagsAt]) & kMeta) == 0 ||
      ValueAt<uint32_t>(meta.data()) != kLmdbMagic ||
      ValueAt<uint32_t>(&meta[4]) != kLmdbVersion ||
      !std::has_single_bit(page_bytes) || page_bytes < kPageBytesMin ||
      page_bytes > kPageBytesMax) {
    return std::nullopt;
  }
  return Meta{page_bytes, ValueAt<uint64_t>(&meta[kLastPageAt]),
              ValueAt<uint64_t>(&meta[kTransactionAt]),
              HeaderAt(meta.subspan(kMainAt, kTreeBytes))};
}

// The newer one of two, which writers overwrite in turn.
StatusOr<LmdbTree::Meta> LmdbTree::ReadMeta(ScannedFile* file) {
  if (file->bytes() < kHeadBytes) {
    return InvalidArgumentError("{} is no LMDB file (data.mdb): it has {}",
                                file->path(), Counted(file->bytes(), "byte"));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Bytes head, file->At(0, kHeadBytes));
  const std::optional<Meta> first = MetaAt(head);
  if (!first) {
    constexpr std::string_view kWayOut =
        "copy it with mdb_dump there and mdb_load here";
    const auto magic = ValueAt<uint32_t>(&head[kPageHeaderBytes]);
    const auto version = ValueAt<uint32_t>(&head[kPageHeaderBytes + 4]);
    if (ValueAt<uint32_t>(&head[kMagicAtOf32Bit]) == kLmdbMagic ||
        magic == __builtin_bswap32(kLmdbMagic)) {
      return InvalidArgumentError("{}: an LMDB file of {}: {}", file->path(),
                                  magic == __builtin_bswap32(kLmdbMagic)
                                      ? "a machine of the other byte order"
                                      : "a 32-bit machine",
                                  kWayOut);
    }
    if (magic == kLmdbMagic && version != kLmdbVersion) {
      return InvalidArgumentError(
          "{}: version {} of LMDB's format, wanted {} (LMDB 0.9): {}",
          file->path(), version, kLmdbVersion, kWayOut);
    }
    if (magic == kLmdbMagic) {
      return DataLossError("{}: its first page is damaged", file->path());
    }
    return InvalidArgumentError("{} is no LMDB file (data.mdb)", file->path());
  }
  std::optional<Meta> second;
  if (file->bytes() >= first->page_bytes + kHeadBytes) {
    PENSTOCK_ASSIGN_OR_RETURN(const Bytes page,
                              file->At(first->page_bytes, kHeadBytes));
    second = MetaAt(page);
  }
  if (!second || second->page_bytes != first->page_bytes) {
    return DataLossError("{}, offset {}: its second page is damaged or cut off",
                         file->path(), first->page_bytes);
  }
  return second->transaction > first->transaction ? *second : *first;
}

StatusOr<LmdbTree> LmdbTree::Open(const std::string& database,
                                  ScannedFile* file) {
  file->FetchAlone();  // most of it is values
  PENSTOCK_ASSIGN_OR_RETURN(const Meta meta, ReadMeta(file));
  LmdbTree tree(file, meta);
  const auto check = [&]() -> Status {
    if ((tree.header_.flags & kSeveralValues) != 0) {
      return InvalidArgumentError(
          "{}: a key{} may have several values (MDB_DUPSORT), and a sample is "
          "one: copy it into a database without",
          file->path(),
          database.empty() ? "" : Format(" of database '{}'", database));
    }
    if ((tree.header_.flags & ~kKnownFlags) != 0) {
      return DataLossError("{}: its flags are {:#x}: it is damaged",
                           file->path(), tree.header_.flags);
    }
    return OkStatus();
  };
  PENSTOCK_RETURN_IF_ERROR(check());
  if (database.empty()) return tree;
  std::optional<Header> found;
  std::string names;
  PENSTOCK_RETURN_IF_ERROR(tree.WalkAll([&](const LmdbEntry& node) {
    if (IsDatabase(node.flags)) {
      AddName(node.key, &names);
      if (node.key == database) found = HeaderAt(node.in_page);
    }
    return true;
  }));
  if (!found) {
    return InvalidArgumentError("{}: has no database '{}'{}", file->path(),
                                database,
                                names.empty() ? "" : "; it has " + names);
  }
  tree.header_ = *found;
  PENSTOCK_RETURN_IF_ERROR(check());
  return tree;
}

Status LmdbTree::CheckUnchanged() const {
  PENSTOCK_ASSIGN_OR_RETURN(const Meta now, ReadMeta(file_));
  if (now.transaction == transaction_) return OkStatus();
  return FailedPreconditionError(
      "{} was written to while it was read (transaction {}, then {}): open it "
      "when its writer has ended, or a copy (mdb_copy)",
      file_->path(), transaction_, now.transaction);
}

Status LmdbTree::Damaged(uint64_t page, std::string_view what) const {
  return DataLossError("{}, page {} at offset {}: {}: it is damaged or cut off",
                       file_->path(), page, page * page_bytes_, what);
}

Status LmdbTree::Load(uint64_t number, size_t depth) {
  if (number >= pages_) {
    return DataLossError(
        "{}: page {} is wanted, and there are {}: it is damaged or cut off",
        file_->path(), number, pages_);
  }
  // A tree has each page once.
  if (depth >= kDepthMax || visited_++ >= pages_) {
    return Damaged(number, "pages lead in a circle");
  }
  Page& page = path_[depth];
  if (page.number == number) return OkStatus();
  page.number = kNoPage;
  PENSTOCK_ASSIGN_OR_RETURN(const Bytes read,
                            file_->At(number * page_bytes_, page_bytes_));
  page.bytes.assign(read.begin(), read.end());
  if (const auto own = ValueAt<uint64_t>(page.bytes.data()); own != number) {
    return Damaged(number, Format("it says that it is page {}", own));
  }
  const auto flags = ValueAt<uint16_t>(&page.bytes[kPageFlagsAt]);
  const uint64_t lower = ValueAt<uint16_t>(&page.bytes[kLowerAt]);
  page.is_leaf = (flags & kPageKinds) == kLeaf;
  if (!page.is_leaf && (flags & kPageKinds) != kBranch) {
    return Damaged(number, Format("its flags are {:#x}", flags));
  }
  if (lower < kPageHeaderBytes + 2 || lower > page_bytes_) {
    return Damaged(number, Format("its table ends at {}", lower));
  }
  page.nodes = (lower - kPageHeaderBytes) / 2;
  page.children = nullptr;
  if (!page.is_leaf) {
    std::vector<RemoteFile::Range> children;
    for (uint64_t i = 0; i < page.nodes; ++i) {
      PENSTOCK_ASSIGN_OR_RETURN(const LmdbEntry node, EntryAt(page, i));
      if (node.offset >= pages_) continue;  // told when it is wanted
      children.push_back({node.offset * page_bytes_, page_bytes_});
    }
    page.children = file_->Expect(std::move(children));
  }
  page.number = number;
  return OkStatus();
}

StatusOr<LmdbEntry> LmdbTree::EntryAt(const Page& page, uint64_t i) const {
  const auto wrong = [&](std::string_view what) {
    return Damaged(page.number, Format("entry {} {}", i, what));
  };
  const std::byte* const bytes = page.bytes.data();
  const uint64_t at = ValueAt<uint16_t>(bytes + kPageHeaderBytes + 2 * i);
  if (at < kPageHeaderBytes + 2 * page.nodes || at > page_bytes_ - kNodeBytes) {
    return wrong(Format("lies at {}", at));
  }
  const uint64_t low = ValueAt<uint16_t>(bytes + at);
  const uint64_t high = ValueAt<uint16_t>(bytes + at + 2);
  const uint64_t key_bytes = ValueAt<uint16_t>(bytes + at + 6);
  LmdbEntry node;
  node.flags = ValueAt<uint16_t>(bytes + at + 4);
  const uint64_t value_at = at + kNodeBytes + key_bytes;
  if (value_at > page_bytes_) return wrong("ends behind the page");
  node.key = {reinterpret_cast<const char*>(bytes + at + kNodeBytes),
              key_bytes};
  if (!page.is_leaf) {
    node.offset = low | high << 16 | uint64_t{node.flags} << 32;
    return node;
  }
  node.bytes = low | high << 16;
  const bool overflows = (node.flags & kOverflows) != 0;
  const uint64_t here = overflows ? sizeof(uint64_t) : node.bytes;
  if (here > page_bytes_ - value_at) return wrong("ends behind the page");
  node.in_page = Bytes(page.bytes).subspan(value_at, here);
  node.offset = page.number * page_bytes_ + value_at;
  node.key_at = node.offset - key_bytes;
  if ((node.flags & ~(kOverflows | kIsDatabase)) != 0 ||
      (IsDatabase(node.flags) && (overflows || node.bytes != kTreeBytes))) {
    return wrong(Format("has flags {:#x}", node.flags));
  }
  if (overflows) {
    const auto first = ValueAt<uint64_t>(node.in_page.data());
    if (first >= pages_ ||
        node.bytes + kPageHeaderBytes > (pages_ - first) * page_bytes_) {
      return wrong(Format("has {} from page {} on, and the file {}",
                          Counted(node.bytes, "byte"), first,
                          Counted(pages_, "page")));
    }
    node.offset = first * page_bytes_ + kPageHeaderBytes;
  }
  return node;
}

// A leaf's first entry of a key that is not less; a branch's child that has it.
StatusOr<uint64_t> LmdbTree::Search(const Page& page,
                                    std::string_view key) const {
  uint64_t begin = page.is_leaf ? 0 : 1;  // a branch's first key is left out
  uint64_t end = page.nodes;
  while (begin < end) {
    const uint64_t middle = begin + (end - begin) / 2;
    PENSTOCK_ASSIGN_OR_RETURN(const LmdbEntry node, EntryAt(page, middle));
    if (page.is_leaf ? node.key < key : node.key <= key) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return page.is_leaf ? begin : begin - 1;
}

StatusOr<bool> LmdbTree::Walk(uint64_t number, size_t depth,
                              std::optional<std::string_view> from,
                              const Visit& visit) {
  PENSTOCK_RETURN_IF_ERROR(Load(number, depth));
  const Page& page = path_[depth];
  uint64_t i = 0;
  if (from) {
    PENSTOCK_ASSIGN_OR_RETURN(i, Search(page, *from));
  }
  for (; i < page.nodes; ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const LmdbEntry node, EntryAt(page, i));
    PENSTOCK_ASSIGN_OR_RETURN(
        const bool more,
        page.is_leaf ? visit(node) : Walk(node.offset, depth + 1, from, visit));
    if (!more) return false;
    from = std::nullopt;
  }
  return true;
}

Status LmdbTree::WalkAll(const Visit& visit) {
  if (header_.root == kNoPage) return OkStatus();
  visited_ = 0;
  uint64_t entries = 0;
  std::string last;
  PENSTOCK_ASSIGN_OR_RETURN(
      const bool whole,
      Walk(header_.root, 0, std::nullopt,
           [&](const LmdbEntry& node) -> StatusOr<bool> {
             // Told here, pages that come twice are no samples twice.
             if (entries++ > 0 && node.key <= last &&
                 (header_.flags & kOtherOrder) == 0) {
               return DataLossError(
                   "{}: key '{}' comes behind '{}': it is damaged, or a "
                   "program sorted it in an order of its own",
                   file_->path(), Printable(node.key), Printable(last));
             }
             last = node.key;
             return visit(node);
           }));
  if (!whole || entries == header_.entries) return OkStatus();
  return DataLossError("{}: has {}, and {} by its header: it is damaged",
                       file_->path(), Counted(entries, "entry", "entries"),
                       header_.entries);
}

Status LmdbTree::ForEach(const Visit& visit) {
  bool some = false;
  std::string names;
  PENSTOCK_RETURN_IF_ERROR(
      WalkAll([&](const LmdbEntry& node) -> StatusOr<bool> {
        if (IsDatabase(node.flags)) {
          AddName(node.key, &names);
          return true;
        }
        some = true;
        return visit(node);
      }));
  if (some || names.empty()) return OkStatus();
  return InvalidArgumentError(
      "{}: has databases alone: say which one with `database`: {}",
      file_->path(), names);
}

Status LmdbTree::ForEachFrom(std::string_view key, const Visit& visit) {
  if (header_.root == kNoPage) return OkStatus();
  visited_ = 0;
  const auto whole = Walk(header_.root, 0, key,
                          [&visit](const LmdbEntry& node) -> StatusOr<bool> {
                            if (IsDatabase(node.flags)) return true;
                            return visit(node);
                          });
  return whole.status();
}

StatusOr<std::optional<LmdbEntry>> LmdbTree::Find(std::string_view key) {
  if ((header_.flags & kOtherOrder) != 0) {
    return InvalidArgumentError(
        "{}: its keys are not in the order of their bytes (MDB_REVERSEKEY, "
        "MDB_INTEGERKEY): only one key a sample can be taken",
        file_->path());
  }
  std::optional<LmdbEntry> found;
  PENSTOCK_RETURN_IF_ERROR(ForEachFrom(key, [&](const LmdbEntry& entry) {
    if (entry.key == key) found = entry;
    return false;
  }));
  return found;
}

}  // namespace penstock
