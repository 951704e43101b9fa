"""NVIDIA DALI on the CPU alone: its own reader, a decoder that decodes only
the crop (image_random_crop), resize, and normalisation to float16 CHW.

Settings: 1 or 2 threads.
"""

import sys

import common

TITLE = "DALI, CPU"
VENV = "dali"
DISTRIBUTIONS = ["nvidia-dali-cuda120"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "all operators on the CPU"


def settings(consumers):
    return [{"threads": 1}, {"threads": 2}]


def load_libraries():
    import nvidia.dali
    return nvidia.dali


def batches(config):
    dali = load_libraries()
    from nvidia.dali import fn, types
    from nvidia.dali.auto_aug import rand_augment
    rank, of = common.share(config)
    files = common.photographs(config["photographs"])

    @dali.pipeline_def(batch_size=config["batch"],
                       num_threads=config["settings"]["threads"],
                       enable_conditionals=config["data"] == "randaugment",
                       device_id=None, seed=common.SEED + config["rank"])
    def pipeline():
        data, labels = fn.readers.file(
            files=[path for path, _ in files],
            labels=[label for _, label in files], shard_id=rank, num_shards=of,
            random_shuffle=True, initial_fill=256, name="reader")
        images = fn.decoders.image_random_crop(
            data, device="cpu", output_type=types.RGB,
            random_area=list(common.SCALE),
            random_aspect_ratio=list(common.RATIO))
        images = fn.resize(images, size=[common.SIZE, common.SIZE],
                           interp_type=types.INTERP_LINEAR)
        if config["data"] == "randaugment":
            images = rand_augment.rand_augment(
                images, n=2, m=9, shape=[common.SIZE, common.SIZE])
        mirror = fn.random.coin_flip(probability=0.5)
        # Its arithmetic takes no float16.
        wide = config["data"] == "mixup"
        if config["dtype"] == "float16":
            images = fn.crop_mirror_normalize(
                images, mirror=mirror, output_layout="CHW",
                dtype=types.FLOAT if wide else types.FLOAT16,
                mean=[255 * m for m in common.MEAN],
                std=[255 * s for s in common.STD])
        else:
            images = fn.flip(images, horizontal=mirror)
        if config["data"] == "mixup":
            # Each with the one opposite in the batch, as timm mixes.
            other = list(range(config["batch"]))[::-1]
            kept = fn.random.beta(alpha=0.2, beta=0.2)
            labels = fn.one_hot(labels, num_classes=1000, dtype=types.FLOAT)

            def mixed(rows):
                return kept * rows + (1 - kept) * fn.permute_batch(
                    rows, indices=other)
            images = fn.cast(mixed(images), dtype=types.FLOAT16)
            labels = mixed(labels)
        return images, labels

    made = pipeline()
    made.build()
    while True:
        images, labels = made.run()
        yield images.as_tensor(), labels.as_tensor()


if __name__ == "__main__":
    common.main(sys.modules[__name__])
