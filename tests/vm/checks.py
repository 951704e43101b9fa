"""The checks that tests/vm/run makes in its machine, one after another, as root.

Each prints its name, its result and its seconds. Exit status: 1 if any failed.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback

GIVEN = pathlib.Path(__file__).resolve().parent
WORK = pathlib.Path("/tmp/work")
CONFIG = pathlib.Path("/etc/penstock/penstockd.yaml")
DROP_IN = pathlib.Path("/run/systemd/system/penstockd.service.d/check.conf")
STATE, CACHE = pathlib.Path("/var/lib/penstock"), pathlib.Path("/var/cache/penstock")
HURRY = WORK / "hurry"  # while it exists, trainers take as much as they can
DISK = "/dev/vdc"
USERS = ("alice", "bob", "carol")  # of the group penstock; and dave, who is not
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


# ---- the machine


def sh(*command, wanted=0, user=None, **options):
    """What the command prints. Its exit status has to be the wanted one."""
    if user:
        command = as_user(user, *command)
    options = {"capture_output": True, "text": True, "timeout": 120, **options}
    done = subprocess.run([str(each) for each in command], check=False, **options)
    if wanted is not None and (done.returncode != 0) != (wanted != 0):
        raise AssertionError(f"{' '.join(map(str, command))}: {done.returncode}\n"
                             f"{done.stdout}{done.stderr}")
    return (done.stdout or "") + (done.stderr or "")


def as_user(user, *command):
    return ("setpriv", "--reuid", user, "--regid", user, "--init-groups", "--reset-env",
            *command)


def until(condition, seconds=60, what="it"):
    """Waits for the condition, and returns what it is then."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.1)


def expect(text, *parts):
    for part in parts:
        assert part in text, f"wanted '{part}', found:\n{text}"


def service(name):
    return sh("systemctl", "show", "--value", "-p", name, "penstockd.service").strip()


def pid():
    return int(service("MainPID"))


def journal(since=0):
    """Messages of the service, from this line on."""
    return sh("journalctl", "-u", "penstockd", "-o", "cat", "--no-pager",
              "-q").splitlines()[since:]


def status():
    return json.loads(sh("penstock", "status", "--json"))


def configure(keys="", restart=True):
    """Adds keys to the packaged configuration."""
    CONFIG.write_text((WORK / "packaged.yaml").read_text() + keys)
    if restart:
        sh("systemctl", "restart", "penstockd")


def drop_in(text):
    """Settings of the unit, for this check."""
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    DROP_IN.write_text(f"[Service]\n{text}\n")
    sh("systemctl", "daemon-reload")
    sh("systemctl", "restart", "penstockd")


def remove_memory():
    """What the service keeps outside of a state folder, which is gone."""
    for folder in pathlib.Path("/dev/shm").glob("penstock-*"):
        shutil.rmtree(folder)


def as_packaged(forget=False):
    """Undoes what a check changed. forget: its jobs too."""
    if not shutil.which("penstockd"):
        return
    if forget:
        sh("systemctl", "stop", "penstockd.service")
        remove_memory()
        for each in STATE.iterdir():
            each.unlink()
    changed = CONFIG.read_text() != (WORK / "packaged.yaml").read_text()
    if changed:
        configure(restart=False)
    if DROP_IN.exists():
        DROP_IN.unlink()
        sh("systemctl", "daemon-reload")
        changed = True
    sh("systemctl", "reset-failed", "penstockd", wanted=None)
    if changed or service("ActiveState") != "active":
        sh("systemctl", "restart", "penstockd")


# ---- trainers


def spec(name, source, rest="", batch=8):
    """A file that everybody may read."""
    path = WORK / f"{name}.yaml"
    path.write_text(f"dataset: {name}\nsource: {{{source}}}\n"
                    f"batch: {{size: {batch}}}\n{rest}")
    return path


