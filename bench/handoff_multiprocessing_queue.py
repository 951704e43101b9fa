#!/usr/bin/env python3
"""The cost of handing bytes to another process through multiprocessing.Queue.

Part of handoff_benchmark, which runs it and merges what it prints: the p50 in
nanoseconds of half a round trip through two queues, each process pinned to a
processor of its own; with --asleep of the time from before put until get has
returned in the other process, which the kernel shows asleep before.

    bench/handoff_multiprocessing_queue.py --cpus 0,1 --bytes 4096 --count 500
"""
import argparse
import multiprocessing
import os
import statistics
import time

ASLEEP_NS = 50_000  # between the peer's falling asleep and put


def echo(cpu, inbox, outbox, payload, asleep):
    """Answers each batch; None ends it."""
    os.sched_setaffinity(0, {cpu})
    while inbox.get() is not None:
        outbox.put(time.monotonic_ns() if asleep else payload)


def wait_until_asleep(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        while stat.read().rpartition(")")[2].split()[0] != "S":
            stat.seek(0)
    ready = time.monotonic_ns() + ASLEEP_NS
    while time.monotonic_ns() < ready:
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpus", required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--asleep", action="store_true")
    options = parser.parse_args()
    here, there = map(int, options.cpus.split(","))

    payload = bytes(options.bytes)
    outbox, inbox = multiprocessing.Queue(), multiprocessing.Queue()
    peer = multiprocessing.Process(
        target=echo, args=(there, outbox, inbox, payload, options.asleep),
        daemon=True)
    peer.start()
    os.sched_setaffinity(0, {here})
    samples = []
    for i in range(options.count + 1):
        if options.asleep:
            wait_until_asleep(peer.pid)
        begin = time.monotonic_ns()
        outbox.put(payload)
        answer = inbox.get()
        if i == 0:
            continue  # starts the threads that feed the queues
        if options.asleep:
            samples.append(answer - begin)
        else:
            samples.append((time.monotonic_ns() - begin) / 2)
    outbox.put(None)
    peer.join()
    print(statistics.median(samples))


if __name__ == "__main__":
    main()
