"""One run of one peer: starts its processes, waits until it is warm, measures
it for a while, ends it.

Method: consumers take batches without end; the driver measures a window of time,
so that neither a start nor an end is in it, and what was made ahead at the
window's begin is made ahead at its end too. A consumer's rate is taken between
the last batch before the window and the last one in it. CPU time is that of
every descendant of this process (the peer's servers, workers and consumers,
alive or reaped by their parents), memory the sum of their proportional set
sizes, both from /proc. Run by bench/peers.py.
"""

import ctypes
import json
import math
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
KILL_AFTER_S = 3  # given to a peer to end by itself before it is killed


class PeerFailed(Exception):
    """The peer cannot be measured; the message has its last lines."""


def run(main):
    """A benchmark's main: ended from outside, it still ends what it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    adopt_orphans()
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)


SPARED = set()  # children of the driver that are no part of any run


def adopt_orphans():
    """What loses its parent becomes this process's child: still in sight."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_driver():
    """In a child: a driver that is killed leaves nothing behind."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def descendants():
    """{pid: CPU seconds, with those of children it has reaped} of all
    descendants of this process."""
    children, cpu = {}, {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8",
                      errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        children.setdefault(int(fields[1]), []).append(int(entry))
        cpu[int(entry)] = sum(map(int, fields[11:15])) / TICKS_PER_S
    found, pids = {}, [os.getpid()]
    while pids:
        for pid in children.get(pids.pop(), []):
            if pid not in SPARED:
                found[pid] = cpu[pid]
                pids.append(pid)
    return found


class Memory:
    """Bytes of processes, as proportional set sizes: `pss`, and of that `held`, what is
    not mapped from files, which the kernel would drop at need."""

    def __init__(self, pids=()):
        self.pss = self.held = 0
        for pid in pids:
            try:
                with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
                    for line in file:
                        key, _, value = line.partition(":")
                        if key == "Pss":
                            self.pss += int(value.split()[0]) * 1024
                        elif key in ("Pss_Anon", "Pss_Shmem"):
                            self.held += int(value.split()[0]) * 1024
            except OSError:
                continue


class Consumer:
    def __init__(self):
        self.pid = None
        self.first = None
        # (when, samples so far, places for items in them, items)
        self.times = [(0.0, 0, 0, 0)]

    def before(self, moment):
        """The entry of the last batch before the moment."""
        return next(entry for entry in reversed(self.times)
                    if entry[0] <= moment)

    def since(self, moment):
        """Batches after the moment."""
        return sum(entry[0] > moment for entry in self.times)


class Run:
    """One run; use in a `with`, which ends all that was started."""

    def __init__(self, config, log_path, time_limit_s):
        self.config = config
        self.log_path = log_path
        self.log = open(log_path, "wb")
        self.time_limit_s = time_limit_s
        self.started = time.monotonic()
        self.processes = []
        self.consumers = []
        self.serving = None
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if os.path.exists(config["socket"]):
            os.unlink(config["socket"])
        self.listener.bind(config["socket"])
        self.listener.listen(64)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.connections = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for connection in list(self.connections):
            connection.close()
        self.listener.close()
        self.selector.close()
        self.end_processes()
        self.log.close()

    def start(self, command, environment=None):
        self.processes.append(subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=self.log, preexec_fn=end_with_driver,
            env={**os.environ, **(environment or {})}))

    def end_processes(self):
        for process in self.processes:
            process.terminate()
        end = time.monotonic() + KILL_AFTER_S
        for process in self.processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        while left := descendants():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass
            time.sleep(0.01)

    def last_lines(self, count=12):
        self.log.flush()
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            text = "".join(file.readlines()[-count:]).rstrip()
        # Where Python's files are is this machine's affair.
        return re.sub(r"(/[^\s\"':]+)?/(?=[^/\s\"':]+\.py\b)", "", text)

    def how_it_ended(self):
        """Of the first process that has."""
        end = time.monotonic() + 2
        while time.monotonic() < end:
            for process in self.processes:
                if (status := process.poll()) is not None:
                    return (f"with status {status}" if status >= 0 else
                            f"by {signal.Signals(-status).name}")
            time.sleep(0.05)
        return "in part"

    def fail(self, why):
        raise PeerFailed(f"{why}\n{self.last_lines()}")

    def listen(self, wait_s):
        """Takes in what the consumers say, for wait_s at most."""
        for key, _ in self.selector.select(wait_s):
            if key.fileobj is self.listener:
                connection, _ = self.listener.accept()
                self.connections[connection] = [b"", None]
                self.selector.register(connection, selectors.EVENT_READ)
                continue
            state = self.connections[key.fileobj]
            data = key.fileobj.recv(1 << 16)
            if not data:
                self.selector.unregister(key.fileobj)
                self.fail(f"a process of it ended {self.how_it_ended()}")
            *lines, state[0] = (state[0] + data).split(b"\n")
            for line in lines:
                self.take(state, json.loads(line))

    def take(self, state, event):
        kind = event["event"]
        if kind == "serving":
            self.serving = event["info"]
        elif kind == "imported":
            state[1] = Consumer()
            state[1].pid = event["pid"]
            self.consumers.append(state[1])
        elif kind == "first":
            state[1].first = event["batch"]
        elif kind == "batch":
            state[1].times.append((event["t"], event["samples"],
                                   event.get("cells", 0), event.get("items", 0)))

    def wait(self, what, condition):
        end = time.monotonic() + self.time_limit_s
        while not condition():
            if any(process.poll() is not None for process in self.processes):
                self.fail(f"a process of it ended {self.how_it_ended()}")
            if time.monotonic() > end:
                self.fail(f"no {what} within {self.time_limit_s:.0f} s")
            self.listen(0.05)

    def listen_until(self, moment):
        while (left := moment - time.monotonic()) > 0:
            self.listen(left)

    def begin(self):
        """All consumers wait with their libraries imported: what they take is
        not the loader's."""
        self.wait("consumers",
                  lambda: len(self.consumers) == self.config["consumers"])
        imported = Memory(consumer.pid for consumer in self.consumers)
        for connection, state in self.connections.items():
            if state[1] is not None:
                connection.sendall(b"begin\n")
        return imported

    def first_batches(self, memory_limit):
        """What the start takes, from libraries that are imported to the first batch of
        every consumer; more memory than memory_limit bytes is a failure."""
        imported = self.begin()
        begun, cpu_before = time.monotonic(), descendants()
        most, look = 0, begun

        def there():
            nonlocal most, look
            if (now := time.monotonic()) >= look:
                most = max(most, Memory(descendants()).pss)
                if most > memory_limit:
                    self.fail(f"more than {memory_limit / 1e9:.0f} GB of memory")
                # Looking stops who is looked at: seldom, if it takes long.
                end = time.monotonic()
                look = end + max(0.2, 10 * (end - now))
            return all(len(c.times) > 1 for c in self.consumers)

        self.wait("first batch of every consumer", there)
        cpu_after = descendants()
        # Consumers would go on to map more of their files; and a child that has just
        # been forked would take half of its parent's memory with it.
        for consumer in self.consumers:
            os.kill(consumer.pid, signal.SIGSTOP)
        time.sleep(0.5)
        memory = Memory(descendants())
        for consumer in self.consumers:
            os.kill(consumer.pid, signal.SIGCONT)
        return {
            "first_batch_s": max(c.times[1][0] for c in self.consumers) - begun,
            "cpu_s": sum(cpu_after.values()) - sum(cpu_before.values()),
            "pss_bytes": memory.pss - imported.pss,
            "held_bytes": memory.held - imported.held,
            "most_pss_bytes": max(most, memory.pss) - imported.pss,
            "first_batch": self.consumers[0].first,
        }

    def passes(self, records, count, sent):
        """What each of so many passes over the records takes, of one consumer, from
        libraries that are imported; sent(): what the store has sent, (bytes, requests)."""
        self.begin()
        now, found = time.monotonic(), []
        times, counts, cpu = [now], [sent()], [sum(descendants().values())]
        consumer, = self.consumers
        items = 0
        for number in range(1, count + 1):
            end = number * records
            self.wait(f"end of pass {number}", lambda: consumer.times[-1][1] >= end)
            counts.append(sent())
            cpu.append(sum(descendants().values()))
            last = next(entry for entry in consumer.times if entry[1] >= end)
            times.append(last[0])
            found.append({
                "seconds": times[-1] - times[-2],
                "sent_bytes": counts[-1][0] - counts[-2][0],
                "requests": counts[-1][1] - counts[-2][1],
                "cpu_s": cpu[-1] - cpu[-2],
                # Each record once.
                "samples": last[1], "labels": last[3] - items})
            items = last[3]
        return {"start_s": now - self.started,
                "first_batch_s": consumer.times[1][0] - now,
                "first_batch": consumer.first, "passes": found}

    def measure(self, warmup_s, warmup_batches, window_s):
        imported = self.begin()
        begun = time.monotonic()
        self.wait("first batch of every consumer",
                  lambda: all(len(c.times) > 1 for c in self.consumers))
        start_s = max(c.times[1][0] for c in self.consumers) - self.started
        self.listen_until(time.monotonic() + warmup_s)
        self.wait("end of the warm-up",
                  lambda: all(len(c.times) > warmup_batches
                              for c in self.consumers))
        cpu_before, from_t = descendants(), time.monotonic()
        self.listen_until(from_t + window_s)
        # A slow peer's window is longer: a rate from one batch is none.
        self.wait("second batch in the window",
                  lambda: all(c.since(from_t) >= 2 for c in self.consumers))
        cpu_after, to_t = descendants(), time.monotonic()
        memory = Memory(cpu_after)
        rate, cells, items = 0.0, 0, 0
        for consumer in self.consumers:
            begin, end = consumer.before(from_t), consumer.before(to_t)
            seconds, samples, more_cells, more_items = (
                last - first for first, last in zip(begin, end))
            rate += samples / seconds
            cells += more_cells
            items += more_items
        cpu_s = sum(cpu_after.values()) - sum(cpu_before.values())
        return {
            "samples_per_s": rate,
            # The part of a batch that is none of its samples'.
            "padding": (1 - items / cells if cells and self.config["lengths"]
                        else None),
            "cpu_s_per_1k": cpu_s / (rate * (to_t - from_t)) * 1000,
            "cores": cpu_s / (to_t - from_t),
            "pss_bytes": memory.pss,
            "loader_pss_bytes": memory.pss - imported.pss,
            "loader_held_bytes": memory.held - imported.held,
            "window_s": to_t - from_t,
            "start_s": start_s,
            "first_batch_s": start_s - (begun - self.started),
            "first_batch": self.consumers[0].first,
        }


def ratio(values, base):
    """(mean, spread) of values over base, run by run: the runs are interleaved,
    so that what disturbs the machine for a while disturbs both. The spread is
    the standard deviation. Runs in which nothing of the base came are left out."""
    ratios = [value / other for value, other in zip(values, base) if other] or [math.nan]
    return (statistics.mean(ratios),
            statistics.stdev(ratios) if len(ratios) > 1 else 0.0)
