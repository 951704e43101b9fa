"""What the peers load: `bench/peers.py --data NAME`.

Each class: how its files are made (once, with real tools where the format has
one), what a batch is, and Penstock's source. The files of a consumer's data are
in config["files"].
"""

import itertools
import json
import pathlib
import random
import struct
import sys

import common


def link(files, chosen, folder):
    """Makes a folder of links to the chosen photographs, with all classes of the
    files: a label is the same in every such folder."""
    for path, _ in files:
        pathlib.Path(folder, pathlib.Path(path).parent.name).mkdir(
            parents=True, exist_ok=True)
    for path, _ in chosen:
        path = pathlib.Path(path).resolve()
        pathlib.Path(folder, path.parent.name, path.name).symlink_to(path)


def by_class(files):
    return [list(of_class) for _, of_class in
            itertools.groupby(files, key=lambda file: file[1])]


# Mean and deviation of the logarithms of the web's documents: a median of 490 tokens.
TEXT = 6.2, 1.2


def text_lengths(draw, count):
    return draw.lognormal(*TEXT, count).clip(1, 200_000).round().astype("int32")


def write_megatron_index(path, lengths):
    """The .idx file of documents of uint16 tokens."""
    import numpy
    count = len(lengths)
    with open(path, "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1))
        lengths.astype("<i4").tofile(file)
        (2 * (numpy.cumsum(lengths, dtype="<i8") - lengths)).astype("<i8").tofile(file)
        numpy.arange(count + 1, dtype="<i8").tofile(file)


class Data:
    BEGINS = ()  # of its peers, those that begin within an epoch: --from
    BATCH = 64
    SHUFFLE_KEYS = ""  # of its shuffle, beside the seed
    ITEM, ITEMS = "sample", 1  # what a rate counts, and how many a sample has
    RATE_GOAL = 1.5  # over the fastest peer
    JOBS_GOAL = None  # the same, of two jobs
    LENGTHS = False  # are a batch's second values the lengths of its first?
    VENV = None  # that `make` runs in, and Python of the broker

    @classmethod
    def batch_keys(cls):
        """Of Penstock's batch, beside its size."""
        return ""

    @classmethod
    def shuffle(cls, _):
        return f"shuffle: {{seed: {common.SEED}{cls.SHUFFLE_KEYS}}}"


class Photographs(Data):
    """1,000 JPEGs; random-resized crop to 224, flip, float16 chw."""
    SUFFIX = "jpg"
    PEERS = {
        "penstock": "penstock_broker",
        "pytorch": "pytorch_dataloader",
        "pytorch-tuned": "pytorch_tuned",
        "tf-data": "tf_data",
        "tf-service": "tf_data_service",
        "grain": "grain_loader",
        "spdl": "spdl_pipeline",
        "ffcv": "ffcv_loader",
        "dali": "dali_pipeline",
        "webdataset": "web_dataset",
        "streaming": "mosaic_streaming",
        "litdata": "litdata_chunks",
        "ray": "ray_photographs",
        "torchdata": "torchdata_loader",
        "lance": "lance_photographs",
        "tensorsocket": "tensor_socket",
        "python": "plain_pillow",
    }
    SIZE = common.SIZE
    WEIGHTS = (1,)  # of the parts of a mixture
    MAP = """\
map:
  - decode_image: {crop: {random_resized: {scale: [0.08, 1.0], ratio: [0.75, 1.3333333]}}, size: [224, 224]}
  - flip: {horizontal: 0.5}
"""
    # Between these, and after them.
    AUGMENT = ""
    LAST = ""
    NORMALIZE = """\
  - normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], dtype: float16, layout: chw}
"""

    @classmethod
    def make(cls, photographs, folder):
        """Nothing: the photographs are the data."""

    @classmethod
    def parts(cls, config, rank, of):
        """(weight, [(path, label)]) of a consumer's share of each part."""
        return [(weight, common.photographs(folder)[rank::of])
                for weight, folder in zip(cls.WEIGHTS,
                                          common.parts(config["photographs"]))]

    @classmethod
    def source(cls, config):
        return f"image_folder: {{path: {config['photographs']}}}"

    @classmethod
    def steps(cls, config):
        return (cls.MAP + cls.AUGMENT
                + (cls.NORMALIZE if config["dtype"] == "float16" else "")
                + cls.LAST)

    @classmethod
    def wanted(cls, batch, dtype):
        """shape, dtype, bounds of the mean, of a first batch."""
        if dtype == "float16":
            return [batch, 3, cls.SIZE, cls.SIZE], dtype, (-1, 1)
        return [batch, cls.SIZE, cls.SIZE, 3], dtype, (70, 160)


class RandAugment(Photographs):
    """The same with RandAugment of two operations of magnitude 9."""
    PEERS = {name: Photographs.PEERS[name] for name in ("penstock", "pytorch", "dali")}
    AUGMENT = "  - rand_augment: {operations: 2, magnitude: 9}\n"


class Mixup(Photographs):
    """The same, rows mixed two by two with their one-hot labels (mixup, alpha 0.2)."""
    PEERS = {name: Photographs.PEERS[name] for name in ("penstock", "pytorch", "dali")}
    LAST = """\
  - one_hot: {feature: label, classes: 1000, dtype: float32}
  - mixup: {alpha: 0.2}
"""


class Png(Photographs):
    """The same pictures as PNG files."""
    SUFFIX = "png"
    PEERS = {name: Photographs.PEERS[name] for name in
             ("penstock", "pytorch", "pytorch-tuned", "tf-data", "python")}


class WebDataset(Photographs):
    """The same JPEGs in 32 tar shards, written by webdataset."""
    PEERS = {name: Photographs.PEERS[name] for name in ("penstock", "webdataset")}
    VENV = "torch"

    @classmethod
    def make(cls, photographs, folder):
        import web_dataset
        web_dataset.prepare(photographs, folder)

    @classmethod
    def source(cls, config):
        return (f"webdataset: {{files: \"{config['files']}/*.tar\", features: "
                "{image: {member: jpg, encoded: true}, label: {member: cls, "
                "dtype: int64, shape: []}}}")


class Mds(Photographs):
    """The same JPEGs in MDS shards, written by Streaming."""
    PEERS = {"penstock": "penstock_broker", "streaming": "mosaic_streaming",
             "litdata": "litdata_chunks"}
    VENV = "torch"

    @classmethod
    def make(cls, photographs, folder):
        import mosaic_streaming
        mosaic_streaming.prepare(photographs, folder)

    @classmethod
    def source(cls, config):
        return (f"mds: {{path: {config['files']}, features: "
                "{image: {column: jpg, encoded: true}, label: {}}}")


class TFRecord(Photographs):
    """The same JPEGs in 32 TFRecord files, written by TensorFlow."""
    PEERS = {name: Photographs.PEERS[name] for name in ("penstock", "tf-data")}
    VENV = "tensorflow"
    SHARDS = 32

    @classmethod
    def make(cls, photographs, folder):
        import tensorflow as tf
        train = tf.train
        files = common.photographs(photographs)
        for shard in range(cls.SHARDS):
            with tf.io.TFRecordWriter(f"{folder}/{shard:05}.tfrecord") as out:
                for path, label in files[shard::cls.SHARDS]:
                    image = pathlib.Path(path).read_bytes()
                    out.write(train.Example(features=train.Features(feature={
                        "image": train.Feature(
                            bytes_list=train.BytesList(value=[image])),
                        "label": train.Feature(
                            int64_list=train.Int64List(value=[label])),
                    })).SerializeToString())

    @classmethod
    def source(cls, config):
        return (f"tfrecord: {{files: \"{config['files']}/*.tfrecord\", features: "
                "{image: {encoded: true}, label: {dtype: int64, shape: []}}}")


class Mixture(Photographs):
    """The same in 8 folders, mixed in proportion to unequal weights."""
    PEERS = {name: Photographs.PEERS[name] for name in
             ("penstock", "streaming", "grain", "tf-data")}
    WEIGHTS = (8, 4, 2, 1, 1, 1, 1, 2)

    @classmethod
    def make(cls, photographs, folder):
        files = common.photographs(photographs)
        for part in range(len(cls.WEIGHTS)):
            link(files, files[part::len(cls.WEIGHTS)], f"{folder}/part-{part}")

    @classmethod
    def source(cls, config):
        parts = ", ".join(
            f"{{source: {{image_folder: {{path: {path}}}}}, weight: {weight}}}"
            for path, weight in zip(common.parts(config["photographs"]),
                                    cls.WEIGHTS))
        return f"mix: {{parts: [{parts}], when_out: repeat}}"


class Balanced(Photographs):
    """The same, the n-th of 13 classes with an n-th of them: as many rows of each."""
    PEERS = {name: Photographs.PEERS[name] for name in
             ("penstock", "pytorch", "pytorch-tuned", "tf-data", "grain")}

    @classmethod
    def make(cls, photographs, folder):
        files = common.photographs(photographs)
        link(files, [file for label, of_class in enumerate(by_class(files))
                     for file in of_class[::label + 1]], folder)

    @classmethod
    def parts(cls, config, *_):
        # Each consumer draws from all: a class may be smaller than their number.
        return [(1, files) for files in
                by_class(common.photographs(config["photographs"]))]

    @classmethod
    def steps(cls, config):
        return "select: [balance: {by: label}]\n" + super().steps(config)


class Cached(Photographs):
    """The same, the centre decoded once and kept in memory; flip, float16 chw."""
    PEERS = {"penstock": "penstock_broker", "tf-data": "tf_kept"}
    MAP = """\
map:
  - decode_image: {crop: center, size: [224, 224]}
  - flip: {horizontal: 0.5}
"""
    KEEP = "cache: {{memory: 4G}}"  # makes what is measured in the first epoch

    @classmethod
    def steps(cls, config):
        return super().steps(config) + cls.KEEP.format_map(config) + "\n"


class CachedOnDisk(Cached):
    """The same, kept in files of a cache."""
    KEEP = "cache: {{disk: 16G}}"


class Snapshot(Cached):
    """The same, kept in a snapshot, and in what Dataset.save makes."""
    KEEP = "snapshot: {{path: {folder}/snapshot}}"


class HalfKept(Cached):
    """Jobs beside each other (--workloads shared --consumers 2): as cached, with room for half of the rows."""
    PEERS = {"penstock": "penstock_jobs", "penstock-broadcast": "penstock_broker",
             "tf-service": "tf_service_jobs", "tf-service-shared": "tf_service_shared",
             "pytorch": "torch_kept", "pytorch-tuned": "torch_centre"}
    KEEP = "cache: {{memory: {room}}}"
    JOBS_GOAL = 3.45  # what Seneca (FAST '26) claims

    @classmethod
    def kept(cls, config):
        """How many rows are kept, in all jobs together."""
        return len(common.photographs(config["photographs"])) // 2

    @classmethod
    def steps(cls, config):
        row_bytes = cls.SIZE * cls.SIZE * 3 + 8  # with the label
        return super().steps({**config, "room": cls.kept(config) * (row_bytes + 8)})


class Boxes(Photographs):
    """The same as COCO's instances, some 7 boxes each; cropped to 320, with the boxes."""
    PEERS = {"penstock": "penstock_broker", "pytorch": "torch_boxes"}
    SIZE, SCALE, BOXES_MAX = 320, (0.3, 1.0), 40
    MAP = """\
map:
  - decode_image: {crop: {random_resized: {scale: [0.3, 1.0], ratio: [0.75, 1.3333333]}}, size: [320, 320], boxes: boxes}
  - flip: {horizontal: 0.5, boxes: boxes}
  - sanitize_boxes: {labels: []}
"""

    @classmethod
    def make(cls, photographs, folder):
        from PIL import Image
        draw = random.Random(common.SEED)
        files = common.photographs(photographs)
        link(files, files, f"{folder}/images")
        images, annotations = [], []
        for number, (path, label) in enumerate(files):
            path = pathlib.Path(path)
            with Image.open(path) as image:
                width, height = image.size
            images.append({"id": number, "width": width, "height": height,
                           "file_name": f"{path.parent.name}/{path.name}"})
            for _ in range(min(cls.BOXES_MAX, 1 + int(draw.expovariate(1 / 6.5)))):
                w, h = draw.uniform(8, width), draw.uniform(8, height)
                annotations.append({
                    "id": len(annotations), "image_id": number, "category_id": label,
                    "bbox": [round(draw.uniform(0, width - w), 2),
                             round(draw.uniform(0, height - h), 2), round(w, 2),
                             round(h, 2)], "area": round(w * h, 2), "iscrowd": 0})
        categories = [{"id": label, "name": str(label)} for label in
                      sorted({label for _, label in files})]
        pathlib.Path(folder, "instances.json").write_text(json.dumps({
            "images": images, "annotations": annotations, "categories": categories}))

    @classmethod
    def source(cls, config):
        return (f"coco: {{annotations: {config['files']}/instances.json, "
                f"images: {config['files']}/images}}")


class Rows(Data):
    """1,000,000 rows of 16 float32 and an int64 label, in .npy files."""
    PEERS = {"penstock": "penstock_broker", "numpy": "numpy_memmap",
             "pytorch": "torch_memmap", "tf-data": "tf_memmap",
             "ffcv": "ffcv_rows"}
    BEGINS = ("penstock", "numpy", "pytorch", "tf-data")  # within an epoch: --from
    BATCH = 1024
    COUNT, WIDTH = 1_000_000, 16

    @classmethod
    def records(cls, _):
        """Of an epoch."""
        return cls.COUNT

    @classmethod
    def make(cls, _, folder):
        import numpy
        draw = numpy.random.default_rng(common.SEED)
        numpy.save(f"{folder}/x.npy", draw.standard_normal(
            (cls.COUNT, cls.WIDTH), dtype=numpy.float32))
        numpy.save(f"{folder}/y.npy", draw.integers(0, 1000, cls.COUNT))

    @classmethod
    def source(cls, config):
        return (f"npy: {{features: {{x: {config['files']}/x.npy, "
                f"y: {config['files']}/y.npy}}}}")

    @classmethod
    def steps(cls, _):
        return ""

    @classmethod
    def wanted(cls, batch, _):
        """shape, None where it differs from batch to batch, dtype and bounds of the
        mean of a first batch."""
        return [batch, cls.WIDTH], "float32", (-1, 1)


class Tokens(Rows):
    """100,000,000 uint16 tokens, documents one after the other; sequences of 1,024 with targets."""
    PEERS = {"penstock": "penstock_broker", "penstock-megatron": "penstock_megatron",
             "numpy": "numpy_memmap", "nanogpt": "nanogpt_batch",
             "pytorch": "torch_memmap", "torchdata": "torchdata_tokens",
             "tf-data": "tf_memmap", "streaming": "streaming_tokens",
             "litdata": "litdata_tokens", "grain": "grain_tokens",
             "huggingface": "hugging_face_tokens", "megatron": "megatron_gpt"}
    BEGINS = tuple(name for name in PEERS if name not in ("nanogpt", "huggingface"))
    BATCH = 64
    COUNT, LENGTH = 100_000_000, 1024
    ITEM, ITEMS = "token", LENGTH
    RATE_GOAL = 2

    @classmethod
    def make(cls, _, folder):
        import numpy
        draw = numpy.random.default_rng(common.SEED)
        draw.integers(0, 50257, cls.COUNT, dtype=numpy.uint16).tofile(
            f"{folder}/tokens.bin")
        # The same file is Megatron's.
        lengths = text_lengths(draw, cls.COUNT // 500)
        ends = numpy.cumsum(lengths)
        lengths = lengths[:numpy.searchsorted(ends, cls.COUNT)]
        lengths[-1] += cls.COUNT - lengths.sum()
        write_megatron_index(f"{folder}/tokens.idx", lengths)

    @classmethod
    def records(cls, config, passes=1):
        tokens = pathlib.Path(config["files"], "tokens.bin").stat().st_size // 2
        return (passes * tokens - 1) // cls.LENGTH

    @classmethod
    def source(cls, config):
        return (f"tokens: {{files: {config['files']}/tokens.bin, "
                f"sequence_length: {cls.LENGTH}}}")

    @classmethod
    def wanted(cls, batch, _):
        return [batch, cls.LENGTH], "int64", (24_000, 26_000)


class Megatron(Tokens):
    """The same as Megatron's samples, in its order: 20 passes."""
    PEERS = {name: Tokens.PEERS[name] for name in ("penstock", "megatron")}
    BEGINS = tuple(PEERS)

    @classmethod
    def shuffle(cls, config):
        # Megatron's samples are shuffled.
        return (super().shuffle(config)
                if "order" in config.get("megatron", {}) else "")

    @classmethod
    def records(cls, config):
        """--global-batch-size * --train-iters"""
        return super().records(config, config.get("passes", 20))

    @classmethod
    def source(cls, config):
        # All that its GPTDataset gives.
        keys = {"prefix": f"{config['files']}/tokens", "sequence_length": cls.LENGTH,
                "features": ["tokens", "labels", "loss_mask", "position_ids"],
                **config.get("megatron", {})}
        if "order" not in keys:
            keys.update(samples=cls.records(config), seed=common.SEED)
        return f"megatron: {json.dumps(keys)}"


class JsonLines(Rows):
    """300,000 lines of JSON: 400 bytes of text, an int64, a float64."""
    PEERS = {"penstock": "penstock_broker", "huggingface": "hugging_face",
             "pytorch": "torch_lines"}
    BEGINS = ()
    COUNT, TEXT = 300_000, 512

    @classmethod
    def make(cls, _, folder):
        draw = random.Random(common.SEED)
        words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz",
                                      k=draw.randint(2, 10)))
                 for _ in range(2000)]
        with open(f"{folder}/lines.jsonl", "w", encoding="utf-8") as out:
            for number in range(cls.COUNT):
                text = " ".join(draw.choices(words, k=60))[:cls.TEXT]
                out.write(json.dumps({"id": number, "text": text,
                                      "label": draw.randrange(10),
                                      "score": draw.random()}) + "\n")

    @classmethod
    def source(cls, config):
        return (f"json_lines: {{files: {config['files']}/lines.jsonl, fields: "
                f"{{score: {{dtype: float64}}, text: {{max_bytes: {cls.TEXT}}}, "
                "label: {dtype: int64}}}")

    @classmethod
    def wanted(cls, batch, _):
        return [batch], "float64", (0, 1)


