#!/usr/bin/python3
"""Question: what does Penstock cost and deliver beside what people use
instead, on the same files, with the same transform, batch and consumers, CPU
only? --data says of which files (peers/data.py).

Method: N consumer processes take batches of photographs (random-resized crop
to 224, flip, float16 CHW) and read each cache line of them once. Two
workloads: `divided`, each sample to one consumer, sharded as the peer does it;
`shared`, every consumer needs every sample (hyper-parameter search, collocated
jobs): whatever cannot share runs once per consumer. samples/s is what all
consumers together take. A peer's settings are chosen by a sweep with its
documented ones, per workload and number of consumers, the highest rate wins.
Then all peers run in turn, in another order each time, --runs times; ratios
are taken turn by turn.

Isolation: one peer at a time, each in its own processes, the page cache warm;
a window of a peer that runs already is measured (peers/measure.py), so that
start and end, which have a column of their own, are not in it. Epochs have no
end for the peers. Each peer reads the format it wants, made once from the same
JPEG bytes and not counted.

Limits: consumers do nothing but read, so this is the speed limit of the
loaders, not of training. Peers are Python, Penstock's consumer is C++:
`memory` is of the whole tree with the interpreters, `loader` what came on top
of the imports, and of that, `without files`, what is not mapped from files. Resizing is not the same everywhere: TensorFlow does not
antialias, FFCV averages, SPDL leaves it to FFmpeg's bilinear. Other things on
the machine show in the spread.

    bench/peers.py --build build/dev
    bench/peers.py --build build/dev --data tokens

makes virtual environments under --venvs (6 GB, from PyPI, once), prints a
table, writes --json and the picture --svg. A peer that cannot be had is a row
with the reason. Python 3.11; FFCV needs libopencv-dev libturbojpeg0-dev
pkg-config.
"""

import argparse
import datetime
import importlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PARTS = HERE / "peers"
sys.path.insert(0, str(PARTS))

import chart  # noqa: E402
import common  # noqa: E402
import measure  # noqa: E402
from data import DATA  # noqa: E402

WORKLOADS = ["divided", "shared"]
# What figures must have in common to be shown together.
SAME_TO_RESUME = ["machine", "data", "batch", "dtype", "from", "window_s",
                  "interleaved_runs"]
# Looked up on 2026-11-30, in PyPI and the repositories.
RESTING = {"ffcv": "no commit since May 2024",
           "mosaicml-streaming": "no commit since July 2025"}
PYTHON = "/usr/bin/python3"  # Debian 12's 3.11: all peers have wheels for it


def say(text=""):
    print(text, flush=True)


def say_conditions(peers, load):
    """Whether others use the machine; the versions and notes of {title: peer}."""
    if load > 0.5:
        say(f"others use this machine (load {load:.1f}): do not trust the rates")
    for title, peer in peers.items():
        say(f"  {title}: " + (peer.missing or ", ".join(
            [f"{name} {version}" for name, version in peer.versions.items()]
            + [peer.module.NOTE] + ([peer.rests] if peer.rests else []))))


class Progress:
    """What is being done, on a terminal only."""

    def __init__(self):
        self.shown = sys.stderr.isatty()

    def __call__(self, text):
        if self.shown:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self):
        self("")


