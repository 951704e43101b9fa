"""A penstockd with a job of two paced ranks, for tests of what shows it."""

import json
import pathlib
import subprocess
import tempfile
import time
import unittest


class RunningBroker:
    """`with RunningBroker(BUILD) as broker:` has its .socket and .folder."""

    RANKS = 2

    def __init__(self, build, job="train"):
        self.build, self.job = pathlib.Path(build), job
        self.penstock = self.build / "client/command/penstock"
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-see-")
        self.folder = pathlib.Path(self._folder.name)
        self.socket = self.folder / "penstock.sock"
        self.processes = []
        self.daemon = None

    def __enter__(self):
        for name in ("ranks", "state"):
            (self.folder / name).mkdir()
        self.start()
        for rank in range(self.RANKS):
            # Far more than the test takes: it ends with the broker.
            self.processes.append(subprocess.Popen(
                [self.build / "tests/crash/soak", "rank", "--kind", "split",
                 "--delivery", "split", "--on-rank-death", "wait", "--ranks",
                 str(self.RANKS), "--records", "3000000", "--batch", "12",
                 "--epochs", "9", "--hold", "2", "--job", self.job, "--socket",
                 self.socket, "--folder", self.folder / "ranks", "--rank",
                 str(rank), "--restart", "0", "--seed", "1", "--pace-us",
                 "5000"], stderr=subprocess.DEVNULL))
        for _ in range(300):
            jobs = json.loads(self.ask("status", "--json").stdout)["jobs"]
            ranks = jobs[0].get("ranks", []) if jobs else []
            if sum(rank["taken"] > 0 for rank in ranks) == self.RANKS:
                return self
            time.sleep(0.1)
        log = (self.folder / "log").read_text()
        self.__exit__()
        raise AssertionError("no job:\n" + log)

    def start(self):
        with open(self.folder / "log", "a", encoding="utf-8") as log:
            self.daemon = subprocess.Popen(
                [self.build / "broker/penstockd", "--socket", self.socket,
                 "--state-dir", self.folder / "state"], stderr=log)
        while self.ask("jobs").returncode != 0:
            assert self.daemon.poll() is None, "penstockd ended"
            time.sleep(0.02)

    def ask(self, *arguments, **more):
        return subprocess.run(
            [self.penstock, *arguments, "--socket", self.socket],
            capture_output=True, text=True, timeout=60, check=False, **more)

    def __exit__(self, *_):
        for process in [*self.processes, self.daemon]:
            process.kill()
            process.wait()
        self._folder.cleanup()


class BrokerTest(unittest.TestCase):
    """Tests of one running broker."""

    BUILD = None  # the build folder

    @classmethod
    def setUpClass(cls):
        cls.broker = RunningBroker(cls.BUILD).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.broker.__exit__()
