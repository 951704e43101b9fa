"""What every peer's consumer has in common, so that only the loader differs.

Method: a consumer connects to the driver's socket, reports when its libraries are
imported, waits for the start signal (so that its memory can be measured before
there is a loader), then takes batches without end. Of each batch it reads one
byte of every cache line, by the same compiled loop for all (touch.cc), and
reports the time; the driver ends it. bench/peers.py starts all of this.

A peer is a module beside this one:

  TITLE, VENV, DISTRIBUTIONS   its name; its virtual environment, None for
                               Debian's Python; whose versions are printed
  WORKLOADS                    of "divided" and "shared"
  SHARES                       in shared, is a sample decoded once for all?
  NOTE                         what the numbers cannot say
  settings(consumers)          the settings to choose from, by a sweep
  batches(config)              generator of (images, labels) for one consumer
  prepare(files, folder)       optional: makes the peer's own format, once
  serve(config, ready)         optional: the process that consumers connect to
  command(config)              optional: the whole command line, if not Python
  versions(build)              then instead of DISTRIBUTIONS
  PACKS                        optional, True: several samples make a row, and labels
                               are their lengths
"""

import ctypes
import importlib.metadata
import json
import os
import pathlib
import random
import signal
import socket
import sys
import time

SIZE = 224
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
SEED = 42


def photographs(folder):
    """(path, label) of every photograph; the label: the index of its folder."""
    classes = sorted(path for path in pathlib.Path(folder).iterdir()
                     if path.is_dir())
    return [(str(path), label) for label, path_of_class in enumerate(classes)
            for path in sorted(path_of_class.glob("*.*"))]


def parts(folder):
    """The folders of a mixture's parts; of other data, the folder itself."""
    folder = pathlib.Path(folder)
    return sorted(folder.glob("part-*")) or [folder]


def share(config):
    """(this consumer's number, of how many) the data is to be divided by: in
    `shared` every consumer is alone with the whole of it."""
    if config["workload"] == "shared":
        return 0, 1
    return config["rank"], config["consumers"]


