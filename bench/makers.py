#!/usr/bin/python3
"""Question: what do rows that other hosts make cost, and how fast do they come, beside
tf.data service, Ray Data and a bare socket?

Method: hosts are namespaces joined by a bridge (tests/hosts/hosts.py), a training host and
as many that make rows as a case wants; the training host has one half of the processors,
those the other. Rows are 150,528 bytes (uint8, 224×224×3), in batches of 64:

  constant     cost nothing to make, and the consumer does not read them: what is left is
               the way. The training host's own workers sleep 5 ms a row, so that nearly
               all of Penstock's come from the other host ("made there")
  photographs  random-resized crops of JPEGs; the consumer reads each cache line once
  sleep        5 ms of sleep a row on every host: does the rate grow with the makers?

CPU seconds are of all processes of a host, from /proc. All cases run in turn, in another
order each time, --runs times; ratios are taken turn by turn, and `to receive` is CPU time
of the training host a row.

Isolation: one case at a time, in hosts and processes of its own; a window of a case that
runs already is measured.

Limits: one machine: a packet's way is a copy in memory, and the kernel's work to receive it
is mostly done, and counted, where it is sent, for each case alike. The hosts share memory
and caches. Penstock's training host makes photographs, too, the others' do not. A bare
connection has one thread on each side.

    sudo bench/makers.py --python VENV/bin/python        # VENV: the package penstock

needs root for the namespaces. Other loaders' virtual environments are made under --venvs.
"""

import argparse
import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import peers
from peers import ratio_text, say

import common  # noqa: E402  peers.py has made their folder known
import measure  # noqa: E402

sys.path.insert(0, str(peers.HERE.parent / "tests" / "hosts"))
import hosts as hosts_of_tests  # noqa: E402

SHAPE = [common.SIZE, common.SIZE, 3]
ROW_BYTES = common.SIZE * common.SIZE * 3
PLUGIN = """
#include <unistd.h>
#include "client/penstock_plugin.h"
PENSTOCK_PLUGIN_EXPORTS_ABI
PENSTOCK_PLUGIN_FUNCTION(made_row) {
  (void)error, (void)error_bytes;
  if (SLEEP_US > 0) usleep(SLEEP_US);
  *(uint8_t*)row->outputs[0].data = 1;
  *(int64_t*)row->outputs[1].data = (int64_t)row->sample;
  return 0;
}
"""
SLEEP_US = 5000
MODULES = {"penstock": "penstock_makers", "tf-service": "tf_service_makers",
           "ray": "ray_data", "bare": "bare_socket"}
CASES = {
    # rows, peer, what its configuration has beside the usual
    "one connection": ("constant", "penstock", {"settings": {"connections": 1}}),
    "one connection, TLS": ("constant", "penstock",
                            {"settings": {"connections": 1}, "tls": True}),
    "bare socket": ("constant", "bare", {}),
    "bare socket, TLS": ("constant", "bare", {"tls": True}),
    "Penstock": ("constant", "penstock", {}),
    "Penstock, TLS": ("constant", "penstock", {"tls": True}),
    "tf.data service": ("constant", "tf-service", {}),
    "Ray Data": ("constant", "ray", {}),
    "photographs, Penstock": ("photographs", "penstock", {}),
    "photographs, tf.data service": ("photographs", "tf-service", {}),
    "photographs, Ray Data": ("photographs", "ray", {}),
    **{f"sleep, {count} makers": ("sleep", "penstock", {"makers": count})
       for count in (0, 1, 2, 4)},
}
TINY = ["one connection", "bare socket", "one connection, TLS", "bare socket, TLS",
        "photographs, Penstock"]
GOALS = [
    # what, case, figure, of which other case, at least or at most, how much
    ("CPU time to receive, over tf.data service's", "Penstock", "training_us",
     "tf.data service", "at most", 0.25),
    ("bytes a second of a connection, over a bare socket's", "one connection", "rows_per_s",
     "bare socket", "at least", 0.6),
    ("the same with TLS", "one connection, TLS", "rows_per_s", "bare socket, TLS",
     "at least", 0.6),
]


