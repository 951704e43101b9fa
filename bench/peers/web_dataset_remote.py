"""WebDataset over shards that `pipe:curl` fetches, in a WebLoader, with its cache of
shards (cache_dir, cache_size).

Its cache looks at its size every 30 s; here every time, as an epoch is shorter.
Settings: 1, 2 or 4 workers.
"""

import pathlib
import sys

import common
import torch_remote
from torch_remote import settings

TITLE = "WebDataset"
VENV = "torch"
DISTRIBUTIONS = ["webdataset", "torch"]
NOTE = "pipe:curl; cache_dir and cache_size, the least recently made go"
KEEPS = "part"


def load_libraries():
    import torch
    torch.set_num_threads(1)
    import webdataset
    return webdataset


def batches(config):
    webdataset = load_libraries()
    import torch
    webdataset.cache.FileCache.__init__.__kwdefaults__["cache_cleanup_interval"] = None
    pathlib.Path(config["cache"]).mkdir()
    data = webdataset.WebDataset(
        [f"pipe:curl -s -f {url}" for url in config["shards"]],
        shardshuffle=len(config["shards"]), seed=common.SEED, empty_check=False,
        cache_dir=config["cache"],
        # All: without a limit, as shards are a little more than their records.
        cache_size=config["keep"] if config["keep"] < config["bytes"] else -1)
    data = (data.shuffle(torch_remote.BUFFER)
            .map(lambda sample: torch_remote.row(sample["bin"], sample["cls"]))
            .batched(config["batch"],
                     collation_fn=torch.utils.data.default_collate))
    workers = config["settings"]["num_workers"]
    loader = webdataset.WebLoader(data, batch_size=None, num_workers=workers,
                                  persistent_workers=True)
    while True:
        yield from loader


if __name__ == "__main__":
    common.main(sys.modules[__name__])
