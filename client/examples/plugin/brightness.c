/* A step of `map` in C: makes each picture brighter or darker, by a factor from
 * 0.8 to 1.2 that depends on the dataset's seed, the epoch and the sample. See
 * README.md. */
#include <stdio.h>
#include <string.h>

#include "penstock_plugin.h"

PENSTOCK_PLUGIN_EXPORTS_ABI

/* SplitMix64 (Steele, Lea, Flood, 2014); any good mixing function works. */
static uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

static double Uniform(const struct penstock_plugin_row* row) {
  const uint64_t bits =
      Mix(Mix(Mix(Mix(row->seed) ^ row->epoch) ^ row->sample) ^ row->step);
  return (double)(bits >> 11) * 0x1p-53;
}

PENSTOCK_PLUGIN_FUNCTION(brightness) {
  const double factor = 0.8 + 0.4 * Uniform(row);
  for (uint32_t i = 0; i < row->output_count; ++i) {
    const struct penstock_plugin_tensor* const in = &row->inputs[i];
    const struct penstock_plugin_tensor* const out = &row->outputs[i];
    if (i >= row->input_count || in->bytes != out->bytes) {
      snprintf(error, error_bytes, "'%s' has another size than it came with",
               out->name);
      return 1;
    }
    if (strcmp(out->name, "image") != 0 || out->dtype != 1 /* uint8 */) {
      memcpy(out->data, in->data, in->bytes);
      continue;
    }
    const uint8_t* const from = in->data;
    uint8_t* const to = out->data;
    for (uint64_t k = 0; k < in->bytes; ++k) {
      const double value = from[k] * factor + 0.5;
      to[k] = (uint8_t)(value > 255 ? 255 : value);
    }
  }
  return 0;
}
