/* A trainer in C: prints how many rows it had, and the sum of their ids. */
#include <penstock.h>
#include <stdio.h>

int main(void) {
  penstock_options options = PENSTOCK_OPTIONS_INIT;
  penstock_reader* reader = NULL;
  unsigned long long rows = 0;
  unsigned long long sum = 0;
  int result = penstock_attach(&options, &reader);
  while (result >= 0 && result != PENSTOCK_END_OF_DATA) {
    penstock_batch* batch = NULL;
    result = penstock_next(reader, &batch);
    if (batch == NULL) continue;
    for (uint64_t i = 0; i < penstock_batch_valid_rows(batch); ++i) {
      sum += (unsigned long long)penstock_batch_ids(batch)[i];
      ++rows;
    }
    penstock_release(batch);
  }
  if (result < 0) {
    fprintf(stderr, "rank: %s\n", penstock_error());
    return 1;
  }
  penstock_detach(reader);
  printf("%llu %llu\n", rows, sum);
  return 0;
}
