#!/usr/bin/python3
"""Question: how fast do records come from an object store, beside other loaders, in the
first epoch, and in the second with room for all or for half of the data; and what is
downloaded for it?

Method: a store (peers/store.py: HTTP and S3) in a network namespace of its own, behind a
veth pair. tbf on its side is the bandwidth; each of its answers begins --latency late.
One consumer takes shuffled batches of records of random bytes, and only reads them;
shards are tar, MDS or LitData's chunks of the same records. Time runs from imported
libraries (`start`: of the process till then), the first epoch's to its last batch, so
that opening counts. Two runs of a peer: with room for all, and for half of the data;
the second epoch is shown of both. One that keeps nothing runs once. Bytes are those that
the store has sent, over the bytes of the records. CPU seconds are of all processes but
the store. A peer's settings are chosen by a run with room for all, the fastest first
epoch wins. Then all run in turn, in another order each time, --runs times; × is how many
times better Penstock is, run by run. The link is measured by one plain download in each
turn.

Isolation: one run at a time, from an empty cache, processes of its own; local copies may
stay in the page cache.

Limits: latency is of answers, not of packets: TCP starts fast. 600 MB are a small set: a
cache of half is of 24 shards of 12.5 MB. Shuffles differ: Penstock's is
of all records, Streaming's of blocks of an eighth, LitData's of chunks and within, the
others' of shards and a buffer of 500. All consumers are Python.

    sudo bench/remote.py --python VENV/bin/python        # VENV: penstock and obstore

needs root for the namespace. Other loaders' virtual environments are made under --venvs.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request

import peers
from peers import ratio_text, say, settings_text

import common  # noqa: E402  peers.py has made their folder known
import measure  # noqa: E402
import store  # noqa: E402

PEERS = {
    # title (its own), module, what it reads
    "penstock": ("", "penstock_remote", "indexed"),
    "penstock-scan": ("Penstock, no index", "penstock_remote", "tar"),
    "penstock-mds": ("Penstock, MDS", "penstock_remote", "mds"),
    "penstock-local": ("Penstock, local files", "penstock_remote", "tar"),
    "streaming": ("", "streaming_remote", "mds"),
    "litdata": ("", "litdata_remote", "litdata"),
    "webdataset": ("", "web_dataset_remote", "tar"),
    "hugging-face": ("", "hugging_face_remote", "tar"),
    "fsspec": ("", "torch_remote", "tar"),
    "s3-connector": ("", "s3_connector_remote", "tar"),
}
ROOMS = ["all", "half"]
BUCKET = "data"
LINK_BYTES = 100_000_000  # of the plain download
BURST = "512kb"
WAIT = "400ms"  # what may queue in the shaper
PASSES = 2


def command(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


@contextlib.contextmanager
def link(mbit):
    """(address of the store, the command that starts it) of a shaped link."""
    name, pid = f"penstock{os.getpid()}", os.getpid()
    # RFC 2544 keeps these addresses for benchmarks.
    net = f"198.18.{pid >> 6 & 255}.{(pid & 63) << 2}".rpartition(".")
    ours, theirs = (f"{net[0]}.{int(net[2]) + host}" for host in (1, 2))
    try:
        command("ip", "netns", "add", name)
        command("ip", "link", "add", name, "type", "veth", "peer", "name", "store",
                "netns", name)
        command("ip", "addr", "add", f"{ours}/30", "dev", name)
        command("ip", "link", "set", name, "up")
        command("ip", "-n", name, "addr", "add", f"{theirs}/30", "dev", "store")
        command("ip", "-n", name, "link", "set", "store", "up")
        command("tc", "-n", name, "qdisc", "add", "dev", "store", "root", "tbf", "rate",
                f"{mbit}mbit", "burst", BURST, "latency", WAIT)
        yield theirs, ["ip", "netns", "exec", name]
    except OSError as error:
        sys.exit(f"no shaped link: {error}\n(it needs root, and ip and tc of iproute2)")
    finally:
        for words in (["link", "del", name], ["netns", "del", name]):
            subprocess.run(["ip", *words], capture_output=True)


@contextlib.contextmanager
def serving(options, work):
    """Sets where the store is in the options; yields its counters."""
    with (contextlib.nullcontext(("127.0.0.1", [])) if options.tiny
          else link(options.mbit)) as (address, inside):
        counters = store.Counters(work / "counters", create=True)
        process = subprocess.Popen(
            [*inside, sys.executable, peers.PARTS / "store.py", address, "0",
             str(options.folder), str(options.latency_ms / 1e3), work / "counters"],
            stdout=subprocess.PIPE, text=True, preexec_fn=measure.end_with_driver)
        measure.SPARED.add(process.pid)
        try:
            port = process.stdout.readline().strip()
            if not port:
                sys.exit("the store does not start: see above")
            options.endpoint = f"http://{address}:{port}"
            yield counters
        finally:
            process.kill()
            process.wait()


def link_rate(options):
    """MB/s of one plain download, from its first byte."""
    with urllib.request.urlopen(f"{options.endpoint}/{BUCKET}/link") as answer:
        first = len(answer.read(1 << 16))
        begun, size = time.monotonic(), 0
        while part := answer.read(1 << 18):
            size += len(part)
    assert first + size == LINK_BYTES, first + size
    return size / 1e6 / (time.monotonic() - begun)


def make_shards(folder, options):
    """Tar shards of records of random bytes, in order."""
    draw = random.Random(common.SEED)
    each = options.records // options.shards
    folder.mkdir(parents=True)
    for shard in range(options.shards):
        with tarfile.open(folder / f"train-{shard:03}.tar", "w",
                          format=tarfile.USTAR_FORMAT) as tar:
            for number in range(shard * each, (shard + 1) * each):
                for kind, value in (("cls", str(number).encode()),
                                    ("bin", draw.randbytes(options.size))):
                    about = tarfile.TarInfo(f"{number:08}.{kind}")
                    about.size = len(value)
                    tar.addfile(about, io.BytesIO(value))


class Case:
    """A peer, and what came of its runs."""

    def __init__(self, name):
        self.name = name
        self.local = name == "penstock-local"
        title, module, self.form = PEERS[name]
        self.peer = peers.Peer(name, module)
        self.title = title or self.peer.title
        self.settings = None
        self.runs = {}  # room: [result]
        self.why = {}  # room: why it has none

    @property
    def keeps(self):
        return self.peer.module.KEEPS

    def rooms(self, asked=ROOMS):
        """That it is run with; what keeps nothing needs one run for both."""
        if self.local or self.keeps is None:
            return ["all"]
        return [room for room in ROOMS if room in asked]

    def run(self, options, work, counters, room, settings, passes=PASSES):
        cache = work / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        size = options.records * options.size
        names = [f"train-{shard:03}.tar" for shard in range(options.shards)]
        at = f"{options.folder if self.local else options.endpoint}/{BUCKET}"
        keep = size if room == "all" else size // 2
        config = {
            "workload": "divided", "consumers": 1, "settings": settings, "lengths": True,
            "batch": options.batch, "records": options.records, "size": options.size,
            "bytes": size, "keep": keep,
            "endpoint": options.endpoint, "bucket": BUCKET, "bucket_at": at,
            "form": self.form, "names": names,
            "shards": [f"{at}/tar/{name}" for name in names],
            "cache": str(cache), **peers.places(options, work),
            "touch": str(work / "libpeers_touch.so")}
        with measure.Run(config, options.log / f"{self.name}-{room}.log",
                         options.limit) as run:
            self.peer.start(run, config)
            result = run.passes(options.records, passes, counters.read)
            used = sum(path.stat().st_blocks * 512 for path in cache.rglob("*")
                       if path.is_file()) if cache.exists() else 0
        result["kept_bytes"] = used
        self.check(result, options)
        return result

    def check(self, result, options):
        """Each record came once in a pass, as it is."""
        first, wanted = result["first_batch"], options.records * (options.records - 1) // 2
        if first["shape"] != [options.batch, options.size] or first["dtype"] != "uint8":
            raise measure.PeerFailed(f"a batch of {first}")
        for number, each in enumerate(result["passes"], 1):
            if (each["samples"], each["labels"]) != (number * options.records, wanted):
                raise measure.PeerFailed(
                    f"pass {number} has not each record once: {each['samples']} by its "
                    f"end, labels add up to {each['labels']}, wanted {wanted}")

    def choose(self, options, work, counters):
        candidates = self.peer.module.settings(1)
        if options.tiny or len(candidates) == 1:
            self.settings = candidates[-1]
            return
        best, why = None, None
        for settings in candidates:
            try:
                result = self.run(options, work, counters, "all", settings, passes=1)
            except measure.PeerFailed as failure:
                why = str(failure)
                continue
            seconds = result["passes"][0]["seconds"]
            if best is None or seconds < best:
                best, self.settings = seconds, settings
        if best is None:
            self.why = {room: why for room in self.rooms()}

    def passes(self, room, number):
        """Of its runs."""
        runs = self.runs.get(room if room in self.rooms() else "all", [])
        return [run["passes"][number] for run in runs]

    def rates(self, options, room, number):
        return [options.records * options.size / 1e6 / each["seconds"]
                for each in self.passes(room, number)]


def mean(values):
    values = list(values)
    return statistics.mean(values)


def cpu_seconds(passes):
    """At least a tick of the kernel's clock."""
    return [max(each["cpu_s"], 1 / measure.TICKS_PER_S) for each in passes]


