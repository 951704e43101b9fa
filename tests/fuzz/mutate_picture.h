// Damages picture files of every format as an attacker, a bad disk or a broken
// upload would.
#ifndef TESTS_FUZZ_MUTATE_PICTURE_H_
#define TESTS_FUZZ_MUTATE_PICTURE_H_

#include <cstddef>
#include <random>
#include <span>
#include <vector>

namespace penstock {

// Damages file in one or more places: a JPEG by its segments (mutate_jpeg.h), a
// file of another format byte by byte. Pieces of other may be inserted. The
// same arguments give the same bytes on every machine.
void MutatePicture(std::vector<std::byte>* file,
                   std::span<const std::byte> other, std::mt19937_64& random);

// Corrects the checksums of a PNG's chunks, so that damage gets past them. Does
// nothing to other files.
void CorrectChecksums(std::span<std::byte> file);

}  // namespace penstock
#endif  // TESTS_FUZZ_MUTATE_PICTURE_H_
