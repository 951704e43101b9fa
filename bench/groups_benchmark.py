#!/usr/bin/env python3
"""Question: what do ranks of several processes cost, that is tensor-parallel groups
whose members need the same batch?

Method: 8 processes as 1 group of 8, 2 of 4, 4 of 2 and 8 of 1, --runs times in turn,
each layout in three ways:

  penstock   `attach(..., replicas=...)`: a batch is made once for its group
  each       each process reads and makes the rows of its group for itself
  broadcast  the first process of a group does, and torch.distributed (gloo)
             broadcasts the batch to the others

Rows are `--rows` records of 150,528 bytes, shuffled, normalized to float16 (`records`),
or sequences of 4,096 uint16 tokens as int64 (`tokens`), in global batches of --batch.
The other two ways make them with NumPy from `os.pread`, in the process that trains, so
that the rows and their order are a fixed function of the step there, too. After each
batch a process pretends to train for --step-ms (0: not at all).

Per layout and way: bytes read per byte of the rows' records; CPU seconds per 1,000 rows,
of the processes and the broker; MiB, the proportional set sizes of all of them; ms from asking for a batch to having it, the mean over
processes and steps without the first, and the 99th percentile.

Isolation: one run at a time, a private broker for each, the page cache warm. Limits:
the reads of the other ways are those of their loops, without what a loader adds;
processors are shared by what makes batches and who takes them.

    pip install ./client/python torch
    bench/groups_benchmark.py
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
    import penstock
except ImportError as error:
    sys.exit(f"{error}: pip install ./client/python torch, and run this with that Python")

PROCESSES = 8
WAYS = ("penstock", "each", "broadcast")
RECORD_BYTES = {"records": 224 * 224 * 3, "tokens": 2 * 4096}
MIB = 1 << 20


def made(kind, raw):
    """A batch of raw records, as the rows that a model takes."""
    if kind == "tokens":
        return raw.view(np.uint16).astype(np.int64)
    return ((raw.astype(np.float32) / 255 - 0.45) / 0.25).astype(np.float16)


def dataset(options, path):
    """The same rows as a Dataset."""
    if options.data == "tokens":
        data = penstock.Dataset.tokens(path, 4096, dtype="uint16", targets="none")
    else:
        data = penstock.Dataset.fixed_length_records(
            path, {"row": {"dtype": "uint8", "shape": [224, 224, 3]}}).map(
            penstock.normalize([0.45] * 3, [0.25] * 3, dtype="float16"))
    return data.shuffle(seed=1).batch(options.batch, last="drop").repeat(None)


def pss_mib(pids):
    """The proportional set sizes of these processes."""
    total = 0
    for pid in pids:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += int(text.split("Pss:")[1].split()[0])
    return total / 1024


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def own_batches(options, path, rank, ranks, read):
    """Batches of a rank, made by this process; read[0] counts the bytes read."""
    size = RECORD_BYTES[options.data]
    count = os.path.getsize(path) // size
    each = options.batch // ranks
    file = os.open(path, os.O_RDONLY)
    epoch = 0
    while True:
        order = np.random.default_rng(epoch).permutation(count)
        for begin in range(rank * each, count - options.batch + 1, options.batch):
            chosen = order[begin:begin + each]
            raw = np.empty((each, size), np.uint8)
            for row, record in enumerate(chosen):
                read[0] += os.preadv(file, [raw[row]], int(record) * size)
            yield made(options.data, raw)
        epoch += 1


def broadcast_batches(options, batches, rank, replica, replicas, group):
    import torch
    from torch import distributed
    each = options.batch * replicas // PROCESSES
    width = RECORD_BYTES[options.data] // (2 if options.data == "tokens" else 1)
    dtype = torch.int64 if options.data == "tokens" else torch.float16
    while True:
        if replica == 0:
            tensor = torch.from_numpy(next(batches))
        else:
            tensor = torch.empty((each, width), dtype=dtype)
        distributed.broadcast(tensor, src=rank * replicas, group=group)
        yield tensor


def process(options, way, path, address, number, replicas, results, start):
    """One of the processes that train."""
    ranks, rank, replica = PROCESSES // replicas, number // replicas, number % replicas
    read = [0]
    own = own_batches(options, path, rank, ranks, read)
    reader = None
    if way == "penstock":
        reader = penstock.attach(dataset(options, path), rank, ranks, replica=replica,
                                 replicas=replicas, local_world_size=ranks, job="groups",
                                 socket=address, timeout_s=120)
        batches = iter(reader)
    elif way == "broadcast":
        from torch import distributed
        distributed.init_process_group("gloo", init_method=address, rank=number,
                                       world_size=PROCESSES)
        groups = [distributed.new_group(list(range(of * replicas, (of + 1) * replicas)))
                  for of in range(ranks)]
        batches = broadcast_batches(options, own, rank, replica, replicas, groups[rank])
    else:
        batches = own
    next(batches)
    results.put(("ready", number, 0.0))
    start.wait()
    read[0] = 0
    waits = []
    for _ in range(options.steps):
        asked = time.perf_counter()
        batch = next(batches)
        waits.append((time.perf_counter() - asked) * 1000)
        if options.step_ms:
            time.sleep(options.step_ms / 1000)
        del batch
    results.put(("done", number, (read[0], waits)))
    start.wait()  # measured meanwhile
    if reader is not None:
        reader.close()


def measured(options, way, path, replicas):
    """Bytes read per byte, CPU seconds per 1,000 rows, MiB, mean ms and 99th percentile."""
    context = multiprocessing.get_context("spawn")
    results, start = context.Queue(), context.Barrier(PROCESSES + 1)
    broker = penstock.broker(workers=options.workers) if way == "penstock" else None
    address = broker.socket if broker else f"tcp://127.0.0.1:{free_port()}"
    try:
        started = [context.Process(
            target=process, args=(options, way, path, address, number, replicas, results,
                                  start), daemon=True) for number in range(PROCESSES)]
        for each in started:
            each.start()
        pids = [each.pid for each in started]
        if broker:
            pids.append(int(asked(broker)["broker"]["pid"]))
        taken(results, "ready")
        before = [cpu_s(pid) for pid in pids]
        bytes_before = bytes_read(broker)
        start.wait()
        done = taken(results, "done")
        cpu = sum(cpu_s(pid) - was for pid, was in zip(pids, before))
        memory = pss_mib(pids)
        read = bytes_read(broker) - bytes_before + sum(each[0] for each in done)
        start.wait()
        for each in started:
            each.join(60)
    finally:
        for each in started:
            each.kill()
        if broker:
            broker.stop()
    rows = options.steps * options.batch
    waits = sorted(wait for _, of_process in done for wait in of_process)
    return (read / (rows * RECORD_BYTES[options.data]), cpu / rows * 1000, memory,
            statistics.mean(waits), waits[int(0.99 * (len(waits) - 1))])


def taken(results, what):
    found = [results.get(timeout=300) for _ in range(PROCESSES)]
    assert {each[0] for each in found} == {what}, found
    return [each[2] for each in found]


def asked(broker):
    command = pathlib.Path(penstock.__file__).parent / "bin" / "penstock"
    return json.loads(subprocess.run(
        [command, "status", "--json", "--socket", broker.socket], check=True,
        capture_output=True).stdout)


def bytes_read(broker):
    return asked(broker)["jobs"][0]["bytes_read"] if broker else 0


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def make_file(path, options):
    rng = np.random.default_rng(0)
    with open(path, "wb") as file:
        for _ in range(options.rows):
            file.write(rng.integers(0, 256, RECORD_BYTES[options.data], np.uint8))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=sorted(RECORD_BYTES), default="records")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=64, help="rows of all ranks")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=20)
    parser.add_argument("--workers", type=int, default=2, help="of the broker")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--replicas", nargs="+", type=int, choices=(8, 4, 2, 1),
                        default=(8, 4, 2, 1), help="processes of a group")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--json", action="store_true", help="all runs, not medians")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.bin")
        make_file(path, options)
        for _ in range(options.runs):
            for replicas in options.replicas:
                for way in options.ways:
                    found.setdefault((replicas, way), []).append(
                        measured(options, way, path, replicas))
    if options.json:
        print(json.dumps([[replicas, way, runs] for (replicas, way), runs in found.items()]))
        return
    print(f"{options.data}, global batches of {options.batch}, {options.runs} runs of "
          f"{options.steps} steps of {options.step_ms:g} ms; medians")
    print(f"{'groups':8} {'way':10} {'read':>6} {'CPU s':>8} {'MiB':>8} {'ms':>8} {'p99':>8}")
    for (replicas, way), runs in found.items():
        read, cpu, memory, mean, late = map(statistics.median, zip(*runs))
        print(f"{PROCESSES // replicas} x {replicas:<4} {way:10} {read:6.2f} {cpu:8.3f} "
              f"{memory:8.0f} {mean:8.2f} {late:8.2f}", flush=True)


if __name__ == "__main__":
    main()
