#!/usr/bin/env python3
"""Question: what does Python add? To taking a batch, to a consumer's rate, to a
step of `map`, to a process that makes rows. How much of the rate that functions
alone allow is left where few rows cost much more than the others?

Method: five tables, each of alternatives that run in turn, --runs times, with
the mean and the range of the ratios, turn by turn:

  next()    a batch that is ready: `next` of a Reader, and the release of the one
            before; the median of 32 in a row, after a pause in which the ring
            fills up
  consumer  a Python loop over batches beside `penstock bench`, the same
            synthetic rows of 150 KB, one rank, the broker's two workers
  step      the same NumPy function as a step of `map` in the service and in the
            workers of a torch DataLoader, two processes each; rows of one file.
            Rate and CPU seconds of all processes
  tail      rows of a Python dataset that take 2 ms each (a sleep), 1 in 100 of them
            200 ms: four processes that only call the functions, each taking the
            next row when it has one done; then penstock.torch.DataLoader with four
            processes, and PyTorch's, in order and not. Rows whose function was
            called before the first batch came do not count
  loader    penstock.torch.DataLoader beside PyTorch's, with 0, 2 and 4 workers: how
            long the first batch of a loader takes, and that of its next loop; an
            epoch of cheap samples, of token lists that collate_fn pads, of an
            iterable; of two ranks with so many workers each; and the memory that
            an epoch takes. With 0 workers PyTorch makes the samples in the program
  producer  batches of NumPy rows from one process to another: penstock.producer
            beside multiprocessing.Queue and, where it is installed, iceoryx2; one
            consumer, small rows and large ones. As many as go, and one at a time

Isolation: one thing at a time, a private broker for each table. Limits: two
processors here, so what is made and who takes it share them.

    pip install ./client/python torch
    bench/python_benchmark.py
"""

import argparse
import concurrent.futures
import contextlib
import functools
import itertools
import json
import multiprocessing
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time

try:
    import numpy as np
    import penstock
except ImportError as error:
    sys.exit(f"{error}: pip install ./client/python, and run this with that "
             "Python")

SIDE = 224
IMAGE = (SIDE, SIDE, 3)
IMAGE_BYTES = SIDE * SIDE * 3
MODULE = '''
import numpy as np

MEAN = np.array([0.485, 0.456, 0.406], "float32")
STD = np.array([0.229, 0.224, 0.225], "float32")


def augment(row, rng):
    image = row["image"]
    if rng.random() < 0.5:
        image = image[:, ::-1]
    top, left = rng.integers(0, 16, 2)
    image = np.roll(image, (top, left), (0, 1))
    image = (image.astype("float32") / 255 - MEAN) / STD
    return {"image": image, "label": row["label"]}
'''
AUGMENTED = {"image": penstock.TensorSpec(IMAGE, "float32"),
             "label": penstock.TensorSpec((), "int64")}


def cpu_s():
    """Of this process and of the children that it has waited for."""
    total = 0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


class Table:
    """Alternatives in turn; the first is what the others are compared with."""

    def __init__(self, title, unit):
        self.title, self.unit = title, unit
        self.rows = {}

    def add(self, name, run):
        self.rows[name] = (run, [])

    def measure(self, runs):
        for _ in range(runs):
            for run, values in self.rows.values():
                values.append(run())
        return self

    def as_json(self):
        base = next(iter(self.rows.values()))[1]
        rows = []
        for name, (_, values) in self.rows.items():
            ratios = [value / other for value, other in zip(values, base)]
            rows.append({"name": name, "mean": statistics.mean(values),
                         "min": min(values), "max": max(values),
                         "ratio": statistics.mean(ratios),
                         "ratio_min": min(ratios), "ratio_max": max(ratios)})
        return {"table": self.title, "unit": self.unit, "rows": rows}

    def print(self):
        print(f"\n{self.title}, {self.unit}")
        for row in self.as_json()["rows"]:
            spread = f"({row['min']:.4g}-{row['max']:.4g})"
            print(f"  {row['name']:34}{row['mean']:10.4g} {spread:20}"
                  f"{row['ratio']:7.3f} x ({row['ratio_min']:.3f}-"
                  f"{row['ratio_max']:.3f})", flush=True)


# ---- next()

def next_us(groups):
    """Median over groups of 32 calls."""
    dataset = (penstock.Dataset.range(1 << 40).batch(8).prefetch(64))
    times = []
    with penstock.broker(workers=1), penstock.attach(dataset) as reader:
        epoch = next(iter(reader.epochs()))
        batches = iter(epoch)
        batch = next(batches)
        for _ in range(groups):
            time.sleep(0.05)
            for _ in range(32):
                begin = time.perf_counter_ns()
                batch = next(batches)
                times.append(time.perf_counter_ns() - begin)
        del batch, batches, epoch
    return statistics.median(times) / 1000


