// Samples of members, each a range of a file and a feature of the row: those of
// tar files, and of LMDB.
#ifndef BROKER_SOURCE_SAMPLE_MEMBERS_H_
#define BROKER_SOURCE_SAMPLE_MEMBERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/source/indexed_source.h"
#include "broker/source/npy_header.h"
#include "broker/source/record_feature.h"

namespace penstock {

// The member that is a sample's name.
inline constexpr std::string_view kSampleName = "__key__";

// A value of a member that is a JSON document.
class MemberJson;

// A record of the index has a place for each feature.
class SourceOfMembers : public IndexedSource {
 public:
  // word: what people call a member. numbers: which are a number in text, by
  // feature; others are what they look like.
  SourceOfMembers(std::string word, const RecordFeatures& features,
                  std::vector<bool> numbers, Index index);
  ~SourceOfMembers() override;

  std::string left_out() const override;
  void Locate(uint64_t record, ReadRequest* request) const override;
  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch, RawRecord* raw) const override;
  std::string Describe(uint64_t record) const override;
  // Reads those members alone. Refers to this object.
  std::unique_ptr<Source> OfFeatures(
      std::span<const std::string> names) const override;

 private:
  class SomeMembers;

  // Some features alone, by their places in features_.
  void LocateSome(uint64_t record, std::span<const uint8_t> some,
                  ReadRequest* request) const;
  Status UnpackSome(uint64_t record, std::span<const uint8_t> some,
                    const ReadBytes& read, std::vector<std::byte>* scratch,
                    RawRecord* raw) const;
  Status TakeDefault(size_t feature, RawRecord* raw) const;
  Status Take(size_t i, std::span<const std::byte> member,
              std::span<std::byte> room, RawRecord* raw) const;

  const std::string word_;
  const RecordFeatures features_;
  std::vector<std::unique_ptr<MemberJson>> json_;  // by feature
  std::vector<std::vector<std::byte>> defaults_;   // by feature
  const std::vector<bool> numbers_;                // by feature
  std::vector<uint8_t> all_;
  uint64_t room_ = 0;
};

// What members of one name have been like, for a spec without features.
struct SeenMembers {
  uint64_t samples = 0;
  uint64_t bytes_least = UINT64_MAX;
  uint64_t bytes_most = 0;
  bool pictures = true;
  bool sounds = true;
  bool text = true;
  bool pickles = true;
  // Arrays of one dtype, that differ in length at most.
  bool arrays = true;
  bool same_shape = true;
  std::optional<NpyHeader> array;  // the first that is not an empty list
  uint64_t items_most = 0;

  // Reads how the member begins.
  Status Add(const DataFile& file, uint64_t offset, uint64_t bytes,
             OpenProgress* progress);
  // "encoded: true"; "": nothing that a spec can tell.
  std::string Proposed(bool is_number) const;
  // "txt (2 to 99 bytes)"
  std::string Text(std::string_view name) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_SAMPLE_MEMBERS_H_
