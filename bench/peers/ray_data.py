"""Ray Data: a cluster of two nodes. The head is on the host that makes rows, which has
all of its processors; the training host's node has none, so that no task runs there, and
iterates over the batches, as ranks do. Photographs are decoded by common.py's Pillow transform.

Settings: batches prefetched.
"""

import os
import pathlib
import socket
import subprocess
import sys
import time

import common

TITLE = "Ray Data"
VENV = "ray"
DISTRIBUTIONS = ["ray"]
NOTE = "a node on each host; iter_batches of the training host"
MAKES = ["constant", "photographs"]
STORE_BYTES = 1 << 30
BLOCK_ROWS = 512
# A node that finds a token of this user asks for it, a driver that is told the address
# does not send it.
os.environ["RAY_AUTH_MODE"] = "disabled"


def settings(_):
    return [{"prefetch": 4}]


def load_libraries():
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    import ray.data
    return ray


def start(config, *how):
    """A node of the cluster."""
    return subprocess.Popen(
        [pathlib.Path(sys.executable).parent / "ray", "start", *how, "--block",
         "--node-ip-address", config["address"], "--object-store-memory", str(STORE_BYTES),
         "--disable-usage-stats"],
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent)})


def serve(config, ready):
    node = start(config, "--head", "--port", "6379", "--include-dashboard", "false",
                 "--num-cpus", str(config["processors"]), "--temp-dir", config["ray"])
    while True:
        try:
            socket.create_connection((config["address"], 6379)).close()
            break
        except OSError:
            time.sleep(0.1)
    ready(address=f"{config['address']}:6379")
    node.wait()


def constant(rows):
    import numpy
    return {"image": numpy.full((len(rows["id"]), common.SIZE, common.SIZE, 3), 0x5a,
                                numpy.uint8), "label": rows["id"]}


def decoded(row):
    return {"image": common.PillowTransform("uint8")(row["path"]), "label": row["label"]}


def dataset(ray, config):
    if config["rows"] == "constant":
        count = BLOCK_ROWS << 13
        # One operator: with one processor two would wait for each other.
        return ray.data.range(count, override_num_blocks=count // BLOCK_ROWS).map_batches(
            constant, batch_size=None)
    draw = common.endless_order(len(files := common.photographs(config["files"])),
                                {**config, "rank": 0})
    rows = [dict(zip(("path", "label"), files[next(draw)])) for _ in range(100_000)]
    return ray.data.from_items(rows, override_num_blocks=len(rows) // 100).map(decoded)


def connect(ray, **how):
    end = time.monotonic() + 60
    while True:
        try:
            ray.init(log_to_driver=False, **how)
            break
        except Exception:  # the node of this host is not there yet
            if time.monotonic() > end:
                raise
            time.sleep(1)
    ray.data.DataContext.get_current().enable_progress_bars = False


def batches(config):
    head = config["servers"][0]["address"]
    ray = load_libraries()
    start(config, "--address", head, "--num-cpus", "0")
    connect(ray, address=head, _node_ip_address=config["address"])
    for batch in dataset(ray, config).iter_batches(
            batch_size=config["batch"], prefetch_batches=config["settings"]["prefetch"]):
        yield batch["image"], batch["label"]


if __name__ == "__main__":
    common.main(sys.modules[__name__])