class Parquet(Rows):
    """1.6 million rows of 256 int32 tokens, a label and a weight, in 160 row groups of
    Parquet: more than stays decoded."""
    PEERS = {"penstock": "penstock_broker", "pyarrow": "arrow_rows",
             "huggingface": "hugging_face_rows", "lance": "lance_rows"}
    BEGINS = ()
    VENV = "huggingface"
    COUNT, LENGTH, GROUP, FILES = 1_600_000, 256, 10_000, 32
    WINDOW = 4  # row groups that are shuffled together
    SHUFFLE_KEYS = f", window_files: {WINDOW}"

    @classmethod
    def make(cls, _, folder):
        import numpy
        import pyarrow
        from pyarrow import parquet
        draw = numpy.random.default_rng(common.SEED)
        rows = cls.COUNT // cls.FILES
        offsets = numpy.arange(rows + 1, dtype=numpy.int32) * cls.LENGTH
        for part in range(cls.FILES):
            tokens = draw.integers(0, 50257, rows * cls.LENGTH, dtype=numpy.int32)
            parquet.write_table(pyarrow.table({
                "tokens": pyarrow.ListArray.from_arrays(offsets, tokens),
                "label": draw.integers(0, 10, rows),
                "weight": draw.random(rows, dtype=numpy.float32),
            }), f"{folder}/{part:05}.parquet", row_group_size=cls.GROUP)

    @classmethod
    def source(cls, config):
        return f"parquet: {{files: \"{config['files']}/*.parquet\"}}"

    @classmethod
    def wanted(cls, batch, _):
        return [batch, cls.LENGTH], "int32 or int64", (24_000, 26_000)