class Peer:
    """A peer's module, and whether it can be had here."""

    def __init__(self, name, module):
        self.name = name
        self.module = importlib.import_module(module)
        self.python = PYTHON
        self.versions = {}
        self.missing = None  # why it cannot be had

    @property
    def title(self):
        return self.module.TITLE

    @property
    def rests(self):
        """What is known of its package's development if that has ended, or ""."""
        return next((RESTING[name] for name in self.module.DISTRIBUTIONS
                     if name in RESTING), "")

    def role(self, role, config):
        return [self.python, PARTS / f"{self.module.__name__}.py", role,
                json.dumps(config)]

    def install(self, venvs, logs, failed):
        """Makes its virtual environment when it has to; failed: {environment:
        why} of those that could not be made."""
        if self.module.VENV in failed:
            self.missing = failed[self.module.VENV]
            return
        if self.module.VENV is not None:
            self.python = python_of(self.module.VENV, venvs)
            self.missing = make_environment(self.module.VENV, venvs, logs)
            if self.missing:
                failed[self.module.VENV] = self.missing
                return
        if hasattr(self.module, "PACKAGE"):
            log = logs / f"{self.name}-pip.log"
            if not run_logged([self.python, "-m", "pip", "install", "--quiet",
                               HERE.parent / self.module.PACKAGE], log):
                self.missing = "does not install: " + last_lines(log, 6)
                return
        if not hasattr(self.module, "command"):
            result = subprocess.run(self.role("versions", {}),
                                    capture_output=True, text=True)
            if result.returncode != 0:
                self.missing = ("does not start: "
                                + result.stderr.strip()[-500:])
                return
            self.versions = json.loads(result.stdout)

    def start(self, run, config):
        """Its processes: a server, where it has one, and a consumer each."""
        if hasattr(self.module, "command"):
            run.start(self.module.command(config))
            return
        environment = {"OMP_NUM_THREADS": "1"}
        if hasattr(self.module, "serve"):
            run.start(self.role("serve", config), environment)
            run.wait("answer of its server", lambda: run.serving is not None)
        for rank in range(config["consumers"]):
            mine = {**config, "rank": rank, "server": run.serving}
            run.start(self.role("consume", mine), environment)

    def prepare(self, files, formats, logs):
        """Makes its own format of the files, once."""
        if self.missing or not hasattr(self.module, "prepare"):
            return
        folder = formats / self.module.FORMAT
        if folder.exists():
            return
        partial = formats / (self.module.FORMAT + ".partial")
        subprocess.run(["rm", "-rf", partial], check=True)
        partial.mkdir(parents=True)
        log = logs / f"{self.name}-prepare.log"
        if run_logged(self.role("prepare", {"files": str(files),
                                            "folder": str(partial)}), log):
            partial.rename(folder)
        else:
            self.missing = "cannot make its format: " + last_lines(log, 6)


def python_of(environment, venvs):
    return venvs / environment / "bin" / "python"


def make_environment(environment, venvs, logs):
    """Makes a virtual environment when it has to; returns why it cannot."""
    venv, python = venvs / environment, python_of(environment, venvs)
    requirements = PARTS / "requirements" / f"{environment}.txt"
    stamp = venv / "penstock-requirements.txt"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return None
    log = logs / f"{environment}-pip.log"
    pip = [python, "-m", "pip", "install", "--quiet"]
    for command in ([PYTHON, "-m", "venv", "--clear", venv],
                    pip + ["wheel", "setuptools"], pip + ["-r", requirements]):
        if not run_logged(command, log):
            return "does not install: " + last_lines(log, 6)
    stamp.write_text(requirements.read_text())
    return None


def places(options, work):
    """Of a config: what is the same in every run."""
    return {"build": str(options.build), "venvs": str(options.venvs),
            "folder": str(work), "socket": str(work / "driver"),
            "touch": str(options.build / "bench" / "libpeers_touch.so")}


def run_logged(command, log):
    with open(log, "ab") as file:
        return subprocess.run([str(word) for word in command],
                              stdin=subprocess.DEVNULL, stdout=file,
                              stderr=file).returncode == 0


def last_lines(path, count):
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-count:])


