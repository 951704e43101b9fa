#include "broker/index/fingerprint.h"

#include <xxhash.h>

#include <new>

#include "broker/index/data_files.h"
#include "common/format.h"

namespace penstock {

Fingerprint::Fingerprint(std::string_view kind) : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_);
  Add(kind);
}

Fingerprint::~Fingerprint() { XXH3_freeState(state_); }

void Fingerprint::Add(std::string_view text) {
  Add(std::as_bytes(std::span(text)));
}

void Fingerprint::Add(uint64_t number) {
  XXH3_128bits_update(state_, &number, sizeof(number));
}

void Fingerprint::Add(std::span<const std::byte> bytes) {
  Add(uint64_t{bytes.size()});  // "ab", "c" is not "a", "bc"
  XXH3_128bits_update(state_, bytes.data(), bytes.size());
}

void Fingerprint::Add(const DataFiles& files) {
  Add(uint64_t{files.size()});
  files.List([this](std::string_view name, uint64_t bytes) {
    Add(name);
    Add(bytes);
  });
}

Fingerprint::Digest Fingerprint::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_);
  return {hash.high64, hash.low64};
}

std::string Fingerprint::Hex() const {
  const Digest hash = digest();
  return Format("{:016x}{:016x}", hash[0], hash[1]);
}

}  // namespace penstock
