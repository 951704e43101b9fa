// Zip archives, also ones that no program would write.
#ifndef TESTS_UNIT_ZIP_FILE_H_
#define TESTS_UNIT_ZIP_FILE_H_

#include <cstdint>
#include <string>
#include <type_traits>

namespace penstock {

struct ZipFileOptions {
  uint16_t method = 0;
  uint16_t flags = 0;
  bool zip64 = false;  // its sizes and place are in the extra field
};

class ZipFile {
 public:
  using Options = ZipFileOptions;

  void Add(const std::string& name, const std::string& data,
           const Options& options = Options()) {
    const uint64_t at = files_.size();
    const auto bytes = static_cast<uint32_t>(data.size());
    std::string local;
    Put(0x04034b50, &local);
    Put(uint16_t{20}, &local);
    Put(options.flags, &local);
    Put(options.method, &local);
    Put(uint64_t{0}, &local);  // time, date, CRC
    Put(bytes, &local);
    Put(bytes, &local);
    Put(static_cast<uint16_t>(name.size()), &local);
    Put(uint16_t{4}, &local);
    files_ += local + name + std::string("\xff\xff\0\0", 4) + data;

    std::string extra;
    if (options.zip64) {
      extra = std::string("\xff\xff\1\0x", 5);  // another one before it
      Put(uint16_t{1}, &extra);
      Put(uint16_t{24}, &extra);
      Put(uint64_t{bytes}, &extra);
      Put(uint64_t{bytes}, &extra);
      Put(at, &extra);
    }
    std::string& entry = directory_;
    Put(0x02014b50, &entry);
    Put(uint16_t{20}, &entry);
    Put(uint16_t{20}, &entry);
    Put(options.flags, &entry);
    Put(options.method, &entry);
    Put(uint64_t{0}, &entry);
    Put(options.zip64 ? UINT32_MAX : bytes, &entry);
    Put(options.zip64 ? UINT32_MAX : bytes, &entry);
    Put(static_cast<uint16_t>(name.size()), &entry);
    Put(static_cast<uint16_t>(extra.size()), &entry);
    Put(uint16_t{0}, &entry);  // comment
    Put(uint64_t{0}, &entry);  // disk, attributes
    Put(options.zip64 ? UINT32_MAX : static_cast<uint32_t>(at), &entry);
    entry += name + extra;
    ++members_;
  }

  size_t directory_at() const { return files_.size(); }

  std::string Bytes(bool zip64 = false, const std::string& comment = "") const {
    std::string bytes = files_ + directory_;
    if (zip64) {
      const uint64_t end_at = bytes.size();
      Put(0x06064b50, &bytes);
      Put(uint64_t{44}, &bytes);
      Put(uint32_t{45}, &bytes);  // versions
      Put(uint64_t{0}, &bytes);   // disks
      Put(uint64_t{members_}, &bytes);
      Put(uint64_t{members_}, &bytes);
      Put(uint64_t{directory_.size()}, &bytes);
      Put(uint64_t{files_.size()}, &bytes);
      Put(0x07064b50, &bytes);
      Put(uint32_t{0}, &bytes);
      Put(end_at, &bytes);
      Put(uint32_t{1}, &bytes);
    }
    Put(0x06054b50, &bytes);
    Put(uint32_t{0}, &bytes);  // disks
    Put(zip64 ? uint16_t{UINT16_MAX} : members_, &bytes);
    Put(zip64 ? uint16_t{UINT16_MAX} : members_, &bytes);
    Put(zip64 ? UINT32_MAX : static_cast<uint32_t>(directory_.size()), &bytes);
    Put(zip64 ? UINT32_MAX : static_cast<uint32_t>(files_.size()), &bytes);
    Put(static_cast<uint16_t>(comment.size()), &bytes);
    return bytes + comment;
  }

 private:
  template <typename T>
  static void Put(T value, std::string* out) {
    out->append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static void Put(int value, std::string* out) {
    Put(static_cast<uint32_t>(value), out);
  }

  std::string files_;
  std::string directory_;
  uint16_t members_ = 0;
};

}  // namespace penstock
#endif  // TESTS_UNIT_ZIP_FILE_H_
