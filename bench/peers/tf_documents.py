"""tf.data over documents: TFRecord files, bucket_by_sequence_length with as many
buckets of equally many documents as Penstock has.

Settings: AUTOTUNE, or a private pool of 1 or 2 threads with as many calls.
"""

import sys

import common
import tf_data
from data import Documents
from tf_data import load_libraries, settings

TITLE = "tf.data"
VENV = "tensorflow"
DISTRIBUTIONS = ["tensorflow-cpu"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "bucket_by_sequence_length behind a shuffle buffer of 3,200 documents"
FORMAT = "documents-tfrecord"
SHARDS, BUCKETS, BUFFER = 32, 16, 3200


def prepare(files, folder):
    import numpy
    tf = load_libraries()
    train = tf.train
    ends, tokens = Documents.open(files)
    documents = numpy.split(tokens, ends[:-1])
    for shard in range(SHARDS):
        with tf.io.TFRecordWriter(f"{folder}/{shard:05}.tfrecord") as out:
            for document in documents[shard::SHARDS]:
                out.write(train.Example(features=train.Features(feature={
                    "tokens": train.Feature(int64_list=train.Int64List(value=document)),
                })).SerializeToString())


def batches(config):
    import numpy
    tf = load_libraries()
    rank, of = common.share(config)
    ends, _ = Documents.open(config["files"])
    quantiles = numpy.arange(1, BUCKETS) / BUCKETS
    boundaries = numpy.unique(numpy.quantile(numpy.diff(ends, prepend=0), quantiles)
                              .astype(int) + 1).tolist()
    features = {"tokens": tf.io.RaggedFeature(tf.int64)}

    def parse(record):
        return tf.cast(tf.io.parse_single_example(record, features)["tokens"], tf.int32)

    calls = tf_data.calls(config)
    data = tf.data.Dataset.list_files(f"{config['formats']}/{FORMAT}/*.tfrecord",
                                      shuffle=True, seed=common.SEED)
    data = data.shard(of, rank).repeat().interleave(
        tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=calls,
        deterministic=False)
    data = data.shuffle(BUFFER, seed=common.SEED).map(parse, num_parallel_calls=calls)
    data = data.map(lambda row: (row, tf.shape(row)[0]))
    data = data.bucket_by_sequence_length(
        lambda row, length: length, boundaries,
        [config["batch"]] * (len(boundaries) + 1), drop_remainder=True)
    data = data.prefetch(tf.data.AUTOTUNE).with_options(tf_data.options(config))
    for rows, lengths in data:
        yield rows.numpy(), lengths.numpy()


if __name__ == "__main__":
    common.main(sys.modules[__name__])
