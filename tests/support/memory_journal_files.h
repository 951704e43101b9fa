// An in-memory state directory for the journal that injects failures and
// deaths.
//
// A MemoryDisk keeps what processes wrote; a MemoryJournalFiles is one
// process's view of it. Only one thread at a time may use a disk.
#ifndef TESTS_SUPPORT_MEMORY_JOURNAL_FILES_H_
#define TESTS_SUPPORT_MEMORY_JOURNAL_FILES_H_

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "broker/recovery/journal.h"

namespace penstock {

struct MemoryDisk {
  struct File {
    std::string bytes;
    std::string synced;  // survives a death of the machine for certain
  };
  using Names = std::map<std::string, std::shared_ptr<File>>;

  Names names;
  Names names_before_rename;  // the last one
  const void* locked_by = nullptr;
  uint32_t random = 1;

  // ---- faults

  size_t write_bytes_max = SIZE_MAX;  // more are cut short
  size_t bytes_max = SIZE_MAX;        // of all files; beyond is ENOSPC
  // A positive errno for a call, or 0. "write journal.new": with the name that
  // the file has then.
  std::function<int(const std::string& call)> fail;
  // The process dies in its call with this number, counted from 0. Its later
  // calls have no effect.
  size_t die_at_call = SIZE_MAX;
  // A write in which it dies stores this many quarters of its bytes.
  size_t torn_quarters = 0;
  // It stores only the whole pages of those, as the kernel does.
  bool torn_at_page = false;

  // ---- what happened

  size_t calls = 0;
  bool died = false;

  std::string& bytes(const std::string& name) {
    auto& file = names[name];
    if (file == nullptr) file = std::make_shared<File>();
    return file->bytes;
  }

  // Which unsynced data survive a death of the machine is random.
  enum class Lost { kNothing, kBytes, kBytesAreZeros };
  void MachineDies(bool names_lost, Lost lost) {
    if (names_lost) names = names_before_rename;
    for (auto& [name, file] : names) {
      const size_t size = file->bytes.size();
      if (lost != Lost::kNothing) file->bytes = file->synced;
      if (lost == Lost::kBytesAreZeros) {
        file->bytes.resize(std::max(size, file->bytes.size()));
      }
      file->synced = file->bytes;
    }
    names_before_rename = names;
    locked_by = nullptr;
  }
};

class MemoryJournalFiles : public JournalFiles {
 public:
  explicit MemoryJournalFiles(MemoryDisk* disk) : disk_(disk) {
    disk_->calls = 0;
    disk_->died = false;
  }
  ~MemoryJournalFiles() override {
    if (disk_->locked_by == this) disk_->locked_by = nullptr;
  }

  const std::string& directory() const override { return directory_; }

  int Lock() override {
    if (const int error = Begin("lock")) return error;
    if (disk_->locked_by != nullptr) return -EWOULDBLOCK;
    disk_->locked_by = this;
    return 0;
  }

  uint32_t Random() override { return disk_->random += 0x9e3779b9; }

  int Open(const char* name, bool create) override {
    if (const int error = Begin(std::string("open ") + name)) return error;
    const auto found = disk_->names.find(name);
    if (create == (found != disk_->names.end())) {
      return create ? -EEXIST : -ENOENT;
    }
    std::shared_ptr<MemoryDisk::File> file =
        create ? std::make_shared<MemoryDisk::File>() : found->second;
    if (create) disk_->names[name] = file;
    open_.push_back(file);
    return static_cast<int>(open_.size() - 1);
  }

  void Close(int file) override { open_.at(file) = nullptr; }

  int64_t Size(int file) override {
    if (const int error = Begin("size", file)) return error;
    return static_cast<int64_t>(open_[file]->bytes.size());
  }

  int64_t Read(int file, uint64_t offset, char* data, size_t bytes) override {
    if (const int error = Begin("read", file)) return error;
    const std::string& from = open_[file]->bytes;
    if (offset >= from.size()) return 0;
    const size_t done = std::min<size_t>(bytes, from.size() - offset);
    std::memcpy(data, from.data() + offset, done);
    return static_cast<int64_t>(done);
  }

  int64_t Write(int file, uint64_t offset, std::string_view data) override {
    const int error = Begin("write", file);
    if (dies_now_) {
      uint64_t end = offset + data.size() * disk_->torn_quarters / 4;
      if (disk_->torn_at_page && end < offset + data.size()) {
        end = std::max(offset, end / 4096 * 4096);
      }
      data = data.substr(0, end - offset);
    }
    if (error != 0 && !dies_now_) return error;
    data = data.substr(0, disk_->write_bytes_max);
    std::string& to = open_[file]->bytes;
    size_t others = 0;
    for (const auto& [name, one] : disk_->names) {
      if (one != open_[file]) others += one->bytes.size();
    }
    // As on a real disk, the part that fits is written before the error.
    const size_t room = disk_->bytes_max - std::min(disk_->bytes_max, others);
    data = data.substr(0, room - std::min<size_t>(room, offset));
    if (to.size() < offset + data.size()) to.resize(offset + data.size());
    std::memcpy(to.data() + offset, data.data(), data.size());
    if (dies_now_) return error;
    return data.empty() ? -ENOSPC : static_cast<int64_t>(data.size());
  }

  int Truncate(int file, uint64_t bytes) override {
    if (const int error = Begin("truncate", file)) return error;
    open_[file]->bytes.resize(bytes);
    return 0;
  }

  int Sync(int file) override {
    if (const int error = Begin("sync", file)) return error;
    open_[file]->synced = open_[file]->bytes;
    return 0;
  }

  int Rename(const char* from, const char* to) override {
    if (const int error = Begin("rename")) return error;
    const auto found = disk_->names.find(from);
    if (found == disk_->names.end()) return -ENOENT;
    disk_->names_before_rename = disk_->names;
    disk_->names[to] = found->second;
    disk_->names.erase(from);
    return 0;
  }

  int Remove(const char* name) override {
    if (const int error = Begin(std::string("remove ") + name)) return error;
    return disk_->names.erase(name) == 1 ? 0 : -ENOENT;
  }

 private:
  int Begin(const std::string& call) {
    dies_now_ = !disk_->died && disk_->calls++ == disk_->die_at_call;
    disk_->died = disk_->died || dies_now_;
    if (disk_->died) return -EIO;
    return disk_->fail == nullptr ? 0 : -disk_->fail(call);
  }
  int Begin(const std::string& call, int file) {
    for (const auto& [name, one] : disk_->names) {
      if (one == open_.at(file)) return Begin(call + " " + name);
    }
    return Begin(call + " a replaced file");
  }

  const std::string directory_ = "/memory";
  MemoryDisk* const disk_;
  std::vector<std::shared_ptr<MemoryDisk::File>> open_;  // by handle
  bool dies_now_ = false;
};

}  // namespace penstock
#endif  // TESTS_SUPPORT_MEMORY_JOURNAL_FILES_H_
