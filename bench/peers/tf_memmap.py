"""tf.data over arrays: from_tensor_slices of shuffled indices, gathered by batch.

Settings: AUTOTUNE, or a private pool of 1 thread.
"""

import sys

import common
import data
import tf_data
from tf_data import load_libraries, settings

TITLE = "tf.data"
VENV = "tensorflow"
DISTRIBUTIONS = ["tensorflow-cpu"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "tf.gather of a batch's indices: no element by itself"


def batches(config):
    import numpy
    tf = load_libraries()
    files = config["files"]
    rank, of = common.share(config)
    if config["data"] == "rows":
        arrays = [tf.constant(numpy.load(f"{files}/{name}.npy"))
                  for name in ("x", "y")]
        count = arrays[0].shape[0]

        def take(rows):
            return tuple(tf.gather(array, rows) for array in arrays)
    else:
        length = data.Tokens.LENGTH
        tokens = numpy.fromfile(f"{files}/tokens.bin", dtype=numpy.uint16)
        count = (len(tokens) - 1) // length
        # uint16 is not gathered by every kernel: int32, as text pipelines do.
        table = tf.constant(tokens[:count * length + 1].astype(numpy.int32))

        def take(rows):
            at = rows[:, None] * length + tf.range(length + 1, dtype=tf.int64)
            row = tf.cast(tf.gather(table, at), tf.int64)
            return row[:, :-1], row[:, 1:]

    order = (tf.data.Dataset.range(count).shard(of, rank)
             .shuffle(count // of, seed=common.SEED).repeat()
             .batch(config["batch"], drop_remainder=True)
             # Before the map: only indices are passed over.
             .skip(common.passed(count, config) // config["batch"]))
    rows = order.map(take, num_parallel_calls=tf_data.calls(config))
    rows = rows.prefetch(tf.data.AUTOTUNE).with_options(tf_data.options(config))
    for first, second in rows:
        yield first.numpy(), second.numpy()


if __name__ == "__main__":
    common.main(sys.modules[__name__])