class Comparison:
    """All the runs, and what came of them."""

    def __init__(self, options, peers, work, progress):
        self.options = options
        self.peers = peers
        self.work = work
        self.progress = progress
        self.settings = {}  # (workload, consumers, peer): the chosen ones
        self.sweeps = []
        self.results = {}  # (workload, consumers, peer): [result of each run]
        self.failures = {}  # (workload, consumers, peer): why
        self.repeated = []  # (cell, why) of runs that were repeated
        self.done = {}  # (workload, consumers): when, and what else ran

    def take_over(self, former):
        """What a former run with --json measured, to go on from there."""
        for entry in former["comparisons"]:
            self.done[entry["workload"], entry["consumers"]] = entry
        for row in former["rows"]:
            self.settings[row["workload"], row["consumers"],
                          row["peer"]] = row["settings"]
        for entry in former["runs"]:
            self.results[tuple(entry["cell"])] = entry["runs"]
        for entry in former["failures"]:
            self.failures[tuple(entry["cell"])] = entry["why"]
        self.repeated = [(tuple(entry["cell"]), entry["why"])
                         for entry in former["repeated"]]
        self.sweeps = former["sweeps"]

    def run_once(self, peer, workload, consumers, settings, window_s):
        options = self.options
        module = peer.module
        config = {
            "workload": workload, "consumers": consumers,
            "settings": settings, "batch": options.batch,
            "from": options.begin,
            "dtype": options.dtype, "data": options.data,
            "lengths": DATA[options.data].LENGTHS,
            "files": str(options.files), "photographs": str(options.files),
            "formats": str(options.formats), **places(options, self.work),
        }
        with measure.Run(config, self.work / "log", options.time_limit) as run:
            peer.start(run, config)
            result = run.measure(options.warmup, options.warmup_batches,
                                 window_s)
        self.check(result["first_batch"], getattr(module, "PACKS", False))
        return result

    def check(self, first, packs):
        """All deliver the same kind of batch, of values in the same range."""
        shape, dtype, (low, high) = DATA[self.options.data].wanted(
            self.options.batch, self.options.dtype)
        if packs:  # a row holds several samples
            shape[0] = None
        fits = (len(first["shape"]) == len(shape)
                and all(wanted in (None, found)
                        for wanted, found in zip(shape, first["shape"])))
        if (not fits or first["dtype"] not in dtype.split(" or ")
                or not low < first["mean"] < high or first["std"] == 0
                or (first["labels"] % self.options.batch != 0 and not packs)):
            raise measure.PeerFailed(
                f"wanted batches of {shape} {dtype} with a mean between {low} "
                f"and {high}, found {first}")

    def sweep(self, peer, workload, consumers):
        """Chooses the peer's settings: the highest rate."""
        candidates = peer.module.settings(consumers)
        cell = (workload, consumers, peer.name)
        best, why = None, None
        for settings in candidates:
            self.progress(f"{workload}, {consumers} consumers, {peer.title}: "
                          f"trying {settings}")
            try:
                result = self.run_once(peer, workload, consumers, settings,
                                       self.options.sweep_window)
            except measure.PeerFailed as failure:
                why = str(failure)
                self.sweeps.append({"cell": cell, "settings": settings,
                                    "failure": why})
                continue
            self.sweeps.append({"cell": cell, "settings": settings, **result})
            if best is None or result["samples_per_s"] > best[0]:
                best = (result["samples_per_s"], settings)
        if best is None:
            self.failures[cell] = why
        else:
            self.settings[cell] = best[1]

    def rerun(self, peer, workload, consumers):
        """A run that counts. A peer may fail once per run: it is noted."""
        cell = (workload, consumers, peer.name)
        for attempt in range(2):
            try:
                return self.run_once(peer, workload, consumers,
                                     self.settings[cell], self.options.window)
            except measure.PeerFailed as failure:
                if attempt == 1:
                    raise
                self.repeated.append((cell, str(failure)))

    def compare(self, workload, consumers):
        """Settings first, then all in turn."""
        here = [peer for peer in self.peers
                if workload in peer.module.WORKLOADS and not peer.missing]
        for peer in here:
            if (workload, consumers, peer.name) not in self.settings:
                self.sweep(peer, workload, consumers)
        for turn in range(self.options.runs):
            # Another one first each time: no peer always follows the same one.
            for peer in here[turn % len(here):] + here[:turn % len(here)]:
                cell = (workload, consumers, peer.name)
                if cell in self.failures:
                    continue
                self.progress(f"{workload}, {consumers} consumers, run "
                              f"{turn + 1} of {self.options.runs}: "
                              f"{peer.title}")
                try:
                    result = self.rerun(peer, workload, consumers)
                except measure.PeerFailed as failure:
                    self.failures[cell] = str(failure)
                    self.results.pop(cell, None)
                    continue
                self.results.setdefault(cell, []).append(result)
        self.done[workload, consumers] = {
            "workload": workload, "consumers": consumers,
            "date": datetime.date.today().isoformat(),
            "versions": {peer.name: peer.versions for peer in here}}
        self.progress.clear()

    def row(self, workload, consumers, peer):
        """Everything that is printed of a cell, or None."""
        runs = self.results.get((workload, consumers, peer.name))
        if not runs:
            return None
        row = {"peer": peer.name, "title": peer.title,
               "workload": workload, "consumers": consumers,
               "settings": self.settings[workload, consumers, peer.name],
               "runs": len(runs)}
        padding = [run["padding"] for run in runs if run.get("padding") is not None]
        row["padding"] = statistics.mean(padding) if padding else None
        base = self.results.get((workload, consumers, "penstock"))
        for key in ("samples_per_s", "cpu_s_per_1k", "pss_bytes",
                    "loader_pss_bytes", "loader_held_bytes", "start_s",
                    "first_batch_s"):
            if not all(key in run for run in runs + (base or [])):
                continue  # of a former program
            values = [run[key] for run in runs]
            row[key] = statistics.mean(values)
            row[key + "_spread"] = (statistics.stdev(values)
                                    if len(values) > 1 else 0.0)
            if base and key not in ("start_s", "first_batch_s"):
                ours = [run[key] for run in base]
                # Above 1 means that Penstock is better.
                row[key + "_ratio"] = (measure.ratio(ours, values)
                                       if key == "samples_per_s"
                                       else measure.ratio(values, ours))
        return row

    def as_json(self, head):
        rows = [row for workload, consumers in sorted(self.done)
                for peer in self.peers
                if (row := self.row(workload, consumers, peer))]
        return {
            **head, "comparisons": list(self.done.values()), "rows": rows,
            "peers": {peer.name: {"title": peer.title, "note": peer.module.NOTE,
                                  "versions": peer.versions,
                                  "shares": peer.module.SHARES,
                                  "missing": peer.missing}
                      for peer in self.peers},
            "failures": [{"cell": cell, "why": why}
                         for cell, why in self.failures.items()],
            "repeated": [{"cell": cell, "why": why}
                         for cell, why in self.repeated],
            "sweeps": self.sweeps,
            "runs": [{"cell": cell, "runs": runs}
                     for cell, runs in self.results.items()],
        }