class Ranks:
    """A user's job. The ranks write what they take."""

    def __init__(self, user, name, dataset, ranks=2, step_ms=20, cpus=None):
        self.user, self.name, self.dataset, self.step_ms = user, name, dataset, step_ms
        self.count, self.files, self.processes = ranks, [], {}
        for rank in range(ranks):
            self.start(rank, cpus[rank] if cpus else None)

    def start(self, rank, cpus=None):
        path = WORK / f"{self.user}.{self.name}.{len(self.files)}"
        self.files.append(path)
        command = [*as_user(self.user), "env", f"PENSTOCK_RANK={rank}",
                   f"PENSTOCK_WORLD_SIZE={self.count}",
                   f"PENSTOCK_LOCAL_WORLD_SIZE={self.count}",
                   f"PENSTOCK_JOB={self.name}", f"PENSTOCK_DATASET={self.dataset}",
                   *(["taskset", "-c", cpus] if cpus else []),
                   GIVEN / "rank", str(self.step_ms), HURRY]
        with open(path, "w") as out, open(f"{path}.error", "w") as error:
            self.processes[rank] = subprocess.Popen(command, stdout=out, stderr=error)

    def lines(self):
        # The last line of a killed rank may be torn: it was not released either.
        return [line.split() for path in self.files
                for line in path.read_text().splitlines(keepends=True)
                if line.endswith("\n")]

    def until_taken(self, batches, seconds=60):
        """Of all ranks together, from now on."""
        wanted = len(self.lines()) + batches

        def taken():
            for rank, process in self.processes.items():
                assert process.poll() in (None, 0), self.error(rank)
            if len(self.lines()) >= wanted:
                return True
            assert any(each.poll() is None for each in self.processes.values()), (
                f"{self.name} ended before {batches} more batches")
            return False
        until(taken, seconds, f"{batches} batches of {self.name}")

    def errors(self):
        return "".join(pathlib.Path(f"{path}.error").read_text() for path in self.files)

    def error(self, rank=0):
        return f"{self.name}, rank {rank}: {self.errors()}"

    def kill(self, rank):
        self.processes[rank].kill()

    def replace(self, rank):
        self.processes[rank].wait()
        self.start(rank)

    def end(self, seconds=120):
        for rank, process in self.processes.items():
            assert process.wait(seconds) == 0, self.error(rank)

    def fails(self, seconds=60):
        """The error of rank 0."""
        assert self.processes[0].wait(seconds) == 1, self.error()
        return self.error()

    def stop(self):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def each_once(self, rows, epochs=1):
        """Each row of each epoch came, and not twice without the mark."""
        fresh = collections.Counter()
        seen = set()
        for epoch, redelivered, _, *ids in self.lines():
            for each in ids:
                seen.add((epoch, each))
                fresh[epoch, each] += redelivered == "0"
        assert len(seen) == rows * epochs, (
            f"{self.name}: {len(seen)} rows of {rows * epochs}")
        assert max(fresh.values()) == 1, (
            f"{self.name}: twice: {[key for key, n in fresh.items() if n > 1][:20]}")


@contextlib.contextmanager
def load(rows=4000):
    """Jobs of three users, of two ranks each: slow during the check, then to their end,
    at which each row came once."""
    jobs = [Ranks(user, f"load-{user}",
                  spec(f"load-{user}", f"range: {rows}", "shuffle: {seed: 3}\n"),
                  step_ms=250)
            for user in USERS]
    try:
        for each in jobs:
            each.until_taken(4)
        yield jobs
        HURRY.touch()
        for each in jobs:
            each.end()
            each.each_once(rows)
            assert not each.errors(), each.errors()
    finally:
        HURRY.unlink(missing_ok=True)
        for each in jobs:
            each.stop()


def trains(user, source, rest="", seconds=60, name="asked"):
    """What comes of it: "3 rows", or the error."""
    path = spec(name, source, rest, batch=1)
    ranks = Ranks(user, f"{name}-{time.monotonic_ns()}", path, ranks=1, step_ms=0)
    if ranks.processes[0].wait(seconds) != 0:
        return ranks.error()
    return f"{sum(len(line) - 3 for line in ranks.lines())} rows"


def text(path):
    return f'text_lines: {{files: "{path}", max_bytes: 8}}'


# ---- the packages


def everything():
    """Each file of the machine, and its users and groups."""
    found = set()
    for top in ("/etc", "/usr", "/var", "/run", "/dev/shm"):
        for folder, folders, names in os.walk(top):
            folders[:] = [each for each in folders if f"{folder}/{each}" not in (
                "/var/log", "/var/lib/dpkg", "/var/tmp", "/run/given", "/run/systemd",
                "/var/cache/debconf")]
            found |= {f"{folder}/{each}" for each in folders + names}
    # Copies of the former file.
    found -= {f"/etc/{name}-" for name in ("passwd", "group", "shadow", "gshadow", "subuid",
                                         "subgid")}
    for name in ("passwd", "group", "shadow", "gshadow"):
        found |= {f"{name}: {line.split(':')[0]}"
                  for line in pathlib.Path(f"/etc/{name}").read_text().splitlines()}
    return found


BEFORE = set()


@check
def install():
    """The packages start the service, and their users can use it at once."""
    WORK.mkdir(parents=True)
    BEFORE.update(everything())
    sh("dpkg", "-i", *sorted((GIVEN / "packages").glob("*.deb")), timeout=300)
    shutil.copy(CONFIG, WORK / "packaged.yaml")
    for user in (*USERS, "dave"):
        sh("useradd", "--user-group", "--no-create-home", user)
    for user in USERS:
        sh("usermod", "-aG", "penstock", user)
    for unit in ("penstockd.socket", "penstockd.service"):
        assert sh("systemctl", "is-enabled", unit) == "enabled\n", unit
        assert sh("systemctl", "is-active", unit) == "active\n", unit
    # With Type=notify it is active because it said so.
    assert service("Type") == "notify"
    assert status()["broker"]["private"] is False
    assert trains("alice", "range: 100") == "100 rows"


