"""PyTorch DataLoader, tuned: a loader of each consumer, which decodes every row: the largest
centred square of each photograph, its resize and its crop one call of Pillow.

Settings as of pytorch_dataloader.py.
"""

import sys

import common
import pytorch_dataloader
from pytorch_dataloader import load_libraries, settings  # noqa: F401

TITLE = "PyTorch DataLoader, tuned"
VENV = "torch"
DISTRIBUTIONS = ["torch", "pillow", "numpy"]
WORKLOADS = ["shared"]
SHARES = False
NOTE = "Pillow and a NumPy table; keeps nothing"


def decoded(path):
    import numpy
    from PIL import Image
    with Image.open(path) as image:
        side = min(image.size)
        left, top = ((size - side) / 2 for size in image.size)
        return numpy.asarray(image.convert("RGB").resize(
            (common.SIZE, common.SIZE), Image.Resampling.BILINEAR,
            box=(left, top, left + side, top + side)))


def dataset(config, pixels_of):
    """Map-style, of (image, label); pixels_of(path): uint8."""
    import random
    import numpy
    import torch
    transform = common.PillowTransform(config["dtype"])

    def tensor(path):
        pixels = pixels_of(path)
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(transform.normalize(pixels) if config["dtype"] == "float16" else
                                numpy.ascontiguousarray(pixels))

    return pytorch_dataloader.dataset(config, tensor)


def batches(config):
    data = dataset(config, decoded)
    yield from pytorch_dataloader.endless(data, config)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
