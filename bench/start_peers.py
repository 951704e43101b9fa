#!/usr/bin/python3
"""Question: how long does a job that trains a language model wait for its first batch,
and what CPU time and memory does that take?

  index   A job of --consumers ranks starts on Megatron's files of --documents documents,
          whose lengths are those of web text: megatron-core's GPTDataset, which every
          rank builds for itself, which rank 0 builds and the others map, or which all
          map from its cache; beside one broker with the source megatron, in Megatron's
          order (built, or from that cache) and in Penstock's.
  resume  A job of one rank goes on at 90 % of a pass over --sequences shuffled sequences
          of 1,024 tokens: torchdata's StatefulDataLoader, MosaicML Streaming, LitData and
          Grain, each from a state as it would have saved.

Method: peers.py's consumers import their libraries and wait; the time runs from the
signal to the first batch of the last of them. CPU seconds and memory (proportional set
sizes, less what was there at the signal) are of all processes, memory half a second
later, while consumers are stopped; `without files` is what is not mapped from files,
`most` the largest of looks five times a second. Loaders have no worker
processes: their start is not the question. Medians of --runs, in turn.

Isolation: one run at a time, a private broker each, indices in the page cache. What is
bigger than --memory-limit, or takes longer than --limit seconds, is ended and said; a
larger size is not tried. Such a figure for the largest size is extrapolated from the two
before, and marked so.

Limits: tokens are zeros in a sparse file, and MDS shards and LitData's chunks are links
to one of 64 MB: reading costs less than from a disk, which no start here waits for. A
state of many batches is made of one of a first batch, with the counts it would have.

    bench/start_peers.py index --documents 1e7
    bench/start_peers.py resume

Files (20 bytes a document, and as many in the cache) are made in --folder, and deleted.
Megatron's documents of 10^8 need 6 GB of disk there.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile

import peers
from peers import say

import data  # noqa: E402  peers.py has made its folder known
import measure  # noqa: E402

UNIT = 32_000  # sequences of a shard: what has room in 64 MB
FROM = 0.9
QUESTIONS = {
    # title, module, settings, what else its config says
    "index": [
        # The first of all: leaves the cache that others take.
        ("megatron-core, rank 0 builds", "megatron_gpt", {"num_workers": 0},
         {"cache": "{folder}/fresh"}),
        ("Penstock, order: penstock", "penstock_megatron", {"workers": 2},
         {"megatron": {"order": "penstock"}}),
        ("Penstock, order: megatron", "penstock_megatron", {"workers": 2}, {}),
        ("Penstock, from Megatron's cache", "penstock_megatron", {"workers": 2},
         {"megatron": {"cache": "{folder}/kept"}}),
        ("megatron-core, each builds", "megatron_gpt", {"num_workers": 0}, {"cache": ""}),
        ("megatron-core, from its cache", "megatron_gpt", {"num_workers": 0},
         {"cache": "{folder}/kept"}),
    ],
    "resume": [
        ("Penstock", "penstock_broker", {"workers": 2}, {}),
        ("Grain", "grain_tokens", {"threads": 1}, {}),
        ("LitData", "litdata_tokens", {"num_workers": 0}, {}),
        ("MosaicML Streaming", "streaming_tokens", {"num_workers": 0}, {}),
        ("torchdata StatefulDataLoader", "torchdata_tokens", {"num_workers": 0}, {}),
    ],
}


def sparse_tokens(folder, tokens):
    folder.mkdir(parents=True)
    with open(folder / "tokens.bin", "wb") as file:
        file.truncate(2 * tokens)


def make_documents(folder, count):
    """Megatron's files; returns their tokens."""
    import numpy
    lengths = data.text_lengths(numpy.random.default_rng(data.common.SEED), count)
    tokens = int(lengths.sum(dtype="int64"))
    sparse_tokens(folder, tokens)
    data.write_megatron_index(folder / "tokens.idx", lengths)