class Run(measure.Run):
    """A run in hosts of its own, which end with it."""

    def __init__(self, config, log_path, time_limit_s, makers):
        super().__init__(config, log_path, time_limit_s)
        processors = sorted(os.sched_getaffinity(0))
        half = max(len(processors) // 2, 1)
        self.hosts = hosts_of_tests.Hosts(1 + makers)
        self.processors = [processors[:half], *[processors[-half:]] * makers]

    def __exit__(self, *exception):
        self.hosts.close()
        super().__exit__(*exception)

    def start_on(self, number, role, peer, config):
        host, processors = self.hosts[number], self.processors[number]
        config = {**config, "address": host.address, "processors": len(processors)}

        def begin():
            measure.end_with_driver()
            os.sched_setaffinity(0, processors)
        self.processes.append(host.start(
            peer.role(role, config), {"TMPDIR": config["folder"]}, stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=self.log, preexec_fn=begin))

    def start_all(self, peer, config):
        servers = []
        for number in range(1, len(self.hosts)):
            self.serving = None
            self.start_on(number, "serve", peer, config)
            self.wait("answer of a maker", lambda: self.serving is not None)
            servers.append(self.serving)
        self.start_on(0, "consume", peer, {**config, "rank": 0, "servers": servers})

    def cpu(self):
        """Seconds of the training host and of the others, each {program: seconds}."""
        training, *others = [os.readlink(f"/proc/{host.pid}/ns/net") for host in self.hosts]
        found = collections.Counter(), collections.Counter()
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                space = os.readlink(f"/proc/{entry}/ns/net")
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                    name, _, fields = file.read().rpartition(")")
            except OSError:
                continue  # it has just ended
            if space == training or space in others:
                found[space != training][name.partition("(")[2]] += sum(
                    map(int, fields.split()[11:15])) / measure.TICKS_PER_S
        return found

    def made_there(self):
        """Rows that the training host's broker had of others, so far."""
        status = pathlib.Path(self.config["status"])
        if not status.exists():
            return 0
        done = subprocess.run(json.loads(status.read_text()), capture_output=True, check=True)
        return sum(job.get("remote_rows", {}).get("rows_used", 0)
                   for job in json.loads(done.stdout)["jobs"])

    def window(self, warmup_s, window_s):
        self.begin()
        consumer, = self.consumers
        self.wait("first batch", lambda: len(consumer.times) > 1)
        self.listen_until(time.monotonic() + warmup_s)
        there, cpu, begin = self.made_there(), self.cpu(), time.monotonic()
        self.listen_until(begin + window_s)
        self.wait("second batch in the window", lambda: consumer.since(begin) >= 2)
        there, cpu, end = (self.made_there() - there,
                           [after - before for after, before in zip(self.cpu(), cpu)],
                           time.monotonic())
        first, last = consumer.before(begin), consumer.before(end)
        rate = (last[1] - first[1]) / (last[0] - first[0])
        rows = rate * (end - begin)
        cpu = [{name: seconds / rows * 1e6 for name, seconds in side.items()} for side in cpu]
        return {"rows_per_s": rate, "training_us": sum(cpu[0].values()),
                "makers_us": sum(cpu[1].values()), "training_programs_us": cpu[0],
                "makers_programs_us": cpu[1], "made_there": there / rows,
                "first_batch": consumer.first}


class Case:
    def __init__(self, title, all_peers):
        self.title = title
        self.rows, name, self.more = CASES[title]
        self.peer = all_peers[name]
        self.results, self.why = [], None

    def run(self, options, work):
        makers = self.more.get("makers", 1)
        config = {
            "workload": "divided", "consumers": 1, "settings": self.peer.module.settings(1)[0],
            "tls": False, "lengths": False, "batch": options.batch, "dtype": "uint8",
            "data": "photographs", "rows": self.rows, "shape": SHAPE, "row_bytes": ROW_BYTES,
            "files": str(options.files), "photographs": str(options.files), "from": 0,
            **peers.places(options, work),
            "touch": str(work / "libpeers_touch.so") if self.rows == "photographs" else None,
            "plugins": str(work), "certificates": str(work), "token": str(work / "token"),
            "ray": str(work / "ray"), "status": str(work / "status"), **self.more}
        (work / "status").unlink(missing_ok=True)
        with Run(config, options.log / f"makers-{self.title.replace(', ', '-').replace(' ', '-')}.log",
                 options.limit, makers) as run:
            run.start_all(self.peer, config)
            result = run.window(options.warmup, options.window)
        first = result["first_batch"]
        if (first["shape"], first["dtype"]) != ([options.batch, *SHAPE], "uint8"):
            raise measure.PeerFailed(f"a batch of {first}")
        self.results.append(result)

    def values(self, key):
        return [result[key] for result in self.results]


def make_plugins(work):
    for name, sleep_us in (("free", 0), ("sleeps", SLEEP_US)):
        (work / name).mkdir()
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", f"-DSLEEP_US={sleep_us}", "-I",
                        peers.HERE.parent, "-o", work / name / "made_row.so", "-x", "c", "-"],
                       input=PLUGIN, text=True, check=True)