@check
def ready():
    """A start ends when the service answers: the first request finds it there."""
    sh("systemctl", "stop", "penstockd.service", "penstockd.socket")
    sh("systemctl", "start", "penstockd.service")
    started = int(service("ExecMainStartTimestampMonotonic"))
    active = int(service("ActiveEnterTimestampMonotonic"))
    assert started < active <= time.monotonic() * 1e6, (started, active)
    assert status()["broker"]["pid"] == pid()
    # A start that fails is told, not waited for.
    configure("workers: none\n", restart=False)
    sh("systemctl", "restart", "penstockd", wanted=1)
    expect("\n".join(journal()), "workers", f"{CONFIG}:")


@check
def socket_activation():
    """The first client of the group starts the service; others are refused."""
    sh("systemctl", "stop", "penstockd.service")
    expect(sh("penstock", "status", user="dave", wanted=1), "join its group")
    assert service("ActiveState") == "inactive", "dave started it"
    sh("penstock", "status", user="alice")
    assert service("ActiveState") == "active"


@check
def metrics():
    """The metrics unit, a user of its own, shows jobs of all users over HTTP."""
    ranks = Ranks("alice", "shown", spec("shown", "range: 400"), step_ms=250)
    sh("systemctl", "start", "penstock-metrics")
    scrape = ("import urllib.request as r;"
              "print(r.urlopen('http://127.0.0.1:10147/metrics').read().decode())")

    def answer():
        found = sh(sys.executable, "-c", scrape, user="dave", wanted=None)
        return "penstock_up 1" in found and 'job_name="shown"' in found
    until(answer, 30, "penstock_up 1 and the job")
    sh("systemctl", "stop", "penstock-metrics")
    ranks.stop()
    sh("penstock", "stop", "shown", user="alice")


@check
def security():
    """systemd-analyze finds little that the service could do."""
    found = sh("systemd-analyze", "security", "--no-pager", "penstockd.service")
    exposure = float(re.search(r"Overall exposure level.*: ([0-9.]+)", found).group(1))
    print(f"  exposure {exposure}")
    assert exposure <= 1.0, found


# ---- one machine, many ranks


@check
def numa():
    """Ranks on both nodes get batches in memory of their node."""
    assert "bound and verified" in status()["broker"]["numa"], status()["broker"]["numa"]
    # Sixteen pages a batch.
    path = spec("nodes", "range: 163840", batch=16384)
    ranks = Ranks("alice", "nodes", path, cpus=["0-1", "2-3"])
    ranks.end()
    ranks.each_once(163840)
    for rank, file in enumerate(ranks.files):
        nodes = {line.split()[2] for line in file.read_text().splitlines()}
        assert nodes == {str(rank)}, f"rank {rank}: nodes {nodes}"


@check
def killed():
    """SIGKILL of the daemon, and of a rank with it, under ranks of three users."""
    with load() as jobs:
        for times in range(1, 4):
            until(lambda: int(service("NFileDescriptorStore")) >= 6, what="pages kept")
            if times == 3:
                jobs[1].kill(1)
            sh("systemctl", "kill", "-s", "KILL", "penstockd")
            until(lambda: int(service("NRestarts")) == times, what="a restart")
            if times == 3:
                jobs[1].replace(1)
            for each in jobs:
                each.until_taken(4)
    until(lambda: int(service("NFileDescriptorStore")) == 0, what="none kept")


@check
def watchdog():
    """A daemon that stands still is restarted by systemd."""
    assert service("WatchdogUSec") not in ("0", "infinity"), "the unit has no watchdog"
    drop_in("WatchdogSec=10s")
    with load() as jobs:
        os.kill(pid(), signal.SIGSTOP)
        until(lambda: int(service("NRestarts")) == 1, what="a restart by the watchdog")
        for each in jobs:
            each.until_taken(4)
    expect("\n".join(journal()), "Watchdog timeout")


@check
def reload():
    """A reload applies a change under load; a mistake in the file changes nothing."""
    with load() as jobs:
        before = pid()
        configure("workers: 2\nmemory_limit: 512M\n", restart=False)
        sh("systemctl", "reload", "penstockd")
        until(lambda: status()["broker"]["workers"] == 2, what="two workers")
        assert status()["broker"]["memory_limit_bytes"] == 512 << 20
        configure("wrokers: 3\n", restart=False)
        expect(sh("systemctl", "reload", "penstockd", wanted=1), "penstockd")
        expect("\n".join(journal()), "wrokers")
        for each in jobs:
            each.until_taken(2)
        assert pid() == before and status()["broker"]["workers"] == 2


