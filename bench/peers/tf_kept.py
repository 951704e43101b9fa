"""tf.data of photographs that are decoded once: .cache() in memory, .cache(FILE),
or Dataset.save and load; then shuffled, flipped and normalized.

Equal: what is kept are uint8 pixels of 224 x 224, and every epoch has an order of
its own over all rows. Not equal: tf.data's shuffle holds all rows in memory,
whatever has kept them, while Penstock reads them in the order of the epoch. A cache
is of one consumer, in `divided` of its share; Penstock's is of all. The saved
dataset is of all consumers too, and is made before the runs.

Settings: as of tf_data.py, each with flip and normalize row by row, or by batches
and compiled by XLA.
"""

import pathlib
import shutil
import sys

import common
import tf_data
from tf_data import DISTRIBUTIONS, VENV, WORKLOADS, load_libraries

TITLE = "tf.data"
SHARES = False
NOTE = "keeps uint8 pixels; shuffle has all rows in memory"
FORMAT = "tf-saved"
SHARDS = 8  # of a saved dataset, for up to so many consumers


def settings(consumers):
    return [{**threads, "xla": xla} for threads in tf_data.settings(consumers)
            for xla in (False, True)]


def decoded(files, calls, seed=None):
    """(uint8 pixels, label) of the largest centred square of each photograph; with a
    seed shuffled, epoch after epoch."""
    tf = load_libraries()

    def decode(path, label):
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        height, width = tf.shape(image)[0], tf.shape(image)[1]
        side = tf.minimum(height, width)
        image = tf.image.resize(tf.image.crop_to_bounding_box(
            image, (height - side) // 2, (width - side) // 2, side, side),
            [common.SIZE, common.SIZE])
        return tf.cast(tf.round(image), tf.uint8), label

    paths = tf.data.Dataset.from_tensor_slices(tuple(map(list, zip(*files))))
    if seed is not None:
        paths = paths.shuffle(len(files), seed=seed).repeat()
    return paths.map(decode, num_parallel_calls=calls)


def prepare(photographs, folder):
    data = decoded(common.photographs(photographs), 2)
    data.enumerate().save(folder, shard_func=lambda number, _: number % SHARDS)


def kept(config):
    """The rows of this consumer, once."""
    tf = load_libraries()
    rank, of = common.share(config)
    if config["data"] == "snapshot":
        data = tf.data.Dataset.load(
            str(pathlib.Path(config["formats"], FORMAT)),
            reader_func=lambda shards: shards.shard(of, rank).interleave(
                lambda rows: rows, num_parallel_calls=tf_data.calls(config)))
        return data.map(lambda _, row: row)
    data = decoded(common.photographs(config["photographs"])[rank::of],
                   tf_data.calls(config))
    if config["data"] == "cached":
        return data.cache()
    folder = pathlib.Path(config["folder"], f"tf-cache-{config['rank']}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return data.cache(str(folder / "rows"))


def endless(config):
    """The rows, shuffled, epoch after epoch; half-kept: rows that are kept and others, as
    many of each as there are, in turns that are drawn."""
    tf = load_libraries()
    files = common.photographs(config["photographs"])
    if config["data"] != "half-kept":
        return kept(config).shuffle(len(files), seed=common.SEED).repeat()
    rows = config["kept"]
    seed = common.SEED + config["rank"]
    calls = tf_data.calls(config)
    parts = [decoded(files[:rows], calls).cache().shuffle(rows, seed=seed).repeat(),
             decoded(files[rows:], calls, seed)]
    weights = [rows / len(files), 1 - rows / len(files)]
    return tf.data.Dataset.sample_from_datasets(parts, weights, seed=seed)


def made(config):
    """The dataset of batches."""
    tf = load_libraries()
    xla = config["settings"]["xla"]
    mean = tf.constant([255 * m for m in common.MEAN], shape=[3, 1, 1])
    scale = tf.constant([1 / (255 * s) for s in common.STD], shape=[3, 1, 1])

    @tf.function(jit_compile=xla)
    def augment(images):
        images = tf.image.random_flip_left_right(images)
        if config["dtype"] == "float16":
            # On bytes: three times faster than on what they become.
            images = tf.experimental.numpy.moveaxis(images, -1, -3)
            images = tf.cast((tf.cast(images, tf.float32) - mean) * scale,
                             tf.float16)
        return images

    def batched(data):
        return data.batch(config["batch"], drop_remainder=True)

    def augmented(data):
        return data.map(lambda images, labels: (augment(images), labels),
                        num_parallel_calls=tf_data.calls(config))

    data = endless(config)
    data = augmented(batched(data)) if xla else batched(augmented(data))
    return data.prefetch(tf.data.AUTOTUNE).with_options(tf_data.options(config))


def batches(config):
    for images, labels in made(config):
        yield images.numpy(), labels.numpy()


if __name__ == "__main__":
    common.main(sys.modules[__name__])
