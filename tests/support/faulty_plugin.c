/* Functions for tests: one that works on a file's bytes, and ones that fail. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "client/penstock_plugin.h"

PENSTOCK_PLUGIN_EXPORTS_ABI

/* image (a file) -> size int64 [], first uint8 [4] */
PENSTOCK_PLUGIN_FUNCTION(read_file) {
  if (row->struct_bytes < sizeof(*row) || row->input_count != 1 ||
      row->output_count != 2 || row->inputs[0].rank != 1) {
    snprintf(error, error_bytes, "not what it was built for");
    return 2;
  }
  const int64_t bytes = row->inputs[0].shape[0];
  memcpy(row->outputs[0].data, &bytes, sizeof(bytes));
  memset(row->outputs[1].data, 0, row->outputs[1].bytes);
  memcpy(row->outputs[1].data, row->inputs[0].data,
         bytes < 4 ? (size_t)bytes : 4);
  return 0;
}

PENSTOCK_PLUGIN_FUNCTION(refuses) {
  (void)row;
  memset(error, 'x', error_bytes); /* without an end */
  return 7;
}

PENSTOCK_PLUGIN_FUNCTION(says_nothing) {
  (void)row, (void)error, (void)error_bytes;
  return -1;
}

/* What its input begins with, where that is not 0; else nothing at all. */
PENSTOCK_PLUGIN_FUNCTION(writes_at_times) {
  (void)error, (void)error_bytes;
  const char* const in = row->inputs[0].data;
  if (in[0] != 0) memcpy(row->outputs[0].data, in, row->outputs[0].bytes);
  return 0;
}

static int deeper(volatile int* depth) {
  volatile char frame[512];
  frame[0] = (char)++*depth;
  return *depth < 0 ? 0 : deeper(depth) + frame[0];
}

/* Sample 1 has no end. */
PENSTOCK_PLUGIN_FUNCTION(overflows_the_stack) {
  (void)error, (void)error_bytes;
  volatile int depth = row->sample == 1 ? 0 : -2;
  memset(row->outputs[0].data, deeper(&depth), row->outputs[0].bytes);
  return 0;
}

/* value int64 [] as it is; every seventh ends the process, as a decoder does
 * that is buggy. */
PENSTOCK_PLUGIN_FUNCTION(crashes_on_sevenths) {
  int64_t value;
  (void)error, (void)error_bytes;
  memcpy(&value, row->inputs[0].data, sizeof(value));
  if (value % 7 == 3) raise(SIGSEGV);
  memcpy(row->outputs[0].data, &value, sizeof(value));
  return 0;
}

/* Not to be named: it lacks the macro. */
PENSTOCK_PLUGIN_EXPORT int hidden(void);
int hidden(void) { return 0; }