# ---- who may read what


def lines(path, owner, mode, service_reads=True):
    """A file of three lines, which the service's user may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("one\ntwo\nthree\n")
    shutil.chown(path, *owner.split(":"))
    path.chmod(mode)
    if service_reads:
        sh("setfacl", "-m", "u:penstock:r", path)
    return path


@contextlib.contextmanager
def files_of_users():
    top = pathlib.Path("/srv/data")
    top.mkdir(parents=True)
    sh("groupadd", "vision")
    sh("usermod", "-aG", "vision", "alice")
    try:
        yield top
    finally:
        shutil.rmtree(top)
        sh("groupdel", "vision")


@check
def access_without_data():
    """Each user reads what she could read herself, and learns nothing of the rest."""
    with files_of_users() as top:
        shared = lines(top / "shared/lines", "alice:alice", 0o644)
        private = lines(top / "alice/lines", "alice:alice", 0o600)
        own = lines(top / "alice/own", "alice:alice", 0o600, service_reads=False)
        team = lines(top / "team/lines", "root:vision", 0o640)
        closed = lines(top / "closed/lines", "alice:alice", 0o644)
        shutil.chown(closed.parent, "alice")
        closed.parent.chmod(0o700)
        sh("setfacl", "-m", "u:penstock:rx", closed.parent)
        listed = lines(top / "listed", "bob:bob", 0o644)
        listed.write_text(f"{private}\n")
        (top / "link").symlink_to(private)
        os.mkfifo(top / "fifo")
        (top / "fifo").chmod(0o666)
        for file in (shared, private, team, closed):
            assert trains("alice", text(file)) == "3 rows", file
        assert trains("bob", text(shared)) == "3 rows"
        # Alice may read it, the service's own user may not.
        expect(trains("alice", text(own)), "penstock")
        bob = f"user {pwd.getpwnam('bob').pw_uid} may not "
        # Alice's datasets are open or in the cache by now.
        for file in (private, team, top / "link", closed.parent / "none",
                     closed.parent / "*", f"{closed.parent}/l*"):
            expect(trains("bob", text(file)), bob)
        expect(trains("bob", f'text_lines: {{files: {{list: "{listed}"}}, max_bytes: 8}}'),
               bob)
        expect(trains("bob", f'text_lines: {{files: {{list: "{private}"}}, max_bytes: 8}}'),
               bob)
        for file in ("/proc/self/environ", top / "fifo", "/dev/mem", "/etc/shadow",
                     STATE / "journal", f"/proc/{os.getpid()}/root/etc/hostname"):
            expect(trains("carol", text(file)), "rank 0: rank: ", str(file))


@check
def access_with_data():
    """Only below the folders of `data`, by those who may."""
    with files_of_users() as top:
        open_ = lines(top / "open/lines", "root:root", 0o600)
        team = lines(top / "team/lines", "root:root", 0o600)
        only = lines(top / "only/lines", "root:root", 0o600)
        other = lines(top / "other/lines", "root:root", 0o644)
        (top / "open/out").symlink_to(other)
        (top / "open/in").symlink_to("lines")
        os.mkfifo(top / "open/fifo")
        configure("data:\n"
                  f"  - path: {top}/open\n"
                  f"  - {{path: {top}/team, groups: [vision]}}\n"
                  f"  - {{path: {top}/only, users: [carol]}}\n")
        for user, file, rows in (
                ("alice", open_, 3), ("bob", open_, 3), ("bob", top / "open/in", 3),
                ("alice", team, 3), ("bob", team, 0), ("carol", team, 0),
                ("carol", only, 3), ("alice", only, 0), ("alice", other, 0)):
            found = trains(user, text(file))
            if rows:
                assert found == f"{rows} rows", (user, file, found)
            else:
                expect(found, "not below a folder")
        expect(trains("alice", text(top / "open/out")), "leads out of")
        expect(trains("alice", text(top / "open/../other/lines")), "not below a folder")
        expect(trains("alice", text(top / "open/fifo")), "fifo")


@check
def jobs_of_others():
    """Nobody sees, stops, evicts, joins or changes what is somebody else's."""
    path = spec("mine", "range: 400")
    ranks = Ranks("alice", "mine", path, step_ms=20)
    try:
        ranks.until_taken(4)
        expect(sh("penstock", "jobs", user="alice"), "mine")
        for asked in ("jobs", "status", "datasets"):
            assert "mine" not in sh("penstock", asked, user="bob"), asked
        sh("penstock", "stop", "mine", user="bob", wanted=1)
        sh("penstock", "evict", "mine", "0", user="bob", wanted=1)
        sh("penstock", "state", "mine", user="bob", wanted=1)
        expect(sh("penstock", "workers", "1", user="bob", wanted=1), "only root")
        sh("penstock", "register", path, user="alice")
        sh("penstock", "unregister", "mine", user="bob", wanted=1)
        expect(sh("penstock", "datasets", user="alice"), "mine")
        # His job of the same name is another one.
        his = Ranks("bob", "mine", path, ranks=1, step_ms=0)
        his.end()
        his.each_once(400)
        ranks.end()
        ranks.each_once(400)
    finally:
        ranks.stop()