def settings_text(settings):
    return " ".join(f"{key}={value}" for key, value in settings.items()) or "-"


def ratio_text(pair):
    return f"{pair[0]:.2f} ±{pair[1]:.2f}" if pair else ""


def print_table(comparison, workload, consumers):
    done = comparison.done[workload, consumers]
    say(f"\n{workload}, {consumers} "
        f"consumer{'s' if consumers > 1 else ''}; × is how many times better "
        f"Penstock is ({done['date']}, Penstock "
        f"{done.get('versions', {}).get('penstock', {}).get('build', '?')})")
    what = DATA[comparison.options.data]
    lines = [("", f"{what.ITEM}s/s", "×", "CPU s/1000", "×", "memory MB", "×",
              "loader MB", "×", "without files", "×", "start s", "settings")]
    # Start: of its processes, with imports, and from there to a first batch.
    notes = []
    for peer in comparison.peers:
        cell = (workload, consumers, peer.name)
        if row := comparison.row(workload, consumers, peer):
            lines.append((
                peer.title, f"{what.ITEMS * row['samples_per_s']:.0f}",
                ratio_text(row.get("samples_per_s_ratio")),
                f"{row['cpu_s_per_1k']:.3g}",
                ratio_text(row.get("cpu_s_per_1k_ratio")),
                f"{row['pss_bytes'] / 1e6:.0f}",
                ratio_text(row.get("pss_bytes_ratio")),
                f"{row['loader_pss_bytes'] / 1e6:.0f}",
                ratio_text(row.get("loader_pss_bytes_ratio")),
                f"{row.get('loader_held_bytes', 0) / 1e6:.0f}",
                ratio_text(row.get("loader_held_bytes_ratio")),
                f"{row['start_s'] - row['first_batch_s']:.1f}"
                f"+{row['first_batch_s']:.1f}", settings_text(row["settings"])
                + ("" if row["padding"] is None else
                   f" ({100 * row['padding']:.2f} % is padding)")
                + (f" ({peer.rests})" if peer.rests else "")))
            continue
        if peer.missing:
            why = peer.missing
        elif workload not in peer.module.WORKLOADS:
            why = "not offered: " + peer.module.NOTE
        else:
            why = comparison.failures.get(cell, "not run")
        first, *rest = why.splitlines()
        lines.append((peer.title, first) + ("",) * 11)
        notes += [f"{peer.title}: {why}"] if rest else []
    # A reason is as long as it is and makes no column wide.
    measured = [line for line in lines if any(line[2:])]
    widths = [max(len(line[i]) for line in (lines if i == 0 else measured))
              for i in range(12)]
    for line in lines:
        say("  ".join([line[0].ljust(widths[0])]
                      + ([line[1]] if not any(line[2:]) else
                         [text.rjust(width) for text, width in
                          zip(line[1:12], widths[1:])] + [line[12]])))
    for note in notes:
        say("\n" + note)
    for cell, why in comparison.repeated:
        if cell[:2] == (workload, consumers):
            say(f"a run of {cell[2]} was repeated: {why.splitlines()[0]}")