class Documents(Rows):
    """100,000 documents of 4 to 1,024 tokens, padded in batches of like length."""
    PEERS = {"penstock": "penstock_broker", "streaming": "streaming_documents",
             "huggingface": "hugging_face_documents", "pytorch": "torch_documents",
             "torchdata": "torchdata_documents", "tf-data": "tf_documents",
             "grain": "grain_documents"}
    BEGINS = ()
    BATCH = 64
    LENGTHS = True
    VENV = "torch"
    COUNT, LONGEST = 100_000, 1024
    LOGARITHMS = 5, 0.8  # of the lengths: mean and deviation

    @classmethod
    def make(cls, _, folder):
        import numpy
        common.import_torchvision()
        from streaming import MDSWriter
        draw = numpy.random.default_rng(common.SEED)
        lengths = draw.lognormal(*cls.LOGARITHMS, cls.COUNT).astype(numpy.int64)
        ends = numpy.cumsum(lengths.clip(4, cls.LONGEST))
        tokens = draw.integers(1, 50257, ends[-1], dtype=numpy.int32)
        numpy.save(f"{folder}/ends.npy", ends)
        numpy.save(f"{folder}/tokens.npy", tokens)
        with MDSWriter(out=f"{folder}/mds", columns={"tokens": "ndarray:int32"}) as out:
            for document in numpy.split(tokens, ends[:-1]):
                out.write({"tokens": document})

    @classmethod
    def batch_keys(cls):
        return ", buckets: {by: tokens.length, count: 32}"

    @classmethod
    def open(cls, files):
        """(where each document ends, all tokens)"""
        import numpy
        return (numpy.load(f"{files}/ends.npy"),
                numpy.load(f"{files}/tokens.npy", mmap_mode="r"))

    @classmethod
    def source(cls, config):
        return (f"mds: {{path: {config['files']}/mds, features: "
                f"{{tokens: {{dtype: int32, max_length: {cls.LONGEST}}}}}}}")

    @classmethod
    def wanted(cls, batch, _):
        return [batch, None], "int32 or int64", (1000, 26_000)


