#!/usr/bin/env python3
"""Question: what would a machine deliver that we do not have (128 cores, 2 nodes,
8 ranks, 4 NVMe), and what saturates there first?

Method: a simulation of what broker/README.md draws, with the costs measured on
this machine. Workers claim chunks of rows under the job's lock, read them,
decode them, and report them under the lock again; the last of a share
publishes it; ranks take a batch, work on it for their step and give the slot
back. The lock, the disks and each node's memory are servers with a queue. A
cache line of the lock's data that another core wrote last costs its transfer. The times
under the lock are instructions (callgrind: a claim 1,450, the end of a chunk 85,
of a share with 4 ranks 6,900) at 2.5 a nanosecond.

What each would allow alone is printed beside what all together give.

What it is for: the lock of a job is the one thing that all workers share.

--hosts asks the same of training hosts whose rows other hosts make: a sum, no
simulation, with the costs of makers.py. A link is one thread for each host.

Limits: no two jobs, no hyper-threads, no frequency that sinks with the load;
memory is charged by bytes, caches are not modelled; decoding costs the same on
every core. Between hosts: no switch that is narrower than its ports, no rows that come late.

    bench/scale_model.py
    bench/scale_model.py --workers 16,32,64 --decode-us 200 --disks 2
    bench/scale_model.py --hosts 1:4,8:32,64:256
"""

import argparse
import collections
import heapq
import itertools
import json
import random


class Server:
    """Serves one after the other, up to `capacity` at a time."""

    def __init__(self, capacity=1):
        self.free_at = [0.0] * capacity
        self.busy = 0.0

    def serve(self, now, seconds):
        """When a request made now is done."""
        begin = max(now, heapq.heappop(self.free_at))
        heapq.heappush(self.free_at, begin + seconds)
        self.busy += seconds
        return begin + seconds


class Host:
    def __init__(self, costs, workers):
        self.costs = costs
        self.workers = workers
        self.lock = Server()
        self.disks = [Server() for _ in range(costs.disks)]
        self.memory = [Server() for _ in range(costs.nodes)]
        self.events = []
        self.order = itertools.count()
        self.random = random.Random(1)
        self.now = 0.0
        self.rows = 0
        self.decoding = 0.0
        # Per rank: rows of its open shares still to claim, batches ready.
        self.open = collections.deque()
        self.free_slots = [costs.slots] * costs.ranks
        self.ready = [0] * costs.ranks
        self.asleep = collections.deque()
        self.hungry = [None] * costs.ranks
        # As ChunkRows and ChunkRowsNow of broker/job/job.cc.
        self.chunk = int(max(1, min(
            costs.chunk_us / costs.decode_us, 4 * 2**20 / costs.row_bytes,
            costs.ranks * costs.batch / (2 * workers), 256)))

    def at(self, when, process):
        heapq.heappush(self.events, (when, next(self.order), process))

    def run(self, seconds):
        for rank in range(self.costs.ranks):
            self.fill(rank)
            self.at(0, self.rank(rank))
        for worker in range(self.workers):
            self.at(0, self.worker(worker % self.costs.nodes))
        while self.events and self.events[0][0] < seconds:
            self.now, _, process = heapq.heappop(self.events)
            when = next(process, None)
            if when is not None:
                self.at(when, process)
        return self

    def fill(self, rank):
        """Opens a share for every free slot, and wakes who claims it."""
        while self.free_slots[rank] > 0:
            self.free_slots[rank] -= 1
            share = {"rank": rank, "claim": self.costs.batch,
                     "left": self.costs.batch}
            self.open.append(share)
        while self.asleep and self.open:
            self.at(self.now + self.costs.wake_us * 1e-6,
                    self.asleep.popleft())

    def locked(self, us):
        lines = self.costs.lock_lines * self.costs.line_ns * 1e-9
        return self.lock.serve(
            self.now, us * 1e-6 + (lines if self.workers > 1 else 0))

    def worker(self, node):
        """A generator of the moments at which it goes on."""
        costs = self.costs
        chunks = collections.deque()  # (share, when its rows are read)
        while True:
            # So many rows are on their way while it decodes.
            while sum(len(rows) for _, rows in chunks) < costs.read_depth:
                yield self.locked(costs.claim_us)
                if not self.open:
                    break
                share = self.open[0]
                rows = min(self.chunk, share["claim"])
                share["claim"] -= rows
                if share["claim"] == 0:
                    self.open.popleft()
                chunks.append((share, [self.read() for _ in range(rows)]))
            if not chunks:  # sleeps, and begins anew when it is woken
                self.asleep.append(self.worker(node))
                return
            share, arrivals = chunks.popleft()
            for arrival in arrivals:
                if arrival > self.now:
                    yield arrival
                bytes_moved = costs.file_bytes + 2 * costs.row_bytes
                moved = self.memory[node].serve(
                    self.now, bytes_moved / costs.memory_bytes_s)
                self.decoding += costs.decode_us * 1e-6
                yield max(moved, self.now + costs.decode_us * 1e-6)
                self.rows += 1
            share["left"] -= len(arrivals)
            last = share["left"] == 0
            yield self.locked(
                costs.finish_us + (costs.advance_us if last else 0))
            if last:
                self.publish(share["rank"])

    def read(self):
        """When a file is there: at once with the share that is cached."""
        if self.random.random() < self.costs.cached:
            return self.now
        disk = self.random.choice(self.disks)
        return disk.serve(
            self.now, self.costs.file_bytes / self.costs.disk_bytes_s
        ) + self.costs.disk_latency_us * 1e-6

    def publish(self, rank):
        self.ready[rank] += 1
        if self.hungry[rank] is not None:
            self.at(self.now + self.costs.wake_us * 1e-6, self.hungry[rank])
            self.hungry[rank] = None

    def rank(self, rank):
        while True:
            if self.ready[rank] == 0:
                self.hungry[rank] = self.rank(rank)
                return
            self.ready[rank] -= 1
            # Reads every byte of its batch, then works.
            bytes_read = self.costs.batch * self.costs.row_bytes
            node = rank * self.costs.nodes // self.costs.ranks
            read = self.memory[node].serve(
                self.now, bytes_read / self.costs.memory_bytes_s)
            yield max(read, self.now + self.costs.step_ms * 1e-3)
            yield self.locked(self.costs.advance_us)
            self.free_slots[rank] += 1
            self.fill(rank)