def make_certificates(work):
    """NAME.pem and NAME.key of both sides, signed by ca.pem."""
    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=work, check=True, capture_output=True)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    (work / "names").write_text("subjectAltName=" + ",".join(
        f"IP:10.77.0.{number}" for number in range(1, 8)) + "\n")
    for name in ("maker", "trainer"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj",
                f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-out", f"{name}.pem", "-extfile", "names")
    (work / "token").write_text(os.urandom(16).hex() + "\n")


def figure(values, digits=0):
    spread = statistics.stdev(values) if len(values) > 1 else 0
    return f"{statistics.median(values):.{digits}f} ± {spread:.{digits}f}"


def print_table(cases):
    lines = [("", "rows/s", "MB/s", "to receive, µs a row", "to make and send, µs",
              "made there")]
    for case in cases:
        if not case.results:
            lines.append((case.title, case.peer.missing or case.why or "not run"))
            continue
        rates = case.values("rows_per_s")
        there = case.values("made_there")
        lines.append((case.title, figure(rates), figure([r * ROW_BYTES / 1e6 for r in rates]),
                      figure(case.values("training_us"), 1), figure(case.values("makers_us"), 1),
                      f"{statistics.median(there):.0%}" if case.peer.name == "penstock" else ""))
    widths = [max(len(line[i]) for line in lines if len(line) > 2) for i in range(6)]
    widths[0] = max(len(line[0]) for line in lines)
    for line in lines:
        say("  ".join([line[0].ljust(widths[0])] + (
            [line[1].splitlines()[0]] if len(line) == 2 else
            [text.rjust(width) for text, width in zip(line[1:], widths[1:])])).rstrip())


def print_goals(there):
    def goal(what, pair, which, wanted):
        reached = pair[0] >= wanted if which == "at least" else pair[0] <= wanted
        say(f"  {what}: {ratio_text(pair)} ({which if reached else 'MISSES'} {wanted:g})")

    say("\ngoals, mean ± standard deviation")
    for what, ours, key, other, which, wanted in GOALS:
        if ours in there and other in there:
            goal(what, measure.ratio(there[ours].values(key), there[other].values(key)),
                 which, wanted)
    alone, one = (there.get(f"sleep, {count} makers") for count in (0, 1))
    for count in (2, 4):
        many = there.get(f"sleep, {count} makers")
        if alone and one and many:
            rates = [case.values("rows_per_s") for case in (alone, one, many)]
            goal(f"what {count} makers add, over {count} times what one does", measure.ratio(
                [all_of - none for none, _, all_of in zip(*rates)],
                [count * (single - none) for none, single, _ in zip(*rates)]),
                "at least", 0.95)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def path(text):
        return pathlib.Path(text).expanduser().resolve()
    add = parser.add_argument
    add("--python", type=lambda text: pathlib.Path(text).expanduser().absolute(),
        default=sys.executable, help="one with the package penstock (default: this one)")
    add("--venvs", type=path, default=path("~/.cache/penstock-peers"),
        help="virtual environments, as of peers.py (default: %(default)s)")
    add("--photographs", type=path,
        help="folder of make_photographs.py; made when it is not there (default: "
             "photographs in --venvs)")
    add("--count", type=int, default=1000, help="photographs to make (default: %(default)s)")
    add("--cases", nargs="+", default=list(CASES), metavar="CASE",
        help=f"of {'; '.join(CASES)} (default: all)")
    add("--batch", type=int, default=64, help="default: %(default)s")
    add("--runs", type=int, default=5, help="default: %(default)s")
    add("--warmup", type=float, default=3, help="seconds (default: %(default)s)")
    add("--window", type=float, default=6,
        help="seconds that are measured (default: %(default)s)")
    add("--limit", type=float, default=120,
        help="seconds until a case is given up (default: %(default)s)")
    add("--json", type=path, help="write all that was measured")
    add("--tiny", action="store_true",
        help="so short that the figures mean nothing, and without PyPI")
    options = parser.parse_args()
    if options.tiny:
        options.cases, options.runs, options.count = TINY, 1, 13
        options.warmup, options.window, options.batch = 0.2, 0.3, 8
    for title in options.cases:
        if title not in CASES:
            parser.error(f"--cases: no {title}; there are {'; '.join(CASES)}")
    if options.runs < 1:
        parser.error("--runs: wanted 1 or more")
    if why := hosts_of_tests.available():
        print(f"makers.py: nothing measured: {why}", file=sys.stderr)
        sys.exit(77)
    return options


def main():
    options = parse_arguments()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="penstock-makers-") as work:
        work = pathlib.Path(work)
        options.build = work  # Penstock is a package here
        options.log = options.venvs / "logs"
        if options.tiny:
            options.venvs = options.log = work
        options.log.mkdir(parents=True, exist_ok=True)
        subprocess.run(["c++", "-O2", "-shared", "-fPIC", "-I", peers.HERE.parent,
                        peers.PARTS / "touch.cc", "-o", work / "libpeers_touch.so"],
                       check=True)
        make_plugins(work)
        make_certificates(work)
        options.data = "photographs"
        what = peers.make_photographs(options)
        all_peers, failed = {}, {}
        for name in {CASES[title][1] for title in options.cases}:
            all_peers[name] = peer = peers.Peer(name, MODULES[name])
            if peer.module.VENV is None:
                peer.python = options.python
            peer.install(options.venvs, options.log, failed)
        cases = [Case(title, all_peers) for title in options.cases]
        say(f"{peers.machine()}\n{what}, batches of {options.batch}; median ± standard "
            f"deviation of {options.runs} interleaved runs of {options.window:g} s")
        peers.say_conditions({peer.title: peer for peer in all_peers.values()}, load)
        for turn in range(options.runs):
            first = turn % len(cases)
            for case in cases[first:] + cases[:first]:
                if case.peer.missing or case.why:
                    continue
                try:
                    case.run(options, work)
                except measure.PeerFailed as failure:
                    case.why, case.results = str(failure), []
    print_table(cases)
    print_goals({case.title: case for case in cases if case.results})
    for case in cases:
        if case.why:
            say(f"\n{case.title}: {case.why}")
    if options.json:
        options.json.write_text(json.dumps({
            "machine": peers.machine(), "load_before": load, "batch": options.batch,
            "row_bytes": ROW_BYTES, "window_s": options.window,
            "versions": {peer.title: peer.versions for peer in all_peers.values()},
            "cases": [{"title": case.title, "missing": case.peer.missing, "why": case.why,
                       "runs": case.results} for case in cases]}, indent=1))
    if options.tiny and any(case.why or case.peer.missing for case in cases):
        sys.exit("a case failed: see above")


if __name__ == "__main__":
    measure.run(main)