def make_sequences(folder, count, unit):
    """Files of so many sequences: shards that are links to those of the unit."""
    sparse_tokens(folder, count * data.Tokens.LENGTH + 1)
    for form, index, entries, rename in (
            ("tokens-mds", "index.json", "shards",
             lambda entry, name: {**entry, "raw_data": {**entry["raw_data"],
                                                        "basename": name}}),
            ("tokens-litdata", "index.json", "chunks",
             lambda entry, name: {**entry, "filename": name})):
        made = unit / form
        if not made.exists():
            continue  # its peer is not asked
        description = json.loads((made / index).read_text())
        one, = description[entries]
        shard, = (path for path in made.iterdir() if path.name != index)
        (folder / form).mkdir()
        names = [f"{number:05}{shard.suffix}" for number in range(max(1, count // UNIT))]
        for name in names:
            os.link(shard, folder / form / name)
        description[entries] = [rename(one, name) for name in names]
        (folder / form / index).write_text(json.dumps(description))


class Case:
    """What is started: a row of the table."""

    def __init__(self, question, title, module, settings, more):
        self.title = title
        self.question, self.settings, self.more = question, settings, more
        self.peer = peers.Peer(title.replace(" ", "-"), module)
        self.runs = {}  # size: [result]
        self.why = {}  # size: why it has none

    def run(self, size, folder, work, options):
        fill = json.dumps(self.more).replace("{folder}", str(folder))
        for cache in (folder / "fresh", work / "cache"):
            shutil.rmtree(cache, ignore_errors=True)
        config = {
            "workload": "divided", "consumers": options.consumers,
            "settings": self.settings, "batch": options.batch,
            "from": FROM if self.question == "resume" else 0, "dtype": "",
            "data": "tokens", "lengths": False, "files": str(folder),
            "formats": str(folder), "passes": 1, **json.loads(fill),
            **peers.places(options, work)}
        try:
            with measure.Run(config, work / "log", options.limit) as run:
                self.peer.start(run, config)
                result = run.first_batches(options.memory_limit * 1e9)
        except measure.PeerFailed as failure:
            self.why[size] = str(failure)
            return
        wanted = [options.batch, data.Tokens.LENGTH]
        if result["first_batch"]["shape"] != wanted:
            sys.exit(f"{self.title}: a batch of {result['first_batch']}, "
                     f"wanted {wanted}")
        self.runs.setdefault(size, []).append(result)

    def middle(self, size, key):
        return statistics.median(run[key] for run in self.runs[size])

    def row(self, size):
        """Its part of the table."""
        if size in self.runs:
            seconds = [run["first_batch_s"] for run in self.runs[size]]
            return (f"{self.middle(size, 'first_batch_s'):8.3g} "
                    f"({min(seconds):.3g}–{max(seconds):.3g}) s, CPU "
                    f"{self.middle(size, 'cpu_s'):.3g} s, "
                    f"{self.middle(size, 'pss_bytes') / 1e6:.0f} MB, without files "
                    f"{self.middle(size, 'held_bytes') / 1e6:.0f}, most "
                    f"{self.middle(size, 'most_pss_bytes') / 1e6:.0f} MB")
        # What it says last is the cause only where it ended by itself.
        first, *rest = (self.peer.missing or self.why.get(size, "not tried")).splitlines()
        why = f"{first}: {rest[-1]}" if rest and "ended" in first else first
        done = sorted(self.runs)
        if len(done) > 1:
            less, more = done[-2:]
            times = [self.middle(each, "first_batch_s") for each in (less, more)]
            slope = (times[1] - times[0]) / (more - less)
            why += (f"; extrapolated: {times[1] + slope * (size - more):.0f} s "
                    f"({slope * 1e9:.3g} ns a sequence)")
        return why


def print_goals(question, cases, size):
    """What Penstock is meant to reach."""
    there = {case.title: case for case in cases if size in case.runs}
    if question == "resume" and "Penstock" in there:
        seconds = there["Penstock"].middle(size, "first_batch_s")
        say(f"  goal: under 1 s: {seconds:.3g} s")
    each = "megatron-core, each builds"
    for ours in ("Penstock, order: megatron", "Penstock, order: penstock"):
        if each in there and ours in there:
            less = (there[each].middle(size, "held_bytes")
                    / there[ours].middle(size, "held_bytes"))
            say(f"  goal: {each}: 8 × the memory without files of {ours}: {less:.1f} ×")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def path(text):
        return pathlib.Path(text).expanduser().resolve()

    def numbers(text):
        return sorted(int(float(word)) for word in text.split(","))
    add = parser.add_argument
    add("question", choices=QUESTIONS)
    add("--build", type=path, default=path("build/dev"),
        help="Penstock's build folder (default: build/dev)")
    add("--venvs", type=path, default=path("~/.cache/penstock-peers"),
        help="virtual environments, as of peers.py (default: %(default)s)")
    add("--folder", type=path, help="where files are made (default: a temporary one)")
    add("--cases", help="only those with one of these words, separated by commas")
    add("--documents", type=numbers, default=[10_000_000], help="default: 1e7")
    add("--sequences", type=numbers, default=numbers("1e6,1e7,3e7,1e8,1e9"),
        help="default: 1e6,1e7,3e7,1e8,1e9")
    add("--consumers", type=int, help="ranks (default: 8 of index, 1 of resume)")
    add("--batch", type=int, default=16, help="of a rank (default: %(default)s)")
    add("--runs", type=int, default=3, help="default: %(default)s")
    add("--limit", type=float, default=60, help="seconds (default: %(default)s)")
    add("--memory-limit", type=float, help="GB (default: 0.7 of what is available)")
    add("--json", type=path, help="write all that was measured")
    add("--tiny", action="store_true",
        help="so small that the figures mean nothing, and without PyPI: for ctest")
    options = parser.parse_args()
    if options.tiny:
        options.cases, options.runs, options.consumers = "Penstock", 1, 2
        options.documents, options.sequences = [1000], [UNIT]
    options.consumers = options.consumers or (8 if options.question == "index" else 1)
    if options.memory_limit is None:
        available = next(int(line.split()[1]) for line in open("/proc/meminfo")
                         if line.startswith("MemAvailable:"))
        options.memory_limit = 0.7 * available / 1e6
    return options


def main():
    options = parse_arguments()
    logs = options.venvs / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    cases = [Case(options.question, *case) for case in QUESTIONS[options.question]
             if options.cases is None
             or any(word in case[0] for word in options.cases.split(","))]
    if options.tiny:  # there is no cache of Megatron's without it
        cases = [case for case in cases if "cache" not in case.title]
    failed = {}
    for case in cases:
        case.peer.install(options.venvs, logs, failed)
        if hasattr(case.peer.module, "versions"):
            case.peer.versions = case.peer.module.versions(options.build)
    resumes = options.question == "resume"
    say(f"{peers.machine()}\n{options.question}: {options.consumers} "
        f"consumer{'s' if options.consumers > 1 else ''}, batches of {options.batch}; "
        f"medians of {options.runs} runs, load before {os.getloadavg()[0]:.1f}")
    for case in cases:
        say(f"  {case.title}: " + (case.peer.missing or ", ".join(
            f"{name} {version}" for name, version in case.peer.versions.items())))
    with tempfile.TemporaryDirectory(prefix="penstock-start-",
                                     dir=options.folder) as folder:
        folder = pathlib.Path(folder)
        if resumes:
            sparse_tokens(folder / "unit", UNIT * data.Tokens.LENGTH + 1)
            for case in cases:
                case.peer.prepare(folder / "unit", folder / "unit", logs)
        for size in options.sequences if resumes else options.documents:
            files = folder / str(size)
            if resumes:
                make_sequences(files, size, folder / "unit")
            else:
                make_documents(files, size)
            for turn in range(options.runs):
                for case in cases:
                    if case.peer.missing or case.why:
                        continue
                    case.run(size, files, folder, options)
                    if (files / "fresh").exists() and not (files / "kept").exists():
                        (files / "fresh").rename(files / "kept")
            say(f"\n{size:.0e} {'sequences' if resumes else 'documents'}")
            for case in cases:
                say(f"  {case.title:34} {case.row(size)}")
            print_goals(options.question, cases, size)
            shutil.rmtree(files)
    if options.json:
        options.json.write_text(json.dumps({
            "machine": peers.machine(), "question": options.question,
            "consumers": options.consumers, "batch": options.batch,
            "cases": [{"title": case.title, "versions": case.peer.versions,
                       "runs": case.runs, "why": case.why} for case in cases]}, indent=1))
    if options.tiny and any(case.why for case in cases):
        sys.exit("a case failed: see above")


if __name__ == "__main__":
    measure.run(main)
