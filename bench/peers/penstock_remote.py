"""Penstock: a private broker of the Python package, which reads from the store: the tar
shards with an index beside each (`penstock index --out`) or without, Streaming's MDS
shards; or local shards. Its fetcher needs obstore beside the package.

Settings: 2 worker threads of the broker.
"""

import json
import os
import pathlib
import subprocess
import sys

import common
import torch_remote

TITLE = "Penstock"
VENV = None
DISTRIBUTIONS = ["penstock", "obstore"]
NOTE = "a private broker; cache: {files}"
KEEPS = "part"
FORMAT = "indexed"


def settings(_):
    return [{"workers": 2}]


def tar_source(files, size):
    return {"webdataset": {"files": files, "features": {
        "value": {"member": "bin", "dtype": "uint8", "shape": [size]},
        "label": {"member": "cls", "dtype": "int64", "shape": []}}}}


def prepare(files, folder):
    """The shards, and an index beside each."""
    shards = [pathlib.Path(path) for path in torch_remote.shards(files)]
    for path in shards:
        os.link(path, pathlib.Path(folder, path.name))
    size = len(next(torch_remote.records_of(shards[0]))[0])
    spec = pathlib.Path(folder, "spec.yaml")  # JSON is YAML
    spec.write_text(json.dumps({
        "dataset": "remote", "batch": {"size": 1},
        "source": tar_source([str(pathlib.Path(folder, path.name)) for path in shards],
                             size)}))
    subprocess.run([pathlib.Path(sys.executable).parent / "penstock", "index", "--out",
                    folder, spec], check=True,
                   env={**os.environ, "PENSTOCK_CACHE_DIR": f"{folder}/cache"})


def load_libraries():
    import numpy  # noqa: F401  batches are its arrays
    import penstock
    return penstock


def source(config):
    folder = f"{config['bucket_at']}/{config['form']}"
    if config["form"] == "mds":
        return {"mds": {"path": folder, "features": {
            "value": {"dtype": "uint8", "shape": [config["size"]]}, "label": {}}}}
    return tar_source([f"{folder}/{name}" for name in config["names"]], config["size"])


def batches(config):
    penstock = load_libraries()
    os.environ["PENSTOCK_CACHE_DIR"] = config["cache"]
    spec = {
        "dataset": "remote", "source": source(config), "shuffle": {"seed": common.SEED},
        "batch": {"size": config["batch"]}, "epochs": "forever"}
    if config["keep"] < config["bytes"]:
        spec["cache"] = {"files": config["keep"]}
    with penstock.broker(workers=config["settings"]["workers"]) as broker:
        with penstock.attach(penstock.Dataset(spec), job="remote", socket=broker.socket,
                             timeout_s=300) as reader:
            for epoch in reader.epochs():
                for batch in epoch:
                    yield batch["value"], batch["label"]


if __name__ == "__main__":
    common.main(sys.modules[__name__])