# ---- consumer

def synthetic(records):
    return {"dataset": "synthetic",
            "source": {"synthetic": {
                "records": records, "cost_us": 0,
                "features": {"image": {"dtype": "uint8",
                                       "shape": list(IMAGE)}}}},
            "batch": {"size": 32}, "prefetch": 4}


def drained(dataset, **options):
    """Samples a second from the first batch on, with a broker of its own."""
    samples, begin = 0, 0
    with penstock.broker(**options), penstock.attach(dataset) as reader:
        for epoch in reader.epochs():
            for batch in epoch:
                samples += batch.rows if begin else 0
                begin = begin or time.perf_counter()
        spent = time.perf_counter() - begin
    return samples / spent


def bench_rate(spec, command):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(spec, file)
        file.flush()
        result = subprocess.run(
            [command, "bench", "--dataset", file.name, "--ranks", "1",
             "--no-touch", "--json"],
            check=True, capture_output=True, text=True)
    return json.loads(result.stdout)["samples_per_s"]


# ---- step

def make_records(path, records):
    """Records of an image and a label, as fixed_length_records has them."""
    rng = np.random.default_rng(1)
    with open(path, "wb") as file:
        for label in range(records):
            file.write(rng.integers(0, 256, IMAGE_BYTES, "uint8").tobytes())
            file.write(np.int64(label).tobytes())


def service_step(folder, records, epochs):
    dataset = (penstock.Dataset.fixed_length_records(
        folder / "records", {"image": {"dtype": "uint8", "shape": IMAGE},
                             "label": {"dtype": "int64", "shape": []}})
        .shuffle(seed=1).map(penstock.python("bench_step:augment", AUGMENTED))
        .batch(32, last="drop").repeat(epochs))
    before = cpu_s()
    rate = drained(dataset, workers=2, python_path=[folder])
    return rate, (cpu_s() - before) / (epochs * records) * 1000


def dataloader_step(folder, records, epochs):
    import torch

    sys.path.insert(0, str(folder))
    import bench_step

    class Records(torch.utils.data.Dataset):
        def __init__(self):
            self.data = np.memmap(folder / "records", np.uint8, "r")

        def __len__(self):
            return records

        def __getitem__(self, i):
            at = i * (IMAGE_BYTES + 8)
            end = at + IMAGE_BYTES
            row = {"image": self.data[at:end].reshape(IMAGE),
                   "label": self.data[end:end + 8].view(np.int64)[0]}
            return bench_step.augment(row, np.random.default_rng(i))

    torch.set_num_threads(1)
    before, samples, begin = cpu_s(), 0, 0
    loader = torch.utils.data.DataLoader(
        Records(), batch_size=32, shuffle=True, num_workers=2,
        persistent_workers=True, drop_last=True)
    for _ in range(epochs):
        for batch in loader:
            if begin:
                samples += len(batch["label"])
            begin = begin or time.perf_counter()
    spent = time.perf_counter() - begin
    del loader
    return samples / spent, (cpu_s() - before) / (epochs * records) * 1000


# ---- tail

class HeavyTail:
    """Row i, after the time that it takes. Each call adds a byte to `calls`."""

    ROW_S = 0.002
    COSTLY = 100  # rows, of which one takes so many times as long

    def __init__(self, records, folder):
        costs = np.full(records, self.ROW_S)
        costs[::self.COSTLY] *= self.COSTLY
        self.costs = np.random.default_rng(1).permutation(costs)
        self.calls = str(folder / "calls")
        pathlib.Path(self.calls).write_bytes(b"")

    def __len__(self):
        return len(self.costs)

    def __getitem__(self, i):
        with open(self.calls, "ab") as calls:
            calls.write(b"1")
        time.sleep(self.costs[i])
        return np.full(16, i, np.float32)


PROCESSES = 4


def functions_alone(records, folder):
    dataset = HeavyTail(records, folder)
    done = multiprocessing.Value("q", 0)

    def call():
        while True:
            with done.get_lock():
                row = done.value
                done.value += 1
            if row >= records:
                return
            dataset[row]

    callers = [multiprocessing.Process(target=call) for _ in range(PROCESSES)]
    begin = time.perf_counter()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return records / (time.perf_counter() - begin)


