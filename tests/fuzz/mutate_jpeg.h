// Damaged JPEG files, made from sound ones: as an attacker, a bad disk or a
// broken upload would, with most of the damage where a decoder keeps state
// (tables, frame and scan headers, restart intervals).
#ifndef TESTS_FUZZ_MUTATE_JPEG_H_
#define TESTS_FUZZ_MUTATE_JPEG_H_

#include <cstddef>
#include <random>
#include <span>
#include <vector>

namespace penstock {

// Damages file in one place, at times in several. other is a file whose
// segments and data may be put into this one. The same arguments give the same
// bytes everywhere.
void MutateJpeg(std::vector<std::byte>* file, std::span<const std::byte> other,
                std::mt19937_64& random);

}  // namespace penstock
#endif  // TESTS_FUZZ_MUTATE_JPEG_H_
