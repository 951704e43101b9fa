"""Ray Data feeds a stream: what its operators make on any node, the ranks of this host get
as batches.

    penstock run --ranks 2 -- sh -c '
      [ "$RANK" = 0 ] && python3 ray_data.py --rows 10000 & python3 ray_data.py --rank'

For what only Ray Data does. A spec of files keeps what this loses: an order by the seed (`local_shuffle_buffer_size`
is all there is), epochs and a position to resume at (a producer that dies has to know which of its rows were put:
`out.next_row`, with `preserve_order`), rows that makers make; and each row is copied into the stream. What was put
comes once. Needs ray[data].
"""

import argparse

import numpy as np
import penstock

SPEC = {"id": penstock.TensorSpec((), "int64"), "square": penstock.TensorSpec((), "float32")}


def produce(rows):
    import ray
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    made = ray.data.range(rows).map_batches(
        lambda batch: {"id": batch["id"], "square": np.square(batch["id"].astype(np.float32))})
    with penstock.producer("squares", SPEC, batch=256) as out:
        left = out.next_row  # rows that a producer before this one has put
        for batch in made.iter_batches(batch_size=256, batch_format="numpy"):
            rows = {name: values[left:] for name, values in batch.items()}
            left = max(left - len(batch["id"]), 0)
            if len(rows["id"]):
                out.put(rows)


def consume():
    dataset = penstock.Dataset.stream(SPEC).batch(64)
    with penstock.attach(dataset, job="squares") as reader:
        rows = sum(len(batch["id"]) for batch in reader)
        print(f"rank {reader.rank}: {rows} rows", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rank", action="store_true", help="take rows instead of making them")
    options = parser.parse_args()
    consume() if options.rank else produce(options.rows)


if __name__ == "__main__":
    main()