def print_goals(comparison):
    """What Penstock is meant to reach, and whether it did, in words."""
    def rows(workload, consumers):
        found = {peer.name: comparison.row(workload, consumers, peer)
                 for peer in comparison.peers
                 if not peer.name.startswith("penstock")}
        return {name: row for name, row in found.items()
                if row and "samples_per_s_ratio" in row}

    def goal(what, value, wanted):
        verdict = "at least" if value >= wanted else "MISSES"
        say(f"  {what}: {value:.2f} ({verdict} {wanted:g})")

    what = DATA[comparison.options.data]
    for consumers in comparison.options.consumers:
        if found := rows("divided", consumers):
            say(f"\ndivided, {consumers} consumers")
            best = min(found.values(), key=lambda row: row["cpu_s_per_1k"])
            goal(f"CPU of the thriftiest peer, {best['title']}, over "
                 "Penstock's", best["cpu_s_per_1k_ratio"][0], 1)
            best = max(found.values(), key=lambda row: row["samples_per_s"])
            goal(f"rate over the fastest peer's, {best['title']}",
                 best["samples_per_s_ratio"][0], what.RATE_GOAL)
            if row := found.get("pytorch"):
                goal(f"rate over {row['title']}'s",
                     row["samples_per_s_ratio"][0], 3)
    shares = {peer.name: peer.module.SHARES for peer in comparison.peers}
    for peer in comparison.peers if what.JOBS_GOAL else ():
        found = [row for name, row in rows("shared", 2).items()
                 if shares[name] == peer.module.SHARES]
        ours = (comparison.row("shared", 2, peer)
                if peer.name.startswith("penstock") else None)
        if found and ours:
            best = max(found, key=lambda row: row["samples_per_s"])
            goal(f"two jobs: rate of {ours['title']}, over {best['title']}'s",
                 ours["samples_per_s"] / best["samples_per_s"], what.JOBS_GOAL)
    if found := rows("shared", 8):
        say("\nshared, 8 consumers")
        for name, row in found.items():
            goal(f"rate over {row['title']}'s, which "
                 f"{'shares' if shares[name] else 'decodes per consumer'}",
                 row["samples_per_s_ratio"][0], 3 if shares[name] else 8)


