"""tf.data as the ImageNet input pipelines of TensorFlow have it: only the part
of the JPEG that the crop needs is decoded (decode_and_crop_jpeg), resized
without antialiasing.

Settings: AUTOTUNE, or a private pool of 1 or 2 threads with as many calls.
"""

import sys

import common
from data import DATA

TITLE = "tf.data"
VENV = "tensorflow"
DISTRIBUTIONS = ["tensorflow-cpu"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "decode_and_crop_jpeg; resizes without antialiasing"


def settings(consumers):
    threads = [{"threads": "AUTOTUNE"}, {"threads": 1}]
    return threads + ([{"threads": 2}] if consumers <= 2 else [])


def load_libraries():
    import os
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import tensorflow
    return tensorflow


def calls(config):
    threads = config["settings"]["threads"]
    return load_libraries().data.AUTOTUNE if threads == "AUTOTUNE" else threads


def photographs(config, rank, of):
    """Endless (path, label) of this shard, shuffled over all of it; of TFRecords
    (bytes, label), shuffled in a buffer, their files interleaved."""
    tf = load_libraries()
    if config["data"] == "tfrecord":
        features = {"image": tf.io.FixedLenFeature([], tf.string),
                    "label": tf.io.FixedLenFeature([], tf.int64)}

        def parse(record):
            row = tf.io.parse_single_example(record, features)
            return row["image"], row["label"]

        records = tf.data.Dataset.list_files(
            f"{config['files']}/*.tfrecord", shuffle=True, seed=common.SEED)
        records = records.shard(of, rank).repeat().interleave(
            tf.data.TFRecordDataset, cycle_length=4,
            num_parallel_calls=calls(config), deterministic=False)
        return records.shuffle(256, seed=common.SEED).map(parse)
    seed = common.SEED + rank
    weights, parts = zip(*DATA[config["data"]].parts(config, rank, of))
    made = [tf.data.Dataset.from_tensor_slices(tuple(map(list, zip(*files))))
            .shuffle(len(files), seed=seed).repeat() for files in parts]
    if len(made) == 1:
        return made[0]
    return tf.data.Dataset.sample_from_datasets(
        made, [weight / sum(weights) for weight in weights], seed=seed)


def transform(config):
    tf = load_libraries()
    mean = tf.constant([255 * m for m in common.MEAN], tf.float32)
    scale = tf.constant([1 / (255 * s) for s in common.STD], tf.float32)

    jpeg, records = config["data"] != "png", config["data"] == "tfrecord"

    def apply(path, label):
        data = path if records else tf.io.read_file(path)
        whole = None if jpeg else tf.io.decode_png(data, channels=3)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(data) if jpeg else tf.shape(whole),
            tf.zeros([1, 0, 4]), area_range=common.SCALE,
            aspect_ratio_range=common.RATIO, max_attempts=10,
            use_image_if_no_bounding_boxes=True)
        top, left, _ = tf.unstack(begin)
        height, width, _ = tf.unstack(size)
        image = (tf.image.decode_and_crop_jpeg(
            data, tf.stack([top, left, height, width]), channels=3) if jpeg else
            tf.slice(whole, [top, left, 0], [height, width, 3]))
        image = tf.image.random_flip_left_right(image)
        image = tf.image.resize(image, [common.SIZE, common.SIZE])
        if config["dtype"] == "float16":
            image = tf.cast((image - mean) * scale, tf.float16)
            image = tf.transpose(image, [2, 0, 1])
            image = tf.ensure_shape(image, [3, common.SIZE, common.SIZE])
        else:
            image = tf.cast(tf.round(image), tf.uint8)
        return image, label
    return apply


def options(config):
    tf = load_libraries()
    made = tf.data.Options()
    made.deterministic = False
    if config["settings"]["threads"] != "AUTOTUNE":
        made.threading.private_threadpool_size = config["settings"]["threads"]
        made.threading.max_intra_op_parallelism = 1
    return made


def batches(config):
    tf = load_libraries()
    data = photographs(config, *common.share(config))
    data = data.map(transform(config), num_parallel_calls=calls(config))
    data = data.batch(config["batch"], drop_remainder=True)
    data = data.prefetch(tf.data.AUTOTUNE).with_options(options(config))
    for images, labels in data:
        yield images.numpy(), labels.numpy()


if __name__ == "__main__":
    common.main(sys.modules[__name__])
