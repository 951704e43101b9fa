#!/usr/bin/env python3
"""Question: how much later do ranks have their first batch because the hosts compare
what they have?

Method: --hosts private brokers stand for hosts, of --ranks ranks each, all processes of
this machine. All attach to a dataset of --files files without comparing, meet at a
barrier, and compare by a TCPStore of torch.distributed (or --folder): the time from the
barrier until the last rank knows, and that of the same store's barrier alone, --rounds
times, medians.

Limit: one machine; a network adds four of its round trips. 64 processes on few cores
wait for one another longer than on hosts of their own.

    bench/agreement_benchmark.py --hosts 8 --ranks 8
"""

import argparse
import os
import pathlib
import statistics
import tempfile
import time
from datetime import timedelta

import numpy as np
import penstock
import torch.distributed as dist


def rank(number, arguments, folder, socket, pipe):
    store = dist.TCPStore("localhost", arguments.port, None, number == 0,
                          timedelta(seconds=120), wait_for_workers=False)
    world = arguments.hosts * arguments.ranks
    agree = f"file:{folder}" if arguments.folder else store
    data = penstock.Dataset.npy({"value": str(folder / "*.npy")}).batch(world, last="drop")

    def meet(name):
        if store.add(f"{name}/count", 1) == world:
            store.set(f"{name}/go", b"")
        store.wait([f"{name}/go"])

    took = []
    with penstock.attach(data, number, world, local_world_size=arguments.ranks, socket=socket,
                         job="agree", agree=False, wait_s=60) as reader:
        reader._hosts.agree = agree
        for i in range(arguments.rounds):
            meet(f"a{i}")
            begin = time.monotonic()
            meet(f"b{i}")
            middle = time.monotonic()
            reader._hosts.compare(reader._core)
            took.append((begin, middle, time.monotonic()))
        meet("end")
    os.write(pipe, np.array(took).tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=8, help="of each host")
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--port", type=int, default=29_400)
    parser.add_argument("--folder", action="store_true", help="by a shared folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for i in range(arguments.files):
            np.save(folder / f"{i:06}.npy", np.arange(i * 10, i * 10 + 10))
        brokers = [penstock.broker(workers=1) for _ in range(arguments.hosts)]
        pipes = []
        for number in range(arguments.hosts * arguments.ranks):
            read, write = os.pipe()
            if os.fork() == 0:
                try:
                    rank(number, arguments, folder, brokers[number // arguments.ranks].socket,
                         write)
                finally:
                    os._exit(0)
            os.close(write)
            pipes.append(read)
        times = []
        for pipe in pipes:
            with os.fdopen(pipe, "rb") as file:
                times.append(np.frombuffer(file.read()).reshape(-1, 3))
        for broker in brokers:
            broker.stop()
    times = np.array(times)  # by rank and round
    barrier = times[:, :, 1].max(0) - times[:, :, 0].max(0)
    compared = times[:, :, 2].max(0) - times[:, :, 1].max(0)
    print(f"{len(times)} ranks of {arguments.hosts} hosts, {arguments.rounds} rounds: "
          f"a barrier {statistics.median(barrier) * 1000:.1f} ms, the comparison "
          f"{statistics.median(compared) * 1000:.1f} ms (most {compared.max() * 1000:.1f})")


if __name__ == "__main__":
    main()
