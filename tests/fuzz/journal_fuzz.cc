// The input is a journal's file (broker/recovery/journal.h), as found after a
// crash or left by somebody else. It is opened as it is, and once more with its
// checksums made right: no fuzzer guesses those, and behind them is the rest.
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "broker/recovery/journal.h"
#include "tests/fuzz/require.h"
#include "tests/support/memory_journal_files.h"

namespace penstock {
namespace {

using Records = std::vector<std::pair<uint8_t, std::string>>;

struct Opened {
  std::unique_ptr<Journal> journal;
  Records records;
  JournalReplay replay;
};

Opened Open(MemoryDisk* disk) {
  Opened opened;
  auto journal = Journal::Open(
      std::make_unique<MemoryJournalFiles>(disk), JournalLimits(),
      [&opened](uint8_t type, std::string_view payload) {
        opened.records.emplace_back(type, payload);
        return OkStatus();
      },
      &opened.replay);
  if (journal.ok()) opened.journal = *std::move(journal);
  return opened;
}

void Check(const std::string& file) {
  MemoryDisk disk;
  disk.bytes("journal") = file;
  Opened first = Open(&disk);
  if (first.journal == nullptr) {
    Require(disk.bytes("journal") == file, "a refused file is untouched");
    return;
  }
  Require(first.replay.records == first.records.size(), "records are counted");
  Require(first.replay.warning.empty() || first.journal->size_bytes() <= 28 ||
              first.journal->size_bytes() <= file.size(),
          "a damaged file does not grow");
  Records expected = first.records;
  expected.emplace_back(9, "one more");
  Require(first.journal->Append(9, "one more").ok(), "it can be appended to");
  first.journal.reset();

  Opened second = Open(&disk);
  Require(second.journal != nullptr, "it opens again");
  Require(second.records == expected, "the same records and one more");
  Require(second.replay.bytes_cut == 0, "what was cut stays cut");
  Require(second.replay.warning.empty() || second.journal->WantsCompaction(),
          "a compaction ends the warnings");
  Require(second.journal
              ->Compact([&expected](const JournalRecord& put) {
                for (const auto& [type, payload] : expected) {
                  PENSTOCK_RETURN_IF_ERROR(put(type, payload));
                }
                return OkStatus();
              })
              .ok(),
          "it can be compacted");
  second.journal.reset();
  const Opened third = Open(&disk);
  Require(third.records == expected, "compaction keeps the records");
  Require(third.replay.warning.empty(), "compaction leaves a sound file");
}

uint32_t Load(const std::string& file, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i > 0; --i) {
    value = value << 8 | static_cast<unsigned char>(file[at + i - 1]);
  }
  return value;
}

void Store(uint32_t value, size_t at, std::string* file) {
  for (size_t i = 0; i < 4; ++i) {
    (*file)[at + i] = static_cast<char>(value >> 8 * i & 0xff);
  }
}

uint32_t Crc(uint32_t before, const std::string& file, size_t at,
             size_t bytes) {
  return static_cast<uint32_t>(
      crc32(before, reinterpret_cast<const Bytef*>(file.data() + at),
            static_cast<uInt>(bytes)));
}

// The file with the checksums of its header and of all frames that fit made
// right. Written from the format's description, not with the journal's code.
std::string WithRightChecksums(std::string file) {
  if (file.size() < 28) return file;
  file.replace(0, 12, std::string_view("penstkJ\n\1\0\0\0", 12));
  Store(Crc(0, file, 0, 24), 24, &file);
  uint32_t chain = Load(file, 12);
  for (size_t at = 28; file.size() - at >= 9;) {
    const size_t payload_bytes = Load(file, at);
    if (payload_bytes > file.size() - at - 9) break;
    chain = Crc(chain, file, at, 4);
    chain = Crc(chain, file, at + 8, 1 + payload_bytes);
    Store(chain, at + 4, &file);
    at += 9 + payload_bytes;
  }
  return file;
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string file(reinterpret_cast<const char*>(data), size);
  penstock::Check(file);
  penstock::Check(penstock::WithRightChecksums(file));
  return 0;
}
