"""FFCV: its own file with the JPEG bytes as they are, read through the page
cache; threads of compiled code decode, crop and resize (OpenCV's INTER_AREA),
a table normalises.

Shards are subsets of indices. Its code is compiled by every consumer at its
start, which takes long. Settings: 1 or 2 threads.
"""

import pathlib
import sys

import common

TITLE = "FFCV"
VENV = "ffcv"
DISTRIBUTIONS = ["ffcv", "torch", "numba", "opencv-python-headless"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "its memory includes the file's pages that it has mapped"
FORMAT = "ffcv"
REPEAT = 200  # passes over the photographs in what it takes for an epoch


def load_libraries():
    import torch
    torch.set_num_threads(1)
    common.import_torchvision()
    import ffcv
    return ffcv


def prepare(photographs, folder):
    load_libraries()
    import numpy
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.rgb_image import IMAGE_MODES
    from ffcv.writer import DatasetWriter
    from PIL import Image

    field = RGBImageField(write_mode="jpg")

    def encode(destination, path, malloc):
        """As the field's own, without decoding and encoding again."""
        with Image.open(path) as image:
            width, height = image.size
        data = numpy.frombuffer(pathlib.Path(path).read_bytes(), numpy.uint8)
        destination["mode"] = IMAGE_MODES["jpg"]
        destination["height"], destination["width"] = height, width
        destination["data_ptr"], storage = malloc(data.nbytes)
        storage[:] = data

    field.encode = encode
    DatasetWriter(str(pathlib.Path(folder, "photographs.beton")),
                  {"image": field, "label": IntField()},
                  num_workers=1).from_indexed_dataset(
                      common.photographs(photographs))


def settings(consumers):
    return [{"num_workers": n} for n in ((1, 2) if consumers <= 2 else (1,))]


def batches(config):
    load_libraries()
    import numpy
    from ffcv.fields.decoders import (IntDecoder,
                                      RandomResizedCropRGBImageDecoder)
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import (NormalizeImage, RandomHorizontalFlip,
                                 ToTensor, ToTorchImage)
    image = [RandomResizedCropRGBImageDecoder((common.SIZE, common.SIZE),
                                              common.SCALE, common.RATIO),
             RandomHorizontalFlip()]
    if config["dtype"] == "float16":
        image += [NormalizeImage(255 * numpy.array(common.MEAN),
                                 255 * numpy.array(common.STD), numpy.float16),
                  ToTensor(), ToTorchImage(channels_last=False)]
    else:
        image += [ToTensor()]
    rank, of = common.share(config)
    files = len(common.photographs(config["photographs"]))
    loader = Loader(
        str(pathlib.Path(config["formats"], FORMAT, "photographs.beton")),
        batch_size=config["batch"], os_cache=True, drop_last=True,
        num_workers=config["settings"]["num_workers"], seed=common.SEED,
        order=OrderOption.RANDOM,
        indices=numpy.tile(numpy.arange(rank, files, of), REPEAT),
        pipelines={"image": image, "label": [IntDecoder(), ToTensor()]})
    while True:
        for images, labels in loader:
            yield images, labels


if __name__ == "__main__":
    common.main(sys.modules[__name__])