def alone(costs, host):
    """Samples a second that each part would allow, were it the only one."""
    lines = costs.lock_lines * costs.line_ns * 1e-9
    held = ((costs.claim_us + costs.finish_us) * 1e-6 + 2 * lines +
            (2 * costs.advance_us * 1e-6 + lines) * host.chunk / costs.batch)
    moved = costs.file_bytes + 3 * costs.row_bytes
    step = costs.step_ms * 1e-3
    return {
        "decode": host.workers / (costs.decode_us * 1e-6),
        "lock": host.chunk / held,
        "disks": costs.disks * costs.disk_bytes_s / costs.file_bytes /
                 max(1e-9, 1 - costs.cached),
        "memory": costs.nodes * costs.memory_bytes_s / moved,
        "ranks": costs.ranks * costs.batch / step if step else float("inf"),
    }


def simulate(costs, workers):
    host = Host(costs, workers).run(costs.seconds)
    limits = alone(costs, host)
    seconds = costs.seconds
    return {
        "workers": workers,
        "samples_per_s": host.rows / seconds,
        "use": {
            "decode": host.decoding / seconds / workers,
            "lock": host.lock.busy / seconds,
            "disks": sum(d.busy for d in host.disks) / seconds / costs.disks,
            "memory": sum(m.busy for m in host.memory) / seconds / costs.nodes,
        },
        "alone": limits,
        "first": min(limits, key=limits.get),
    }


def between_hosts(costs, training, makers):
    """Rows a second of all training hosts together that each part would allow."""
    receive, decode = costs.receive_us * 1e-6, costs.decode_us * 1e-6

    def with_remote(rows):
        """What comes from others, in rows a second of one training host, and what its
        processors make beside receiving it."""
        rows = min(rows, costs.training_cores / receive)
        return training * (rows + (costs.training_cores - rows * receive) / decode)

    network = costs.network_gbit_s * 1e9 / 8 / costs.row_bytes
    # An ask waits for the links and for a row to be made; 1.5 answers are under way.
    answer = decode + costs.ask_rows * (costs.serve_us + costs.use_us) * 1e-6
    return {
        "training hosts' processors": with_remote(float("inf")),
        "training hosts' links": with_remote(1e6 / costs.use_us),
        "training hosts' networks": with_remote(network),
        "places for rows": with_remote(costs.places / (1.5 * answer)),
        "makers' processors": with_remote(makers / training * costs.maker_cores /
                                          (decode + costs.send_us * 1e-6)),
        "makers' links": with_remote(makers / training * 1e6 / costs.serve_us),
        "makers' networks": with_remote(makers / training * network),
    }