def tail_rate(make, records, folder):
    dataset = HeavyTail(records, folder)
    rows, begin, called = 0, 0, 0
    for batch in make(dataset, batch_size=32, num_workers=PROCESSES):
        rows += len(batch)
        if not begin:
            begin, called = time.perf_counter(), os.stat(dataset.calls).st_size
        if rows == records:
            return (records - called) / (time.perf_counter() - begin)
    raise AssertionError(f"{rows} rows of {records}")


# ---- loader

class Tokens:
    """Lists of 5 to 300 tokens."""

    def __init__(self, count):
        self.lengths = np.random.default_rng(1).integers(5, 300, count)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        import torch
        return torch.arange(self.lengths[i])


def pad(samples):
    import torch
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def pairs(count):
    import torch
    same = torch.Generator().manual_seed(1)  # on each rank
    return torch.utils.data.TensorDataset(
        torch.randn(count, 3, 8, 8, generator=same), torch.arange(count))


class Numbers:
    """An iterable of so many samples, which the workers divide."""

    def __new__(cls, count):
        from torch.utils import data

        class Divided(data.IterableDataset):
            def __iter__(self):
                worker = data.get_worker_info()
                return iter(range(count) if worker is None else
                            range(worker.id, count, worker.num_workers))
        return Divided()


def loader_of(kind):
    from penstock.torch import DataLoader as PenstockLoader
    from torch.utils.data import DataLoader
    return {"torch": DataLoader, "penstock": PenstockLoader}[kind]


def first_batch_ms(kind, workers, loops):
    """Of the last one of so many loops, each left after its first batch."""
    loader = loader_of(kind)(pairs(1000), batch_size=10, num_workers=workers,
                             shuffle=True)
    for _ in range(loops):
        begin = time.perf_counter()
        next(iter(loader))
    return (time.perf_counter() - begin) * 1000


def epoch_rate(kind, workers, dataset, records, **options):
    """Samples per second, of a second epoch."""
    loader = loader_of(kind)(dataset, batch_size=64, num_workers=workers, **options)
    for _ in range(2):
        begin = time.perf_counter()
        for batch in loader:
            del batch
    return records / (time.perf_counter() - begin)


MARK = "BENCHMARK_MEMORY_OF"


def resident_mib():
    """Of all processes with this one's mark; what they share counts once."""
    mark = f"{MARK}={os.environ[MARK]}\0".encode()
    total = 0
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                total += next(int(line.split()[1]) for line in
                              (process / "smaps_rollup").read_text().splitlines()
                              if line.startswith("Pss:"))
        except (OSError, StopIteration):
            pass
    return total / 1024


def memory_mib(*side):
    """In a process of its own, whose children inherit its mark: others come and go."""
    os.environ[MARK] = str(time.monotonic_ns())
    with concurrent.futures.ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn")) as alone:
        return alone.submit(memory_of_an_epoch, *side).result()


def memory_of_an_epoch(kind, workers, records):
    """In MiB, beside the list of texts that it is over: at its last batch."""
    loader = loader_of(kind)([f"sample {i} " + "x" * 80 for i in range(20 * records)],
                             batch_size=4096, num_workers=workers, shuffle=True)
    before = resident_mib()
    for step, batch in enumerate(loader, 1):
        if step == len(loader):
            return resident_mib() - before
        del batch


def be_a_rank(kind, workers, records):
    """Prints the seconds of a second epoch."""
    from torch.utils import data
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dataset = pairs(records)
    if kind == "torch":
        sampler = data.DistributedSampler(dataset, ranks, rank)
        loader = loader_of(kind)(dataset, batch_size=64, num_workers=workers,
                                 sampler=sampler)
    else:
        loader = loader_of(kind)(dataset, batch_size=64, num_workers=workers * ranks,
                                 shuffle=True)
    for _ in range(2):
        begin = time.perf_counter()
        for batch in loader:
            del batch
    print(time.perf_counter() - begin)


def ranks_rate(kind, workers, records, ranks=2):
    """Samples per second of all ranks, each with so many workers."""
    running = [subprocess.Popen(
        [sys.executable, __file__, "--rank-of", f"{kind},{workers},{records}"],
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks),
             "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)},
        stdout=subprocess.PIPE, text=True) for rank in range(ranks)]
    slowest = max(float(process.communicate()[0]) for process in running)
    return records / slowest


