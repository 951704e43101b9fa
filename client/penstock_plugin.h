/* What a shared library exports to be a step of a dataset's `map`:
 *
 *   map:
 *   - plugin:
 *       library: rotate.so             # a file in the broker's plugin_dir
 *       function: rotate
 *       features: {image: {dtype: uint8, shape: [224, 224, 3]}}
 *
 *   PENSTOCK_PLUGIN_EXPORTS_ABI
 *   PENSTOCK_PLUGIN_FUNCTION(rotate) { ... row, error, error_bytes ... }
 *
 * The function is called once for each row, by any thread of the broker and by
 * several at once. It is code of the broker: it must return, it must not write
 * outside of its outputs, and what crashes it crashes the service (a sample it
 * crashes on is then left alone, see README). What it makes must depend on the
 * row alone: a row that is delivered again is made again.
 *
 * Plain C; a library built against this header needs nothing of Penstock.
 */
#ifndef PENSTOCK_PLUGIN_H_
#define PENSTOCK_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PENSTOCK_PLUGIN_ABI 1

/* One feature of one row. */
struct penstock_plugin_tensor {
  const char* name;
  uint32_t dtype;       /* 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64,
                           6 float16, 7 bfloat16, 8 float32, 9 float64,
                           10 bool: one byte, 0 or 1 */
  uint32_t rank;        /* dimensions of shape */
  const int64_t* shape; /* C order; of a file's bytes: [bytes] */
  void* data;           /* aligned to 64; inputs may be overwritten */
  uint64_t bytes;
};

struct penstock_plugin_row {
  uint64_t struct_bytes; /* of this struct: more members may follow later */
  /* Random numbers are to be made of these, and differ with each. */
  uint64_t seed;
  uint64_t epoch;
  uint64_t sample;
  uint64_t step; /* the function's place in `map`, from 0 */
  uint32_t input_count;
  uint32_t output_count;
  const struct penstock_plugin_tensor* inputs;  /* in the source's order */
  const struct penstock_plugin_tensor* outputs; /* as `features` has them; data
                                                   is zeros to begin with */
};

/* 0: done. Else the sample is an error, with what was written to error: at most
 * error_bytes with the NUL at its end. */
typedef int (*penstock_plugin_function)(const struct penstock_plugin_row* row,
                                        char* error, size_t error_bytes);

#define PENSTOCK_PLUGIN_EXPORT __attribute__((visibility("default")))

/* Once in each library: what it was built against. */
extern PENSTOCK_PLUGIN_EXPORT const uint32_t penstock_plugin_abi;
#define PENSTOCK_PLUGIN_EXPORTS_ABI \
  const uint32_t penstock_plugin_abi = PENSTOCK_PLUGIN_ABI;

/* The head of the function that a spec names so; nothing else in a library can
 * be named. In C++ it has C linkage. */
#ifdef __cplusplus
#define PENSTOCK_PLUGIN_LINKAGE extern "C"
#else
#define PENSTOCK_PLUGIN_LINKAGE
#endif
#define PENSTOCK_PLUGIN_FUNCTION(name)                                       \
  PENSTOCK_PLUGIN_LINKAGE PENSTOCK_PLUGIN_EXPORT int                         \
      penstock_plugin_function_##name(const struct penstock_plugin_row* row, \
                                      char* error, size_t error_bytes);      \
  int penstock_plugin_function_##name(const struct penstock_plugin_row* row, \
                                      char* error, size_t error_bytes)

#ifdef __cplusplus
}
#endif
#endif /* PENSTOCK_PLUGIN_H_ */