def passed(count, config):
    """How many of its samples a consumer has behind it, in whole batches (--from)."""
    _, of = share(config)
    return int(config["from"] * (count // of)) // config["batch"] * config["batch"]


def endless_order(count, config):
    """Indices of this consumer, shuffled epoch after epoch without an end: no
    peer pays for the ends of epochs, which 1,000 photographs have too often."""
    rank, of = share(config)
    draw = random.Random(SEED)
    order = list(range(count))
    while True:
        draw.shuffle(order)
        yield from order[rank::of]


def random_resized_crop(width, height, draw=random):
    """(left, top, width, height) like torchvision's RandomResizedCrop."""
    for _ in range(10):
        area = width * height * draw.uniform(*SCALE)
        ratio = draw.uniform(RATIO[0], RATIO[1])
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, width - w), draw.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


class PillowTransform:
    """The transform, as fast as Pillow and NumPy go: the crop is an argument of
    the resize, and the normalisation is a table (3.2 times faster than float
    arithmetic). Draft mode would not help: it halves at least, and a crop of a
    500 x 375 photograph is never twice 224 high."""

    def __init__(self, dtype="float16"):
        import numpy
        from PIL import Image
        self.numpy, self.image = numpy, Image
        self.table = None
        if dtype == "float16":
            levels = numpy.arange(256, dtype=numpy.float32) / 255
            self.table = numpy.stack(
                [(levels - mean) / std for mean, std in zip(MEAN, STD)]
            ).astype(numpy.float16)

    def __call__(self, file, draw=random):
        with self.image.open(file) as image:
            left, top, width, height = random_resized_crop(*image.size, draw)
            if image.mode != "RGB":
                image = image.convert("RGB")
            pixels = self.numpy.asarray(
                image.resize((SIZE, SIZE), self.image.Resampling.BILINEAR,
                             box=(left, top, left + width, top + height)))
        if draw.random() < 0.5:
            pixels = pixels[:, ::-1]
        if self.table is None:
            return self.numpy.ascontiguousarray(pixels)
        return self.normalize(pixels)

    def normalize(self, pixels):
        """uint8 [..., H, W, 3] to float16 [..., 3, H, W]."""
        shape = pixels.shape[:-3] + (3,) + pixels.shape[-3:-1]
        out = self.numpy.empty(shape, self.numpy.float16)
        for channel in range(3):
            self.numpy.take(self.table[channel], pixels[..., channel],
                            out=out[..., channel, :, :], mode="clip")
        return out


def import_torchvision():
    """torchvision, also where only its transforms can be used: its build for
    CUDA beside PyTorch's for CPUs cannot load the detection operators, and then
    refuses to be imported unless somebody declares them."""
    try:
        import torchvision
    except RuntimeError:
        from torch import library as operators
        declared = operators.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            declared.define(name + "(Tensor dets, Tensor scores, "
                            "float iou_threshold) -> Tensor")
        for name in [n for n in sys.modules if n.startswith("torchvision")]:
            del sys.modules[name]
        import torchvision
        torchvision.declared_operators = declared  # they live as long as it
    return torchvision


class Driver:
    """The consumer's end of the socket to bench/peers.py: JSON lines."""

    def __init__(self, path):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        # A worker that outlives its consumer must not keep the socket open.
        self.file = connection.makefile("rw", encoding="utf-8")

    def tell(self, event, **what):
        self.file.write(json.dumps({"event": event, **what}) + "\n")
        self.file.flush()

    def wait_to_begin(self):
        if self.file.readline().strip() != "begin":
            sys.exit(0)  # the driver has gone


def meet(ready):
    """serve() of peers whose ranks meet by themselves: finds a port for that."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    ready(port=port)
    signal.pause()


class Toucher:
    def __init__(self, library):
        self.touch = ctypes.CDLL(library).peers_touch
        self.touch.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def __call__(self, array):
        import numpy
        array = numpy.asarray(array)  # of a CPU tensor: no copy
        if not array.flags.forc:
            raise TypeError("a batch has gaps: it cannot be read in one go")
        self.touch(array.ctypes.data, array.nbytes)
        return array


def first_batch(images, labels):
    """What the first batch is, so that the driver sees that all peers deliver
    the same."""
    import numpy
    images = numpy.asarray(images)
    return {"shape": list(images.shape), "dtype": str(images.dtype),
            "mean": round(float(images.mean(dtype="float64")), 3),
            "std": round(float(images.astype("float32").std()), 3),
            "labels": int(numpy.asarray(labels).size)}


def consume(peer, config, driver):
    touch = Toucher(config["touch"]) if config["touch"] else lambda array: array
    if hasattr(peer, "load_libraries"):
        peer.load_libraries()
    driver.tell("imported", rank=config["rank"], pid=os.getpid())
    driver.wait_to_begin()
    samples = cells = items = 0
    for images, labels in peer.batches(config):
        images, labels = touch(images), touch(labels)
        if samples == 0:
            driver.tell("first", batch=first_batch(images, labels))
        samples += len(labels)
        if config["lengths"]:
            cells += images.size
            items += int(labels.sum())
        driver.tell("batch", samples=samples, cells=cells, items=items,
                    t=time.monotonic())
    raise RuntimeError(f"{peer.TITLE} ended: batches() must go on for ever")


def versions(peer):
    return {name: importlib.metadata.version(name)
            for name in peer.DISTRIBUTIONS}


def main(peer):
    """Runs a role of the module: ROLE and a JSON object are the arguments."""
    role, config = sys.argv[1], json.loads(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if role == "versions":
        print(json.dumps(versions(peer)))
    elif role == "prepare":
        peer.prepare(config["files"], config["folder"])
    elif role == "serve":
        driver = Driver(config["socket"])
        peer.serve(config, lambda **info: driver.tell("serving", info=info))
    else:
        consume(peer, config, Driver(config["socket"]))
