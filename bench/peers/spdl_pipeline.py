"""SPDL: a pipeline of threads in the consumer. Its own decoder is FFmpeg,
which crops, flips and scales too, with the interpreter's lock released; its
pipeline runs any function, so that Pillow (common.PillowTransform) is tried as
well.

Settings: decoder, and 1, 2 or 3 images decoded at a time.
"""

import itertools
import random
import sys

import common

TITLE = "SPDL"
VENV = "torch"
DISTRIBUTIONS = ["spdl-core", "spdl-io", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "its FFmpeg or Pillow decodes, a NumPy table normalises"


def settings(consumers):
    return [{"decoder": decoder, "concurrency": n}
            for decoder, n in itertools.product(
                ("ffmpeg", "pillow"), (1, 2, 3) if consumers <= 2 else (1, 2))]


def load_libraries():
    import numpy
    import spdl.io
    import spdl.pipeline
    spdl.io.demux_config()  # or a missing FFmpeg would show as no batch, ever
    return numpy, spdl.io, spdl.pipeline


def decode(file):
    """One photograph to frames of 224 x 224, still in FFmpeg's memory."""
    import spdl.io
    path, label = file
    packets = spdl.io.demux_image(path)
    left, top, width, height = common.random_resized_crop(
        packets.codec.width, packets.codec.height)
    steps = [f"crop={width}:{height}:{left}:{top}:exact=1",
             f"scale={common.SIZE}:{common.SIZE}:flags=bilinear"]
    if random.random() < 0.5:
        steps.append("hflip")
    steps.append("format=pix_fmts=rgb24")
    return spdl.io.decode_packets(packets, filter_desc=",".join(steps)), label


def batches(config):
    numpy, io, pipeline = load_libraries()
    transform = common.PillowTransform(config["dtype"])
    files = common.photographs(config["photographs"])

    def source():
        for index in common.endless_order(len(files), config):
            yield files[index]

    def collate(rows):
        images, labels = zip(*rows)
        if pillow:
            images = numpy.stack(images)
        else:
            images = io.to_numpy(io.convert_frames(list(images)))
            if config["dtype"] == "float16":
                images = transform.normalize(images)
        return images, numpy.array(labels)

    def decode_with_pillow(file):
        return transform(file[0]), file[1]

    pillow = config["settings"]["decoder"] == "pillow"
    concurrency = config["settings"]["concurrency"]
    made = (pipeline.PipelineBuilder().add_source(source())
            .pipe(decode_with_pillow if pillow else decode,
                  concurrency=concurrency)
            .aggregate(config["batch"], drop_last=True)
            .pipe(collate).add_sink(2)
            .build(num_threads=concurrency + 1))
    with made.auto_stop():
        yield from made


if __name__ == "__main__":
    common.main(sys.modules[__name__])
