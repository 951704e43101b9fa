"""Pictures of every format that penstockd reads, with Pillow's pixels as .npy beside
them; and refused.tif, of a compression that it does not read.

    make_pictures.py FOLDER
"""

import pathlib
import sys

import numpy as np
from PIL import Image

SIZE = (64, 48)
KINDS = {"baseline.jpg": {"quality": 90}, "progressive.jpg": {"progressive": True},
         "plain.png": {}, "lossy.webp": {}, "lossless.webp": {"lossless": True},
         "plain.tif": {}, "lzw.tif": {"compression": "tiff_lzw"},
         "deflate.tif": {"compression": "tiff_adobe_deflate"},
         "packbits.tif": {"compression": "packbits"},
         "jpeg.tif": {"compression": "jpeg"}}


def main():
    folder = pathlib.Path(sys.argv[1])
    (folder / "known").mkdir()
    (folder / "refused").mkdir()
    rng = np.random.default_rng(1)
    smooth = Image.fromarray(rng.integers(0, 256, (6, 8, 3), "uint8"))
    picture = smooth.resize(SIZE, Image.BICUBIC)
    for name, options in KINDS.items():
        picture.save(folder / "known" / name, **options)
        with Image.open(folder / "known" / name) as written:
            np.save(folder / f"{name}.npy", np.asarray(written.convert("RGB")))
    picture.save(folder / "refused" / "zstd.tif", compression="zstd")


if __name__ == "__main__":
    main()