def print_lines(lines):
    widths = [max(len(line[i]) for line in lines if len(line) > 2 or i == 0)
              for i in range(len(lines[0]))]
    for line in lines:
        say("  ".join([line[0].ljust(widths[0])] + (
            [line[1]] if len(line) == 2 else
            [text.rjust(width) for text, width in zip(line[1:], widths[1:])])).rstrip())


def print_table(title, cases, options, room, number):
    """What a pass takes in runs with this room."""
    size = options.records * options.size
    ours = next((case for case in cases if case.name == "penstock"), None)
    say(f"\n{title}")
    lines = [("", "s", "MB/s", "×", "sent ÷ data", "requests", "CPU s", "×",
              *(["start s", "settings"] if number == 0 else ["on disk"]))]
    for case in cases:
        if case.local and room == "half" and number > 0:
            continue
        rates = case.rates(options, room, number)
        if not rates:
            first, *rest = (case.peer.missing or case.why.get(room, "not run")).splitlines()
            lines.append((case.title, f"{first}: {rest[-1]}" if rest else first))
            continue
        passes = case.passes(room, number)
        cpu = cpu_seconds(passes)
        runs = case.runs[room if room in case.rooms() else "all"]
        base = ours and ours.passes(room, number)
        kept = mean(run["kept_bytes"] for run in runs) / size
        lines.append((
            case.title, f"{mean(each['seconds'] for each in passes):.2f}",
            f"{mean(rates):.1f}",
            ratio_text(measure.ratio(ours.rates(options, room, number), rates))
            if base else "",
            f"{mean(each['sent_bytes'] for each in passes) / size:.3f}",
            f"{mean(each['requests'] for each in passes):.0f}", f"{mean(cpu):.1f}",
            ratio_text(measure.ratio(cpu, cpu_seconds(base)))
            if base else "",
            *([f"{mean(run['start_s'] for run in runs):.1f}"
               f"+{mean(run['first_batch_s'] for run in runs):.2f}",
               settings_text(case.settings)] if number == 0 else [
                "keeps nothing" if case.keeps is None else
                "has no limit: keeps nothing" if room == "half" and case.keeps == "all"
                else f"{kept:.2f}"])))
    print_lines(lines)