def print_between_hosts(costs):
    for pair in costs.hosts.split(","):
        training, makers = map(int, pair.split(":"))
        limits = between_hosts(costs, training, makers)
        first = min(limits, key=limits.get)
        print(f"\ntraining hosts: {training}, that make rows: {makers}: "
              f"{limits[first]:,.0f} rows/s, {limits[first] / training:,.0f} of a training "
              f"host; first to saturate: {first}\n  connections of a maker: {4 * training} of 256")
        for part, limit in sorted(limits.items(), key=lambda item: item[1]):
            print(f"  {part:27} {limit:>13,.0f} rows/s")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--workers", default="1,2,16,32,64,120", help="numbers, with commas")
    add("--ranks", type=int, default=8)
    add("--nodes", type=int, default=2)
    add("--disks", type=int, default=4)
    add("--batch", type=int, default=256, help="rows of a rank's step")
    add("--slots", type=int, default=4, help="per rank")
    add("--step-ms", type=float, default=0, help="of a rank; 0: it drains")
    add("--decode-us", type=float, default=600,
        help="of a row, transforms included (decode_benchmark)")
    add("--chunk-us", type=float, default=500,
        help="of rows that a worker claims at once")
    add("--claim-us", type=float, default=0.6, help="lock held, of a chunk")
    add("--finish-us", type=float, default=0.05, help="lock held, of a chunk")
    add("--advance-us", type=float, default=5.5,
        help="lock held, to publish a share or take a slot back (8 ranks)")
    add("--lock-lines", type=int, default=12,
        help="cache lines that the last holder wrote")
    add("--line-ns", type=float, default=100, help="a line's way, other core")
    add("--wake-us", type=float, default=10)
    add("--read-depth", type=int, default=16,
        help="rows that a worker has claimed")
    add("--file-bytes", type=float, default=70e3)
    add("--row-bytes", type=float, default=224 * 224 * 3)
    add("--memory-bytes-s", type=float, default=200e9, help="of a node")
    add("--disk-bytes-s", type=float, default=6e9,
        help="of one, with files of this size")
    add("--disk-latency-us", type=float, default=90)
    add("--cached", type=float, default=0, help="share of the files")
    add("--seconds", type=float, default=1, help="simulated")
    add("--hosts", metavar="TRAINING:MAKERS,...",
        help="hosts whose rows others make, instead")
    add("--training-cores", type=int, default=16, help="of a training host, for data")
    add("--maker-cores", type=int, default=64, help="of another host")
    add("--network-gbit-s", type=float, default=100, help="of a host")
    add("--receive-us", type=float, default=132,
        help="CPU time of a training host to have a row of another (makers.py)")
    add("--use-us", type=float, default=54, help="of it, of the link")
    add("--send-us", type=float, default=112,
        help="CPU time of another host to send a row, beside making it (makers.py)")
    add("--serve-us", type=float, default=92, help="of it, of the link")
    add("--ask-rows", type=int, default=6, help="of 1 MiB")
    add("--places", type=int, default=891, help="for rows of other hosts, of 128 MiB")
    add("--json", action="store_true")
    costs = parser.parse_args()
    if costs.hosts:
        print_between_hosts(costs)
        return
    results = [simulate(costs, int(count)) for count in costs.workers.split(",")]
    if costs.json:
        print(json.dumps(results))
        return
    print(f"{'workers':>7} {'samples/s':>10} {'x one':>6}   "
          "busy: decode  lock  disks  memory   first to saturate")
    for each in results:
        use = each["use"]
        factor = each["samples_per_s"] / results[0]["samples_per_s"]
        print(f"{each['workers']:>7} {each['samples_per_s']:>10,.0f} "
              f"{factor:>6.1f}         {use['decode']:>6.0%} "
              f"{use['lock']:>5.0%} {use['disks']:>6.0%} {use['memory']:>7.0%}"
              f"   {each['first']}")
    print("\nalone, with the most workers:",
          ", ".join(f"{part} {limit:,.0f}/s"
                    for part, limit in results[-1]["alone"].items()
                    if limit != float("inf")))


if __name__ == "__main__":
    main()
