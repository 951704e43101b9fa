/* A shared library exports this to be a step of a dataset's `map`:
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
 * The broker calls the function once for each row, on any of its threads and on
 * several at once. The function must return, and must not write outside of its
 * inputs and outputs. A crash in it crashes the service (a sample that crashes
 * it is then quarantined, see README). Its outputs must depend on the row
 * alone, because a row that is redelivered is made again.
 *
 * Plain C; a library built against this header links nothing of Penstock.
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
  uint32_t rank;        /* number of dimensions */
  const int64_t* shape; /* row-major; [bytes] for an encoded file */
  void* data;           /* 64-byte aligned; inputs may be overwritten */
  uint64_t bytes;       /* of data */
};

/* One call: valid until the function returns. */
struct penstock_plugin_row {
  uint64_t struct_bytes; /* of this struct: later ABIs may append members */
  /* Derive random numbers from these four alone. */
  uint64_t seed;
  uint64_t epoch;
  uint64_t sample;
  uint64_t step; /* the function's index in `map`, from 0 */
  uint32_t input_count;
  uint32_t output_count;
  const struct penstock_plugin_tensor* inputs;  /* in the source's order */
  const struct penstock_plugin_tensor* outputs; /* in the order of `features`;
                                                   data is zeroed */
};

/* Returns 0 on success. Any other result makes the sample an error with the
 * text written to error: at most error_bytes, the terminating NUL included. */
typedef int (*penstock_plugin_function)(const struct penstock_plugin_row* row,
                                        char* error, size_t error_bytes);

#define PENSTOCK_PLUGIN_EXPORT __attribute__((visibility("default")))

/* Once in each library: the ABI version it was built against. */
extern PENSTOCK_PLUGIN_EXPORT const uint32_t penstock_plugin_abi;
#define PENSTOCK_PLUGIN_EXPORTS_ABI \
  const uint32_t penstock_plugin_abi = PENSTOCK_PLUGIN_ABI;

/* Begins the definition of the function that a spec calls `name`, with C
 * linkage. A spec can name no other function of a library. */
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