def print_goals(cases, links, options):
    """What Penstock is meant to reach, and whether it did, in words."""
    def goal(what, pair, wanted, most=False):
        reached = pair[0] <= wanted if most else pair[0] >= wanted
        say(f"  {what}: {ratio_text(pair)} ("
            f"{('at most' if most else 'at least') if reached else 'MISSES'} {wanted:g})")

    there = {case.name: case for case in cases}
    say(f"\nthe link: {mean(links):.1f} MB/s")
    local = there.get("penstock-local")
    others = [case for case in cases if not case.name.startswith("penstock")
              and case.rates(options, "half", 1)]
    for ours in cases:
        if not ours.name.startswith("penstock") or ours.local or not ours.runs:
            continue
        say(f"goals of {ours.title}")
        if rates := ours.rates(options, "all", 0):
            goal("first epoch over the link", measure.ratio(rates, links), 0.95)
        if (rates := ours.rates(options, "all", 1)) and local and local.runs:
            goal("second epoch, all kept, over that of local files",
                 measure.ratio(rates, local.rates(options, "all", 1)), 0.95)
        if not (rates := ours.rates(options, "half", 1)):
            continue
        if others:
            best = max(others, key=lambda case: mean(case.rates(options, "half", 1)))
            goal(f"second epoch, half kept, over the best peer's, {best.title}",
                 measure.ratio(rates, best.rates(options, "half", 1)), 1.5)
        sent = [each["sent_bytes"] for each in ours.passes("half", 1)]
        least = options.records * options.size / 2
        goal("bytes of it over the optimum, all that is not kept",
             measure.ratio(sent, [least] * len(sent)), 1.05, most=True)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def path(text):
        return pathlib.Path(text).expanduser().resolve()
    add = parser.add_argument
    add("--python", type=lambda text: pathlib.Path(text).expanduser().absolute(),
        default=sys.executable,
        help="one with the packages penstock and obstore (default: this one)")
    add("--venvs", type=path, default=path("~/.cache/penstock-peers"),
        help="virtual environments, as of peers.py (default: %(default)s)")
    add("--folder", type=path, help="where the data are made and kept "
        "(default: in --venvs)")
    add("--peers", type=lambda text: text.split(","), default=list(PEERS),
        help=f"default: {','.join(PEERS)}")
    add("--rooms", type=lambda text: text.split(","), default=ROOMS,
        help="of all,half (default: both)")
    add("--records", type=int, default=6000, help="default: %(default)s")
    add("--size", type=int, default=100_000, help="bytes (default: %(default)s)")
    add("--shards", type=int, default=48, help="default: %(default)s")
    add("--batch", type=int, default=50, help="default: %(default)s")
    add("--mbit", type=int, default=400, help="the link (default: %(default)s)")
    add("--latency-ms", type=float, default=50, help="default: %(default)s")
    add("--runs", type=int, default=5, help="default: %(default)s")
    add("--limit", type=float, default=300,
        help="seconds until a peer is given up (default: %(default)s)")
    add("--settings", type=path,
        help="a former --json: its settings instead of a sweep")
    add("--json", type=path, help="write all that was measured")
    add("--tiny", action="store_true",
        help="so small that the figures mean nothing, on loopback, without PyPI")
    options = parser.parse_args()
    if options.tiny:
        options.peers = ["penstock", "penstock-scan", "penstock-local"]
        options.records, options.size, options.shards = 200, 20_000, 4
        options.runs, options.latency_ms = 1, 1
    for name in options.peers:
        if name not in PEERS:
            parser.error(f"--peers: no {name}; there are {', '.join(PEERS)}")
    if options.records % options.shards or (options.records // options.shards) % 5:
        parser.error("--records: wanted a multiple of 5 in each shard")
    if set(options.rooms) - set(ROOMS):
        parser.error("--rooms: wanted all, half or both")
    if options.runs < 1:
        parser.error("--runs: wanted 1 or more")
    if not options.tiny and os.geteuid() != 0:
        parser.error("the store's network namespace needs root")
    return options


def make_data(options, cases, logs, tiny):
    """The store's folder: the bucket in the shape of each peer."""
    name = f"remote-{options.records}-{options.size}-{options.shards}"
    options.folder = (tiny if options.tiny else
                      (options.folder or options.venvs) / name)
    bucket = options.folder / BUCKET
    if not (bucket / "tar").exists():
        shutil.rmtree(bucket / "tar.partial", ignore_errors=True)
        make_shards(bucket / "tar.partial", options)
        (bucket / "tar.partial").rename(bucket / "tar")
    with open(bucket / "link", "wb") as file:
        file.truncate(LINK_BYTES)
    for case in cases:
        if case.form != "tar" and (case.form != "mds" or case.name == "streaming"):
            case.peer.prepare(bucket / "tar", bucket, logs)
    for case in cases:
        if not case.peer.missing and not (bucket / case.form).exists():
            case.peer.missing = f"there is no {case.form}: of another peer"
    peers.read_all(bucket)


def measured(options, cases, work):
    """Runs all; returns the rate of the link in each turn."""
    links = []
    with serving(options, work) as counters:
        for case in cases:
            if not case.peer.missing and case.settings is None:
                case.choose(options, work, counters)
        for turn in range(options.runs):
            links.append(link_rate(options))
            # Another one first each time: no peer always follows the same one.
            first = turn % len(cases)
            for case in cases[first:] + cases[:first]:
                for room in case.rooms(options.rooms):
                    if case.peer.missing or room in case.why:
                        continue
                    try:
                        result = case.run(options, work, counters, room, case.settings)
                    except measure.PeerFailed as failure:
                        case.why[room] = str(failure)
                        case.runs.pop(room, None)
                        continue
                    case.runs.setdefault(room, []).append(result)
    return links


def main():
    options = parse_arguments()
    # Any: the store asks for none, its clients do.
    os.environ.update(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret",
                      AWS_DEFAULT_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="penstock-remote-",
                                     dir=options.folder) as work:
        work = pathlib.Path(work)
        options.build = work  # Penstock is a package here
        logs = options.log = work if options.tiny else options.venvs / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        subprocess.run(["c++", "-O2", "-shared", "-fPIC", "-I", peers.HERE.parent,
                        peers.PARTS / "touch.cc", "-o", work / "libpeers_touch.so"],
                       check=True)
        cases = [Case(name) for name in options.peers]
        failed = {}
        former = json.loads(options.settings.read_text()) if options.settings else None
        for case in cases:
            if case.peer.module.VENV is None:
                case.peer.python = options.python
            case.peer.install(options.venvs, logs, failed)
            if former:
                case.settings = next((each["settings"] for each in former["cases"]
                                      if each["name"] == case.name), None)
        make_data(options, cases, logs, work / "store")
        say(f"{peers.machine()}\n{options.records} records of {options.size} bytes in "
            f"{options.shards} shards, batches of {options.batch}; " + (
                "loopback" if options.tiny else f"a link of {options.mbit} Mbit/s, "
                f"{options.latency_ms:g} ms to an answer")
            + f"; mean ± standard deviation of {options.runs} interleaved runs, × is how "
            "many times better Penstock is")
        peers.say_conditions({case.title: case.peer for case in cases}, load)
        links = measured(options, cases, work)
    print_table("first epoch", cases, options, options.rooms[0], 0)
    for room in options.rooms:
        print_table(f"second epoch, room for {room}", cases, options, room, 1)
    print_goals(cases, links, options)
    for case in cases:
        for why in sorted(set(case.why.values())):
            say(f"\n{case.title}: {why}")
    if options.json:
        options.json.write_text(json.dumps({
            "machine": peers.machine(), "load_before": load, "mbit": options.mbit,
            "latency_ms": options.latency_ms, "records": options.records,
            "size": options.size, "shards": options.shards, "batch": options.batch,
            "link_mb_per_s": links,
            "cases": [{"name": case.name, "title": case.title,
                       "versions": case.peer.versions, "settings": case.settings,
                       "missing": case.peer.missing, "runs": case.runs, "why": case.why}
                      for case in cases]}, indent=1))
    if options.tiny and any(case.why or case.peer.missing for case in cases):
        sys.exit("a case failed: see above")


if __name__ == "__main__":
    measure.run(main)