def loader_tables(records, all_workers):
    """ImportError: no torch."""
    loader_of("torch")
    tables = []
    for workers in all_workers:
        for title, unit, run in (
                ("first batch", "ms", lambda *side: first_batch_ms(*side, 1)),
                ("first batch of the next loop", "ms",
                 lambda *side: first_batch_ms(*side, 2)),
                ("cheap samples", "samples/s", lambda *side: epoch_rate(
                    *side, pairs(records), records, shuffle=True)),
                ("padded lists of tokens", "samples/s", lambda *side: epoch_rate(
                    *side, Tokens(records), records, shuffle=True, collate_fn=pad)),
                ("an iterable", "samples/s", lambda *side: epoch_rate(
                    *side, Numbers(records), records)),
                ("two ranks, cheap samples", "samples/s",
                 lambda *side: ranks_rate(*side, records)),
                (f"memory of an epoch over {20 * records} texts", "MiB",
                 lambda *side: memory_mib(*side, records))):
            table = Table(f"num_workers={workers}: {title}", unit)
            for kind in ("torch", "penstock"):
                table.add(f"{kind} DataLoader", functools.partial(run, kind, workers))
            tables.append(table)
    return tables


# ---- producer

ROOM = 8  # batches that may be on their way


class PenstockProducer:
    TITLE = "penstock.producer"
    around = staticmethod(penstock.broker)

    def __init__(self, _, shape, batch):
        self.batch = batch
        self.spec = {"row": penstock.TensorSpec(shape, "uint8")}

    def giver(self):
        with penstock.producer("rows", self.spec, batch=self.batch) as out:
            yield lambda rows: out.put({"row": rows})

    def taken(self, _):
        dataset = penstock.Dataset.stream(self.spec).batch(self.batch).prefetch(ROOM)
        with penstock.attach(dataset, job="rows") as reader:
            for epoch in reader.epochs():
                for rows in epoch:
                    yield rows["row"]


class Queue:
    TITLE = "multiprocessing.Queue"
    around = contextlib.nullcontext

    def __init__(self, context, *_):
        self.queue = context.Queue(ROOM)

    def giver(self):
        yield self.queue.put

    def taken(self, count):
        return (self.queue.get() for _ in range(count))


class Iceoryx2:
    """A publisher and a subscriber that spins. What finds no room is dropped, whatever
    the strategy (0.10.0), so the publisher waits for the count of those taken."""

    TITLE = "iceoryx2, spinning"
    around = contextlib.nullcontext

    def __init__(self, context, shape, batch):
        self.shape, self.name = (batch, *shape), f"penstock-{time.monotonic_ns()}"
        self.done = context.RawValue("q")

    def opened(self):
        import ctypes
        import iceoryx2
        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
        return node, (
            node.service_builder(iceoryx2.ServiceName.new(self.name))
            .publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
            .enable_safe_overflow(False).subscriber_max_buffer_size(ROOM)
            .open_or_create())

    def rows(self, sample):
        view = sample.payload().as_memory_view()
        return np.frombuffer(view, np.uint8).reshape(self.shape)

    def giver(self):
        _node, service = self.opened()
        size = int(np.prod(self.shape))
        publisher = service.publisher_builder().initial_max_slice_len(size).create()
        numbers = itertools.count()

        def put(rows):
            number = next(numbers)
            while number - self.done.value >= ROOM:
                pass
            sample = publisher.loan_slice_uninit(size)
            self.rows(sample)[...] = rows
            if sample.assume_init().send() != 1:
                raise RuntimeError("iceoryx2 dropped a batch")

        while service.dynamic_config.number_of_subscribers == 0:
            time.sleep(0.01)
        yield put
        count = next(numbers)
        while self.done.value < count:  # its samples end with it
            time.sleep(0.01)

    def taken(self, count):
        _node, service = self.opened()
        subscriber = service.subscriber_builder().create()
        for number in range(count):
            while (sample := subscriber.receive()) is None:
                pass
            yield self.rows(sample)
            self.done.value = number + 1


def give(way, shape, batch, count, done):
    """In a process of its own; done: how many have been taken, where each waits for the
    one before and tells when it is put."""
    rows = np.zeros((batch, *shape), "uint8")
    stamp = rows.reshape(-1)[:8].view(np.int64)
    for put in way.giver():
        for number in range(count):
            while done is not None and done.value < number:
                time.sleep(0.001)
            stamp[0] = time.monotonic_ns()
            put(rows)


def end_with(giver):
    """Nothing else wakes who takes: it spins, or waits without a limit."""
    while giver.is_alive():
        time.sleep(0.1)
    if giver.exitcode:
        print(f"the giving process ended with status {giver.exitcode}", file=sys.stderr)
        os._exit(1)