# ---- object stores

FETCH_DROP_IN = pathlib.Path("/run/systemd/system/penstock-fetch.service.d/check.conf")
STORES = pathlib.Path("/etc/penstock/stores.ini")
COPIES = pathlib.Path("/var/cache/penstock-fetch")
STORE = "http://127.0.0.1:8000"
SERVER = """import os, sys, time, web_server
files = {f"{folder}/{i}.bin": os.urandom(4096 * 500)
         for folder in ("open", "team", "other") for i in range(4)}
with web_server.web_server(8000, files) as store:
    store.fault = lambda path, number: 0.02
    time.sleep(1e6)
"""


def fetcher(name):
    return sh("systemctl", "show", "--value", "-p", name, "penstock-fetch.service").strip()


def at_store(path):
    return (f'fixed_length_records: {{files: "{STORE}/{path}", '
            "features: {x: {dtype: uint8, shape: [4096]}}}")


@contextlib.contextmanager
def store():
    """A web server of another user, and what an administrator does for it."""
    server = subprocess.Popen(as_user("dave", sys.executable, "-c", SERVER), cwd=GIVEN)
    packaged = STORES.read_text()
    try:
        STORES.write_text(f"[{STORE}/open]\n[{STORE}/team]\n")
        configure("fetcher: /run/penstock-fetch/fetch.sock\ndata:\n"
                  f"  - path: {STORE}/open\n"
                  f"  - {{path: {STORE}/team, users: [alice]}}\n"
                  f"  - path: {STORE}/other\n")
        yield
    finally:
        server.kill()
        server.wait()
        sh("systemctl", "stop", "penstock-fetch.socket", "penstock-fetch.service", wanted=None)
        STORES.write_text(packaged)
        FETCH_DROP_IN.unlink(missing_ok=True)
        sh("systemctl", "daemon-reload")


@check
def object_stores():
    """The fetcher's unit has the network and the addresses, the daemon's has neither; either
    is killed, restarted and short of disk under load."""
    with store():
        sh("systemctl", "stop", "penstock-fetch.socket", "penstock-fetch.service")
        expect(trains("alice", at_store("open/0.bin")), "systemctl enable --now penstock-fetch")
        sh("systemctl", "start", "penstock-fetch.socket")
        # Debian's Python has no client.
        expect(trains("alice", at_store("open/0.bin")), "pip install obstore", "/usr/bin/python3")
        sh(sys.executable, "-m", "venv", "--without-pip", "/opt/penstock")
        packages, = pathlib.Path("/opt/penstock").glob("lib/python3*/site-packages")
        shutil.copytree(GIVEN / "python", packages, dirs_exist_ok=True)
        FETCH_DROP_IN.parent.mkdir(parents=True, exist_ok=True)
        FETCH_DROP_IN.write_text("[Service]\nEnvironment=PYTHON=/opt/penstock/bin/python\n")
        sh("systemctl", "daemon-reload")
        sh("systemctl", "restart", "penstock-fetch")
        assert trains("alice", at_store("open/{0,1}.bin")) == "1000 rows"
        # Two processes, two users; the daemon reaches no network.
        fetches = int(fetcher("MainPID"))
        assert pathlib.Path(f"/proc/{fetches}").owner() == "penstock-fetch"
        assert pathlib.Path(f"/proc/{pid()}").owner() == "penstock"
        net = [os.readlink(f"/proc/{each}/ns/net") for each in (fetches, pid(), 1)]
        assert net[0] == net[2] != net[1], net
        sh("cat", "/run/credentials/penstock-fetch.service/stores.ini", user="penstock", wanted=1)
        sh("ls", COPIES, user="alice", wanted=1)
        sh("ls", COPIES, user="penstock")
        sh("python3", "-c", "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)"
           ".connect('/run/penstock-fetch/fetch.sock')", user="alice", wanted=1)
        # Both files must allow an address.
        assert trains("alice", at_store("team/0.bin")) == "500 rows"
        for user, path, why in (("bob", "team/0.bin", "not below an address"),
                                ("bob", "none/0.bin", "not below an address"),
                                ("bob", "open/../team/0.bin", "not below an address"),
                                ("bob", "other/0.bin", "stores.ini"),
                                ("bob", "open/none.bin", "no such object")):
            expect(trains(user, at_store(path)), why)
        found = sh("systemd-analyze", "security", "--no-pager", "penstock-fetch.service")
        print("  " + re.search(r"Overall exposure level.*", found).group())
        # Whatever ends, each row comes once.
        rest = "cache: {files: 4M}\nshuffle: {seed: 1}\nepochs: 3\n"
        jobs = [Ranks(user, "remote", spec(f"remote-{user}", at_store("open/{0..3}.bin"), rest),
                      step_ms=40) for user in ("alice", "bob")]
        try:
            for unit, signal_ in (("penstock-fetch", "KILL"), ("penstockd", "KILL"),
                                  ("penstock-fetch", None), ("penstockd", None)):
                for each in jobs:
                    each.until_taken(6)
                if signal_:
                    sh("systemctl", "kill", "-s", signal_, unit)
                else:
                    sh("systemctl", "restart", unit)
            assert int(fetcher("MainPID")) not in (0, fetches)
            for each in jobs:
                each.until_taken(6)
            HURRY.touch()
            for each in jobs:
                each.end()
                each.each_once(2000, epochs=3)
                assert not each.errors(), each.errors()
        finally:
            HURRY.unlink(missing_ok=True)
            for each in jobs:
                each.stop()
        # A disk that is full, then one that is not.
        sh("systemctl", "stop", "penstock-fetch.service", "penstockd.service")
        with mounted(COPIES, "6M", owner="penstock-fetch"):
            COPIES.chmod(0o750)
            sh("systemctl", "start", "penstockd.service")
            assert trains("alice", at_store("open/{0..3}.bin")) == "2000 rows"
            fill(COPIES)
            expect(trains("alice", at_store("team/{0..3}.bin")), "no space is left")
            sh("systemctl", "stop", "penstock-fetch.service")
    assert trains("alice", "range: 10") == "10 rows"


