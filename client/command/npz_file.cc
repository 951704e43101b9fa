#include "client/command/npz_file.h"

#include <zlib.h>

#include <cstdint>

namespace penstock {
namespace {

const char* DescrOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "|b1";
    case DType::kUint8:
      return "|u1";
    case DType::kInt8:
      return "|i1";
    case DType::kInt16:
      return "<i2";
    case DType::kInt32:
      return "<i4";
    case DType::kInt64:
      return "<i8";
    case DType::kFloat16:
      return "<f2";
    case DType::kBFloat16:
      return "|V2";
    case DType::kFloat32:
      return "<f4";
    case DType::kFloat64:
      return "<f8";
  }
  return "|V1";
}

template <typename T>
void Append(T number, std::string* to) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    to->push_back(static_cast<char>(number >> (8 * i) & 0xFF));
  }
}

// The fields that a member's header and its entry in the directory have in
// common.
std::string MemberFields(uint32_t crc, uint32_t bytes, size_t name_bytes) {
  std::string fields;
  Append(uint16_t{20}, &fields);          // version that is needed
  Append(uint16_t{1 << 11}, &fields);     // the name is UTF-8
  Append(uint16_t{0}, &fields);           // stored
  Append(uint16_t{0}, &fields);           // midnight
  Append(uint16_t{1 << 5 | 1}, &fields);  // of 1 January 1980
  Append(crc, &fields);
  Append(bytes, &fields);
  Append(bytes, &fields);
  Append(static_cast<uint16_t>(name_bytes), &fields);
  Append(uint16_t{0}, &fields);  // no extra field
  return fields;
}

}  // namespace

std::string NpyHeader(const Feature& feature) {
  constexpr size_t kFixedBytes = 10;  // magic, version, length of the rest
  constexpr size_t kAlign = 64;
  std::string shape;
  for (const int64_t side : feature.shape) shape += Format("{}, ", side);
  std::string rest =
      Format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
             DescrOf(feature.dtype), shape);
  const size_t bytes = kFixedBytes + rest.size() + 1;
  rest.append((kAlign - bytes % kAlign) % kAlign, ' ');
  rest += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  Append(static_cast<uint16_t>(rest.size()), &header);
  return header + rest;
}

StatusOr<std::string> NpzText(std::span<const NpzArray> arrays) {
  std::string text;
  std::string directory;
  for (const NpzArray& each : arrays) {
    const std::string name = each.feature.name + ".npy";
    const std::string header = NpyHeader(each.feature);
    const uint64_t end = uint64_t{text.size()} + directory.size() +
                         header.size() + each.bytes.size() + 1024;
    if (end > UINT32_MAX) {
      return ResourceExhaustedError(
          "the row has 4 GiB or more, which a .npz of this kind cannot hold");
    }
    const auto bytes = static_cast<uint32_t>(header.size() + each.bytes.size());
    uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(header.data()),
                        header.size());
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(each.bytes.data()),
                  each.bytes.size());
    const std::string fields =
        MemberFields(static_cast<uint32_t>(crc), bytes, name.size());
    directory.append("PK\x01\x02", 4);
    Append(uint16_t{20}, &directory);  // version that wrote it
    directory += fields;
    Append(uint16_t{0}, &directory);  // no comment
    Append(uint16_t{0}, &directory);  // disk
    Append(uint16_t{0}, &directory);  // not of text
    Append(uint32_t{0}, &directory);  // attributes
    Append(static_cast<uint32_t>(text.size()), &directory);
    directory += name;
    text.append("PK\x03\x04", 4);
    text += fields + name + header;
    text += each.bytes;
  }
  const auto begin = static_cast<uint32_t>(text.size());
  text += directory;
  text.append("PK\x05\x06", 4);
  Append(uint32_t{0}, &text);  // disks
  Append(static_cast<uint16_t>(arrays.size()), &text);
  Append(static_cast<uint16_t>(arrays.size()), &text);
  Append(static_cast<uint32_t>(directory.size()), &text);
  Append(begin, &text);
  Append(uint16_t{0}, &text);  // no comment
  return text;
}

}  // namespace penstock