class Packed(Documents):
    """131,072 documents of 4 to 4,096 tokens, as long as web text, packed in sequences of 4,096."""
    PEERS = {"penstock": "penstock_broker", "penstock-split": "penstock_split",
             "grain-best-fit": "grain_documents", "grain-first-fit": "grain_first_fit",
             "grain-split": "grain_split", "energon": "energon_packed"}
    BATCH = 16
    COUNT, LONGEST = 131_072, 4096
    LOGARITHMS = TEXT
    METHOD = "best_fit"
    ITEM = "document"

    @classmethod
    def batch_keys(cls):
        return (f", pack: {{length: {cls.LONGEST}, method: {cls.METHOD}, "
                "with: [document_ids, position_ids, seq_lens]}")


class PackedSplit(Packed):
    """The same, cut where a sequence is full."""
    PEERS = {name: Packed.PEERS[name] for name in ("penstock", "grain-split")}
    METHOD = "split"


class Flac(Rows):
    """1,000 FLAC files of 2 to 10 s at 44.1 kHz; 2 s of each, mono, at 16 kHz."""
    PEERS = {"penstock": "penstock_broker", "pytorch": "torch_sounds",
             "torchaudio": "torchaudio_sounds"}
    BEGINS = ()
    BATCH = 64
    VENV = "torch"
    COUNT, FILE_RATE, RATE, SECONDS = 1000, 44_100, 16_000, 2

    @classmethod
    def make(cls, _, folder):
        import numpy
        import soundfile
        draw = numpy.random.default_rng(common.SEED)
        for number in range(cls.COUNT):
            seconds = draw.uniform(cls.SECONDS, 10)
            t = numpy.arange(int(seconds * cls.FILE_RATE)) / cls.FILE_RATE
            # A tone that glides, its overtones, and noise, so that it compresses as
            # music does.
            tone = draw.uniform(80, 400) * (1 + 0.1 * numpy.sin(2 * t))
            phase = 2 * numpy.pi * numpy.cumsum(tone) / cls.FILE_RATE
            wave = sum(numpy.sin(n * phase) / n for n in range(1, 6)) / 5
            wave += 0.01 * draw.standard_normal(len(t))
            sides = numpy.stack([wave, 0.8 * wave], 1).clip(-1, 1)
            soundfile.write(f"{folder}/{number:04}.flac", sides, cls.FILE_RATE)

    @classmethod
    def source(cls, config):
        return f"audio_folder: {{path: {config['files']}, labels: none}}"

    @classmethod
    def steps(cls, _):
        return (f"map: [{{decode_audio: {{rate: {cls.RATE}, mono: true, "
                f"seconds: {cls.SECONDS}, crop: random}}}}]\n")

    @classmethod
    def wanted(cls, batch, _):
        return [batch, cls.RATE * cls.SECONDS], "float32", (-0.1, 0.1)


class Python(Rows):
    """A map-style dataset of 50,000 Python dictionaries, augmented with NumPy."""
    PEERS = {"penstock": "penstock_called", "pytorch": "torch_called"}
    BEGINS = ()
    VENV = None
    COUNT = 50_000

    @classmethod
    def make(cls, _, folder):
        """Nothing: a program makes it."""

    @classmethod
    def wanted(cls, batch, _):
        return [batch, 64], "float32", (-1, 1)


DATA = {"photographs": Photographs, "randaugment": RandAugment, "mixup": Mixup,
        "png": Png, "webdataset": WebDataset, "mds": Mds,
        "tfrecord": TFRecord, "rows": Rows, "tokens": Tokens,
        "megatron": Megatron, "documents": Documents,
        "packed": Packed, "packed-split": PackedSplit, "flac": Flac, "parquet": Parquet, "boxes": Boxes,
        "json": JsonLines, "python": Python, "mixture": Mixture,
        "balanced": Balanced, "cached": Cached,
        "cached-on-disk": CachedOnDisk, "snapshot": Snapshot,
        "half-kept": HalfKept}

if __name__ == "__main__":
    DATA[sys.argv[1]].make(sys.argv[2], sys.argv[3])