def machine():
    def first(path, key):
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith(key):
                    return line.split(":", 1)[1].strip()
        return "?"
    cores = len(os.sched_getaffinity(0))
    memory = int(first("/proc/meminfo", "MemTotal").split()[0]) / 1e6
    return (f"{first('/proc/cpuinfo', 'model name')}, {cores} processors, "
            f"{memory:.0f} GB, Linux {os.uname().release}")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)

    def path(text):
        return pathlib.Path(text).expanduser().resolve()

    def numbers(text):
        return [int(word) for word in text.split(",")]

    def words(text):
        return text.split(",")
    cache = pathlib.Path("~/.cache/penstock-peers")
    add = parser.add_argument
    add("--build", type=path, default=path("build/dev"),
        help="Penstock's build folder (default: build/dev)")
    add("--photographs", type=path,
        help="folder of make_photographs.py; made when it is not there "
             "(default: photographs in --venvs)")
    add("--count", type=int, default=1000,
        help="photographs to make (default: %(default)s)")
    add("--venvs", type=path, default=path(cache),
        help="virtual environments and formats are kept here "
             f"(default: {cache})")
    add("--data", choices=list(DATA), default="photographs",
        help="; ".join(f"{name}: {each.__doc__.splitlines()[0]}"
                       for name, each in DATA.items()))
    add("--peers", type=words,
        help="default: all that load this data")
    add("--workloads", type=words, default=WORKLOADS,
        help="of divided,shared (default: both)")
    add("--consumers", type=numbers, default=[1, 2, 4, 8],
        help="default: 1,2,4,8")
    add("--from", type=float, default=0, dest="begin", metavar="PART",
        help="begin after this part of an epoch, as a resume does (rows and "
             "tokens): its time is the second number of `start s`")
    add("--runs", type=int, default=5, help="default: %(default)s")
    add("--batch", type=int,
        help="samples per consumer (default: 64; 1,024 of small rows)")
    add("--dtype", choices=["float16", "uint8"], default="float16",
        help="normalised float16 CHW, or uint8 HWC (default: %(default)s)")
    add("--window", type=float, default=6,
        help="seconds that are measured (default: %(default)s)")
    add("--sweep-window", type=float, default=3,
        help="seconds per setting tried (default: %(default)s)")
    add("--warmup", type=float, default=2,
        help="seconds before the window (default: %(default)s)")
    add("--warmup-batches", type=int, default=2,
        help="batches of each consumer before it, at least "
             "(default: %(default)s)")
    add("--time-limit", type=float, default=400,
        help="seconds until a peer that does not answer is given up "
             "(default: %(default)s)")
    add("--settings", type=path,
        help="a former --json: its settings instead of a sweep")
    add("--json", type=path, help="write all that was measured")
    add("--resume", action="store_true",
        help="keep what --json has of a run that was ended early, measure the "
             "rest")
    add("--svg", type=path, help="draw samples/s")
    add("--tiny", action="store_true",
        help="so short that the figures mean nothing, and without PyPI: for "
             "ctest")
    options = parser.parse_args()
    if options.tiny:
        options.peers = [
            name for name, module in DATA[options.data].PEERS.items()
            if importlib.import_module(module).VENV is None]
        options.consumers, options.runs, options.batch = [2], 2, 4
        options.window, options.sweep_window = 0.3, 0.1
        options.warmup, options.warmup_batches = 0.1, 1
    peers = DATA[options.data].PEERS
    if options.begin > 0:
        begins = DATA[options.data].BEGINS
        if not begins:
            parser.error("--from: of --data rows or tokens")
        peers = {name: peers[name] for name in begins}
    options.peers = options.peers or list(peers)
    options.batch = options.batch or DATA[options.data].BATCH
    for name in options.peers:
        if name not in peers:
            parser.error(f"--peers: no {name}; there are {', '.join(peers)}")
    for name in options.workloads:
        if name not in WORKLOADS:
            parser.error(f"--workloads: no {name}")
    if options.resume and not (options.json and options.json.exists()):
        parser.error("--resume: name a former run's file with --json")
    if not 0 <= options.begin < 1:
        parser.error("--from: wanted 0 or more, less than 1")
    if options.runs < 1 or min(options.consumers) < 1:
        parser.error("--runs and --consumers: wanted 1 or more")
    for file in ("client/command/penstock", "bench/consumer",
                 "bench/libpeers_touch.so"):
        if not (options.build / file).exists():
            parser.error(f"{options.build / file} is not there: build "
                         "Penstock, or name its folder with --build")
    return options


def make_photographs(options):
    """Sets options.files to their folder; returns what they are."""
    suffix = DATA[options.data].SUFFIX
    folder = options.photographs or (
        options.venvs / f"photographs-{options.count}{'' if suffix == 'jpg' else '-' + suffix}")
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([PYTHON, HERE / "make_photographs.py", "--count",
                        str(options.count), "--format",
                        suffix, "--out", folder],
                       check=True)
    files = sorted(folder.glob(f"*/*.{suffix}"))
    if not files:
        sys.exit(f"{folder} holds no */*.{suffix}")
    # The page cache has them from here on.
    total = sum(len(file.read_bytes()) for file in files)
    # The formats are of these photographs, not of others under the same name.
    newest = max(file.stat().st_mtime_ns for file in files)
    options.formats = options.venvs / f"formats-{len(files)}-{total}-{newest}"
    options.files = folder
    return f"{len(files)} photographs, {total / len(files) / 1000:.0f} KB each"