def hand_over(make, shape, batch, count, alone):
    """Batches a second; alone: the median of the microseconds from before put until a
    batch is taken, while no other is on its way."""
    context = multiprocessing.get_context("spawn")
    done = context.RawValue("q") if alone else None
    way = make(context, shape, batch)
    process = context.Process(target=give, args=(way, shape, batch, count, done))
    times, begin = [], 0
    with way.around():
        process.start()
        threading.Thread(target=end_with, args=(process,), daemon=True).start()
        for number, rows in enumerate(way.taken(count), 1):
            if alone:
                stamp = rows.reshape(-1)[:8].view(np.int64)[0]
                times.append((time.monotonic_ns() - stamp) / 1000)
                done.value = number
            begin = begin or time.perf_counter()
            rows[0].sum()
        spent = time.perf_counter() - begin
        del rows
        process.join()
    if alone:
        return statistics.median(times[count // 2:])  # after a warm-up
    return (count - 1) / spent


def producer_tables(tiny):
    ways = [Queue, PenstockProducer]
    try:
        import iceoryx2  # noqa: F401
        ways.append(Iceoryx2)
    except ImportError:
        print("no iceoryx2 (pip install iceoryx2)", file=sys.stderr)
    for shape, batch, count in (((8,), 64, 20_000), (IMAGE, 64, 500)):
        size = batch * int(np.prod(shape))
        for alone, unit in ((False, "batches/s"), (True, "us, put to taken, one at a time")):
            table = Table(f"batches of {batch} rows, {size} bytes", unit)
            shown = (shape, batch, 20 if tiny else count // 4 if alone else count, alone)
            for way in ways:
                table.add(way.TITLE, functools.partial(hand_over, way, *shown))
            yield table


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5,
                        help="of each alternative (default: %(default)s)")
    parser.add_argument("--only", choices=["next", "consumer", "step",
                                           "tail", "loader", "producer"],
                        help="this table")
    parser.add_argument("--tiny", action="store_true",
                        help="so short that the figures mean nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        kind, workers, records = options.rank_of.split(",")
        return be_a_rank(kind, int(workers), int(records))
    runs = 1 if options.tiny else options.runs
    command = os.environ.get("PENSTOCK_COMMAND") or str(
        pathlib.Path(penstock.__file__).parent / "bin" / "penstock")
    tables = []

    def wanted(name):
        return options.only in (None, name)

    if wanted("next"):
        table = Table("next() on a ready batch", "us")
        table.add("next, and the release before it",
                  lambda: next_us(2 if options.tiny else 40))
        tables.append(table)
    if wanted("consumer"):
        spec = synthetic(640 if options.tiny else 200_000)
        table = Table("one consumer of rows of 150 KB", "samples/s")
        table.add("penstock bench (C++)", lambda: bench_rate(spec, command))
        table.add("Python loop", lambda: drained(penstock.Dataset(spec)))
        tables.append(table)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if wanted("step"):
            records, epochs = (96, 1) if options.tiny else (2000, 4)
            (folder / "bench_step.py").write_text(MODULE)
            make_records(folder / "records", records)
            rate = Table("a step in Python, two processes", "samples/s")
            cpu = Table("the same", "CPU s per 1000 samples, start included")
            sides = [("step of map", service_step)]
            try:
                import torch  # noqa: F401
                sides.insert(0, ("torch DataLoader", dataloader_step))
            except ImportError:
                print("no torch: without its DataLoader", file=sys.stderr)
            for name, side in sides:
                found = []

                def run(side=side, found=found):
                    found.append(side(folder, records, epochs))
                    return found[-1][0]
                rate.add(name, run)
                cpu.add(name, lambda found=found: found.pop(0)[1])
            tables += [rate, cpu]
        if wanted("tail"):
            uneven = 1000 if options.tiny else 12_000
            table = Table("rows, 1 % of which cost 100 times the others",
                          "samples/s")
            table.add("the functions alone",
                      lambda: functions_alone(uneven, folder))
            try:
                from penstock.torch import DataLoader as PenstockLoader
                from torch.utils.data import DataLoader
                for name, make in (
                        ("penstock.torch.DataLoader", PenstockLoader),
                        ("torch DataLoader", DataLoader),
                        ("torch DataLoader, out of order",
                         functools.partial(DataLoader, in_order=False))):
                    table.add(name,
                              lambda make=make: tail_rate(make, uneven,
                                                          folder))
            except ImportError:
                print("no torch: only the functions alone", file=sys.stderr)
            tables.append(table)
        if wanted("loader"):
            try:
                tables += (loader_tables(200, [2]) if options.tiny else
                           loader_tables(50_000, [0, 2, 4]))
            except ImportError:
                print("no torch: without the loaders", file=sys.stderr)
        if wanted("producer"):
            tables += producer_tables(options.tiny)
        for table in tables:
            table.measure(runs)
            if not options.json:
                table.print()
    if options.json:
        print(json.dumps([table.as_json() for table in tables]))


if __name__ == "__main__":
    main()
