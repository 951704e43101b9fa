// What all sources made of parts have in common.
#ifndef BROKER_SOURCE_PARTS_H_
#define BROKER_SOURCE_PARTS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "broker/source/kinds.h"
#include "broker/source/selection.h"

namespace penstock {

ValueType<std::vector<PartSpec>> ListOfParts();
// Keys of a part that only some of these sources have.
struct PartKeys {
  bool weight = false;
  bool prefix = false;
};
Status CheckPartKeys(const YamlValue& value, const std::vector<PartSpec>& parts,
                     const PartKeys& allowed);
// Its own parts, if it has any, have to be alike. path: of the part.
OpenedSource OpenPart(const PartSpec& spec, const std::string& path,
                      OpenProgress* progress, const FunctionOptions& functions);
struct OpenedPart {
  std::unique_ptr<Source> source;
  Selection selection;
  // A zip's part: its records, and what the names of its features begin with.
  std::unique_ptr<Order> order;
  std::string prefix;

  uint64_t RecordOf(uint64_t row) const { return order->At(row, 0, {}).record; }
};

// What depends on the parts alone, not on how their records become those of
// all.
class SourceOfParts : public Source {
 public:
  uint64_t memory_bytes() const override;
  bool Changed() const override;
  std::string io() const override { return Joined(&Source::io, ", "); }
  std::string left_out() const override {
    return Joined(&Source::left_out, "; ");
  }
  void AddDigests(FileDigests* digests) const override;
  void AddTimes(Fingerprint* to) const override;
  void ListFiles(const FileVisit& visit) const override;
  // What tells a part's records, as it selects them, from those of others on
  // every host; "": nothing does. May take a pass over the index.
  virtual std::string KeyOfPart(size_t /*part*/) const { return ""; }

 protected:
  explicit SourceOfParts(std::vector<OpenedPart> parts)
      : parts_(std::move(parts)) {}
  const std::vector<OpenedPart>& opened() const { return parts_; }
  // What the parts say, each text once.
  std::string Joined(std::string (Source::*text)() const,
                     const char* between) const;

 private:
  const std::vector<OpenedPart> parts_;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_PARTS_H_
