// Damages JPEG files as an attacker, a bad disk or a broken upload would. Most
// of the damage is where a decoder keeps state (tables, frame and scan headers,
// restart intervals).
#ifndef TESTS_FUZZ_MUTATE_JPEG_H_
#define TESTS_FUZZ_MUTATE_JPEG_H_

#include <cstddef>
#include <random>
#include <span>
#include <vector>

namespace penstock {

// Damages file in one or more places. Segments and data of other may be
// inserted. The same arguments give the same bytes on every machine.
void MutateJpeg(std::vector<std::byte>* file, std::span<const std::byte> other,
                std::mt19937_64& random);

}  // namespace penstock
#endif  // TESTS_FUZZ_MUTATE_JPEG_H_
