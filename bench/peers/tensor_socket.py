"""TensorSocket: one producer process runs a PyTorch DataLoader, the consumers
get handles of its tensors over ZeroMQ. Broadcast is all it does.

Its strength is tensors on a GPU, handed on by CUDA IPC; of those of a CPU the
message is a copy for each consumer (its storage is pickled whole), and with 8
consumers what is on its way outgrows 25 GB. A consumer whose heartbeat is late (0.5 s, which happens where
all cores are busy) is dropped until the next epoch. The DataLoader is
pytorch_tuned.py's. Settings: its workers (0, 1, 2) and how many loader batches
go into one message (its default, 8, or 2).
"""

import itertools
import socket
import sys
import time

import common
import pytorch_dataloader
import pytorch_tuned
from pytorch_dataloader import load_libraries

TITLE = "TensorSocket"
VENV = "torch"
DISTRIBUTIONS = ["tensorsocket", "torch", "pillow"]
WORKLOADS = ["shared"]
SHARES = True
NOTE = "broadcast only; made for CUDA IPC, its messages of a CPU are copies"


def settings(consumers):
    return [{"num_workers": workers, "producer_batch_size": batches}
            for workers, batches in itertools.product((0, 1, 2), (2, 8))]


# Batches of an epoch, by which TensorSocket plans: long, because between two
# it waits for heartbeats of all; not endless, because who was dropped comes
# back then.
EPOCH_BATCHES = 256


class Loader:
    """A DataLoader with a length; it goes on where the last epoch ended."""

    def __init__(self, loader):
        self.iterator = iter(loader)

    def __len__(self):
        return EPOCH_BATCHES

    def __iter__(self):
        return self.iterator


def serve(config, ready):
    load_libraries()
    import tensorsocket
    sockets = [socket.socket() for _ in range(4)]
    for each in sockets:
        each.bind(("localhost", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    one = {**config, "rank": 0}
    producer = tensorsocket.TensorProducer(
        Loader(pytorch_dataloader.loader(
            one, pytorch_tuned.tensor_transform(one))),
        port=ports[0], ack_port=ports[1], heart_ports=(ports[2], ports[3]),
        rubber_band_pct=0,
        producer_batch_size=config["settings"]["producer_batch_size"])
    ready(ports=ports)
    # Who comes after the first batches is let in with the next epoch only.
    while len(producer.hb.consumers) < config["consumers"]:
        time.sleep(0.05)
    while True:
        for _ in producer:
            pass


def batches(config):
    load_libraries()
    import tensorsocket
    port, ack, *heart = config["server"]["ports"]
    consumer = tensorsocket.TensorConsumer(
        port=port, ack_port=ack, heart_ports=tuple(heart),
        batch_size=config["batch"])
    while True:
        yield from consumer


if __name__ == "__main__":
    common.main(sys.modules[__name__])
