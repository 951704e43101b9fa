"""A PyTorch DataLoader over shards of an object store that fsspec opens: an
IterableDataset whose workers divide the shards, in another order each epoch, and shuffle
the records in a buffer. To keep them, `simplecache::`, which has no limit.

Settings: 1, 2 or 4 workers.
"""

import pathlib
import random
import sys
import tarfile

import common

TITLE = "fsspec + DataLoader"
VENV = "remote"
DISTRIBUTIONS = ["fsspec", "aiohttp", "torch"]
NOTE = "tar shards as streams, or simplecache::, which has no limit"
KEEPS = "all"
BUFFER = 500  # records of a worker that are shuffled


def settings(_):
    return [{"num_workers": n} for n in (1, 2, 4)]


def load_libraries():
    import torch
    torch.set_num_threads(1)
    import fsspec
    return fsspec


def row(value, label):
    import torch
    return torch.frombuffer(bytearray(value), dtype=torch.uint8), int(label)


def records_of_tar(file):
    """(value, label) of a shard's records, as a stream."""
    with tarfile.open(fileobj=file, mode="r|") as tar:
        for member in tar:
            data = tar.extractfile(member).read()
            if member.name.endswith(".cls"):
                label = int(data)
            else:
                yield data, label


def rows_of_tar(file):
    return (row(*record) for record in records_of_tar(file))


def records_of(path):
    with open(path, "rb") as file:
        yield from records_of_tar(file)


def shards(folder):
    """The tar shards that others' formats are made of."""
    return sorted(map(str, pathlib.Path(folder).glob("*.tar")))


def shard_bytes(folder):
    return pathlib.Path(shards(folder)[0]).stat().st_size


def shuffled(rows, draw):
    kept = []
    for each in rows:
        if len(kept) < BUFFER:
            kept.append(each)
            continue
        place = draw.randrange(BUFFER)
        kept[place], each = each, kept[place]
        yield each
    draw.shuffle(kept)
    yield from kept


def endless(dataset, config):
    """Epoch after epoch of an IterableDataset of rows."""
    import torch
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=config["batch"],
        num_workers=config["settings"]["num_workers"], persistent_workers=True)
    while True:
        yield from loader


def batches(config):
    fsspec = load_libraries()
    import torch
    keeps = config["keep"] == config["bytes"]
    options = {"simplecache": {"cache_storage": config["cache"]}} if keeps else {}

    class Shards(torch.utils.data.IterableDataset):
        epoch = 0

        def rows(self, urls):
            for url in urls:
                with fsspec.open(("simplecache::" if keeps else "") + url, "rb",
                                 **options) as file:
                    yield from rows_of_tar(file)

        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            draw = random.Random(common.SEED + self.epoch)  # the same in each worker
            self.epoch += 1
            urls = list(config["shards"])
            draw.shuffle(urls)
            return shuffled(self.rows(urls[worker.id::worker.num_workers]), draw)

    yield from endless(Shards(), config)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