def read_all(folder):
    """The page cache has its files from here on."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                while file.read(1 << 20):
                    pass


def make_data(options, logs):
    """Makes the files of the data, once; returns what they are."""
    data = DATA[options.data]
    what = (make_photographs(options) if hasattr(data, "SUFFIX")
            else data.__doc__.splitlines()[0])
    if not hasattr(data, "SUFFIX"):
        options.formats = options.venvs / f"formats-{options.data}-{data.COUNT}"
        options.files = options.venvs
    if data.make.__doc__:
        return what
    folder = options.formats / f"data-{options.data}"
    if not folder.exists():
        partial = options.formats / f"data-{options.data}.partial"
        subprocess.run(["rm", "-rf", partial], check=True)
        partial.mkdir(parents=True)
        python = PYTHON
        if data.VENV is not None:
            python = python_of(data.VENV, options.venvs)
            if why := make_environment(data.VENV, options.venvs, logs):
                sys.exit(f"{options.data}: {why}")
        subprocess.run([python, PARTS / "data.py", options.data, options.files,
                        partial], check=True)
        partial.rename(folder)
    # Peers' own formats of these files lie beside them.
    options.files = options.formats = folder
    return what


def main():
    options = parse_arguments()
    options.venvs.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    peers = [Peer(name, DATA[options.data].PEERS[name])
             for name in options.peers]
    logs = options.venvs / "logs"
    logs.mkdir(exist_ok=True)
    failed = {}
    for peer in peers:
        progress(f"installing {peer.title}")
        peer.install(options.venvs, logs, failed)
        if hasattr(peer.module, "versions"):
            peer.versions = peer.module.versions(options.build)
    progress("making the data")
    data = make_data(options, logs)
    if hasattr(DATA[options.data], "KEEP"):
        # An epoch of each consumer: what is kept is there before the window.
        count = len(common.photographs(options.files))
        options.warmup_batches = max(options.warmup_batches,
                                     count // options.batch + 1)
    for peer in peers:
        progress(f"making the format of {peer.title}")
        peer.prepare(options.files, options.formats, logs)
    if options.files == options.formats:
        read_all(options.files)
    progress.clear()
    head = {
        "machine": machine(), "data": data,
        "date": datetime.date.today().isoformat(),
        "batch": options.batch, "dtype": options.dtype, "from": options.begin,
        "window_s": options.window, "interleaved_runs": options.runs,
        # The load of others: nothing of this runs yet. More processes get more of a
        # busy machine, so that rates then say little; CPU seconds still do.
        "load_before": round(os.getloadavg()[0], 2),
    }
    say(f"{head['machine']}\n{data}, batches of {options.batch} per consumer, "
        f"{options.dtype}; mean ± standard deviation of {options.runs} "
        f"interleaved runs of {options.window:g} s")
    say_conditions({peer.title: peer for peer in peers}, head["load_before"])
    with tempfile.TemporaryDirectory(prefix="penstock-peers-") as work:
        comparison = Comparison(options, peers, pathlib.Path(work), progress)
        if options.settings:
            for row in json.loads(options.settings.read_text())["rows"]:
                comparison.settings[row["workload"], row["consumers"],
                                    row["peer"]] = row["settings"]
        if options.resume:
            former = json.loads(options.json.read_text())
            for key in SAME_TO_RESUME:
                if former[key] != head[key]:
                    sys.exit(f"{options.json}: {key} is {former[key]}, here "
                             f"{head[key]}: not the same comparison")
            comparison.take_over(former)
        for workload in options.workloads:
            for consumers in options.consumers:
                if (workload, consumers) not in comparison.done:
                    comparison.compare(workload, consumers)
                print_table(comparison, workload, consumers)
                # After each, so that a run that is ended early is not lost.
                result = comparison.as_json(head)
                if options.json:
                    options.json.write_text(json.dumps(result, indent=1))
                if options.svg:
                    options.svg.write_text(chart.draw(result))
    print_goals(comparison)
    if "penstock" in options.peers and any(
            cell[2] == "penstock" for cell in comparison.failures):
        sys.exit("Penstock itself failed: see above")
    if options.tiny and comparison.failures:
        sys.exit("a peer failed: see above")


if __name__ == "__main__":
    measure.run(main)