# ---- limits


@check
def memory_limit():
    """A job that the unit's MemoryMax has no room for is refused, with the numbers."""
    drop_in("MemoryMax=160M")
    with load():
        found = trains("alice", "synthetic: {records: 1000000, "
                       "features: {x: {dtype: uint8, shape: [4000000]}}}",
                       "prefetch: 64\n")
        expect(found, "memory.max of cgroup", "160.0 MiB", "penstockd.service")
    assert int(service("NRestarts")) == 0, "it died of it"
    as_packaged()
    configure("memory_limit_per_user: 64M\n")
    found = trains("alice", "synthetic: {records: 1000000, "
                   "features: {x: {dtype: uint8, shape: [4000000]}}}", "prefetch: 64\n")
    expect(found, "memory_limit_per_user", "64.0 MiB")
    assert trains("bob", "range: 10") == "10 rows"


# ---- disks


@contextlib.contextmanager
def mounted(path, size="8M", owner="penstock"):
    """A small file system there."""
    sh("mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", DISK, size)
    sh("mount", DISK, path)
    try:
        shutil.chown(path, owner, owner)
        yield
    finally:
        sh("systemctl", "stop", "penstockd.service")
        sh("umount", path)


def fill(folder):
    with open(folder / "filler", "wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(65536))


@check
def disk_full():
    """A full state folder costs no job a row, nor one of the daemon's death with it;
    a full cache folder costs time only."""
    sh("systemctl", "stop", "penstockd.service")
    with mounted(STATE):
        sh("systemctl", "start", "penstockd.service")
        with load() as jobs:
            fill(STATE)
            for each in jobs:
                each.until_taken(4)
            assert trains("alice", "range: 50") == "50 rows"
            sh("systemctl", "kill", "-s", "KILL", "penstockd")
            until(lambda: int(service("NRestarts")) == 1, what="a restart")
            for each in jobs:
                each.until_taken(4)
        until(lambda: "No space left" in status()["broker"]["journal"], what="a word of it")
        (STATE / "filler").unlink()
        until(lambda: status()["broker"]["journal"] == "", what="written again")
    with mounted(CACHE):
        sh("systemctl", "start", "penstockd.service")
        fill(CACHE)
        many = pathlib.Path("/srv/many")
        many.mkdir()
        for number in range(200):
            (many / f"{number}.txt").write_text("a line\n" * 20)
        assert trains("alice", text(many / "*.txt")) == "4000 rows"
        shutil.rmtree(many)
    sh("systemctl", "start", "penstockd.service")


@contextlib.contextmanager
def on_mapper(folder):
    """The folder is on a disk that can go wrong, of this table."""
    sh("mke2fs", "-q", "-F", "-t", "ext4", DISK, "100M")
    table = f"0 {100 << 11} linear {DISK} 0"
    dmsetup("create", "gone", "--table", table)
    folder.mkdir(exist_ok=True)
    sh("mount", "/dev/dm-0", folder)
    try:
        yield table
    finally:
        dmsetup("resume", "gone", wanted=None)
        sh("systemctl", "stop", "penstockd.service")
        sh("umount", folder)
        dmsetup("remove", "gone")


def dmsetup(command, *arguments, **options):
    # No udev runs here.
    return sh("dmsetup", command, "--noudevrules", "--noudevsync", *arguments, **options)


def hang():
    """Until `dmsetup resume`."""
    dmsetup("suspend", "gone", "--nolockfs", "--noflush")


def change_table(table):
    hang()
    dmsetup("load", "gone", "--table", table)
    dmsetup("resume", "gone")


RECORDS = ("fixed_length_records: {{files: {}/records, io: direct, "
           "features: {{x: {{dtype: uint8, shape: [65536]}}}}}}")


@check
def data_gone():
    """A disk that fails, then one that hangs, end the job that reads there, and say
    which file; others go on."""
    configure("read_timeout: 4s\n")
    folder = pathlib.Path("/srv/disk")
    with on_mapper(folder) as table:
        (folder / "records").write_bytes(os.urandom(32 << 20))
        sh("sync")
        path = spec("on_disk", RECORDS.format(folder), "epochs: forever\n", batch=4)
        with load() as jobs:
            reads = Ranks("alice", "fails", path, ranks=1)
            reads.until_taken(4)
            change_table(table.replace("linear", "error").replace(f" {DISK} 0", ""))
            expect(reads.fails(), f"{folder}/records", "Input/output error")
            change_table(table)
            reads = Ranks("alice", "hangs", path, ranks=1)
            reads.until_taken(4)
            hang()
            until(lambda: [each for each in status()["late_reads"]
                           if str(folder) in each["file"]], what="a late read")
            expect(reads.fails(), f"{folder}/records", "not read in 4.")
            for each in jobs:
                each.until_taken(2)
            dmsetup("resume", "gone")
        reads = Ranks("alice", "again", path, ranks=1)
        reads.until_taken(8)
        reads.stop()
        sh("penstock", "stop", "again", user="alice")
    folder.rmdir()


@check
def state_gone():
    """A state folder on a disk that hangs, then fails, costs no job a row."""
    sh("systemctl", "stop", "penstockd.service")
    with on_mapper(STATE) as table:
        shutil.chown(STATE, "penstock", "penstock")
        sh("systemctl", "start", "penstockd.service")
        with load() as jobs:
            hang()
            assert trains("alice", "range: 50") == "50 rows"
            for each in jobs:
                each.until_taken(4)
            dmsetup("resume", "gone")
            change_table(table.replace("linear", "error").replace(f" {DISK} 0", ""))
            sh("sync", wanted=None)  # ext4 finds out, and is read-only from then on
            assert trains("alice", "range: 50") == "50 rows"
            for each in jobs:
                each.until_taken(4)
    remove_memory()
    sh("systemctl", "start", "penstockd.service")


# ---- time


@check
def clock():
    """The clock jumps a day ahead and back."""
    with load() as jobs:
        for jump in (86400, -2 * 86400, 86400):
            sh("date", "-s", f"@{int(time.time()) + jump}")
            for each in jobs:
                each.until_taken(4, seconds=30)
        assert status()["broker"]["uptime_s"] < 86000


@check
def upgrade():
    """The package before is replaced under load: the same socket, no error."""
    sh("dpkg", "-i", "--force-downgrade", *sorted((GIVEN / "before").glob("*.deb")),
       timeout=300)
    older = sh("penstockd", "--version").strip()
    with load() as jobs:
        before = pid()
        socket = os.stat("/run/penstock/penstock.sock").st_ino
        sh("dpkg", "-i", *sorted((GIVEN / "packages").glob("*.deb")), timeout=300)
        assert pid() not in (0, before), "it was not restarted"
        assert os.readlink(f"/proc/{pid()}/exe") == "/usr/bin/penstockd"
        assert os.stat("/run/penstock/penstock.sock").st_ino == socket
        for each in jobs:
            each.until_taken(2)
    print(f"  from {older} to {sh('penstockd', '--version').strip()}")


SOAK = False


@check
def week():
    """Jobs begin and end, some killed: memory, descriptors and files stay flat."""
    jobs_a_round = 96 if SOAK else 12
    rounds = 14 if SOAK else 6
    path = spec("week", "range: 64")

    def sample():
        until(lambda: not status()["jobs"], 90, "no job")
        roll = pathlib.Path(f"/proc/{pid()}/smaps_rollup").read_text()
        return {
            "jobs": done,
            "anonymous_kib": int(re.search(r"Anonymous: +(\d+)", roll).group(1)),
            "descriptors": len(os.listdir(f"/proc/{pid()}/fd")),
            "stored": int(service("NFileDescriptorStore")),
            "threads": len(os.listdir(f"/proc/{pid()}/task")),
            "shared_kib": int(re.search(
                r"Shmem: +(\d+)", pathlib.Path("/proc/meminfo").read_text()).group(1)),
            "shm_files": sum(1 for each in pathlib.Path("/dev/shm").rglob("*")),
            "state_kib": int(sh("du", "-sk", STATE).split()[0]),
            "cache_kib": int(sh("du", "-sk", CACHE).split()[0]),
            "journal_lines": len(journal()),
        }

    done = 0
    samples = []
    lines_before = len(journal())
    for number in range(rounds):
        rank = [GIVEN / "rank", "jobs"]
        environment = ["env", f"PENSTOCK_DATASET={path}"]
        each = jobs_a_round // 3
        loops = [subprocess.Popen([*as_user(user), *environment, *rank, f"{user}-{number}",
                                   str(each)], stdout=subprocess.PIPE, text=True)
                 for user in USERS]
        # One is killed at its work in each round.
        victim = Ranks("alice", f"victim-{number}", path, ranks=1, step_ms=200)
        victim.until_taken(1)
        victim.stop()
        sh("penstock", "stop", victim.name, user="alice", wanted=None)
        for loop in loops:
            assert loop.communicate(timeout=600)[0] == f"{64 * each}\n"
        done += jobs_a_round + 1
        samples.append(sample())
        if SOAK:
            print("  ", samples[-1], flush=True)
    # The first rounds fill pools.
    first, last = samples[len(samples) // 3], samples[-1]
    jobs = last["jobs"] - first["jobs"]
    print(f"  after {first['jobs']} jobs: {first}\n  after {last['jobs']} jobs: {last}")
    for name, growth in (("anonymous_kib", 2048), ("descriptors", 0), ("stored", 0),
                         ("threads", 0), ("shared_kib", 1024), ("shm_files", 0),
                         ("cache_kib", 64)):
        assert last[name] - first[name] <= growth, f"{name} grows: {samples}"
    # Ended jobs are remembered for ten minutes, and the journal is compacted when it
    # has 1 MiB and four times what it had after the last time.
    assert last["state_kib"] < 2048, samples
    lines_a_job = (last["journal_lines"] - first["journal_lines"]) / jobs
    assert lines_a_job <= 4, f"{lines_a_job} lines a job: {journal(lines_before)[-40:]}"


@check
def purge():
    """A removal keeps the configuration; a purge leaves nothing."""
    sh("dpkg", "--remove", "penstock", "penstockd", "libpenstock0", timeout=300)
    assert CONFIG.exists() and not shutil.which("penstockd")
    assert sh("systemctl", "is-active", "penstockd.socket", wanted=None) == "inactive\n"
    for user in (*USERS, "dave"):
        sh("userdel", user)
    sh("dpkg", "--purge", "penstock", "penstockd", "libpenstock0", timeout=300)
    left = {each for each in everything() ^ BEFORE
            if "/__pycache__" not in each and each != "/run/initctl"}
    assert not left, sorted(left)
    assert not sh("find", "/dev/shm", "-name", "*penstock*")


def main():
    global SOAK
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", action="store_true", help="only looks at the names")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--soak", action="store_true")
    parser.add_argument("check", nargs="*")
    arguments = parser.parse_args()
    SOAK = arguments.soak
    if arguments.list:
        for name, function in CHECKS.items():
            print(f"{name:20} {' '.join(function.__doc__.split())}")
    unknown = set(arguments.check) - set(CHECKS)
    if unknown:
        print(f"no such check: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if arguments.list or arguments.names:
        return 0
    failed = []
    print(f"booted in {time.monotonic():.0f} s, systemd "
          f"{sh('systemctl', '--version').split()[1]}, Linux {os.uname().release}")
    for name, function in CHECKS.items():
        if arguments.check and name not in ("install", "purge", *arguments.check):
            continue
        start = time.monotonic()
        result = "ok"
        since = len(journal()) if shutil.which("penstockd") else 0
        try:
            function()
        except Exception:  # the next ones are of use all the same
            result = "FAILED"
            failed.append(name)
            traceback.print_exc(file=sys.stdout)
            print("".join(f"  | {line}\n" for line in journal(since)[-40:]))
        print(f"{name:20} {result:6} {time.monotonic() - start:6.1f} s", flush=True)
        try:
            as_packaged(forget=result != "ok")
        except Exception:
            traceback.print_exc(file=sys.stdout)
            failed.append(name)
    print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
