"""Rows that another host makes: the same bytes in the same order as without, each once,
whatever dies on the way. Method: two brokers as two hosts, `penstock link` beside each, a
job whose decoding is more than one worker does; rows are compared with those of a broker
that has no link."""

import contextlib
import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import penstock
import pytest
from bad_network import Proxy
from PIL import Image

BIN = os.path.join(os.path.dirname(penstock.__file__), "bin")
PICTURES = 48
EPOCHS = 6


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(7)
    for i in range(PICTURES):
        of_class = folder / str(i % 4)
        of_class.mkdir(exist_ok=True)
        small = random.integers(0, 256, (40, 56, 3), dtype=np.uint8)
        Image.fromarray(small).resize((900, 640)).save(of_class / f"{i:03}.jpg", quality=95)
    return folder


def spec_of(pictures, epochs=EPOCHS, on_error="fail"):
    """The path of a spec."""
    path = pictures.parent / f"{pictures.name}-{epochs}-{on_error}.yaml"
    path.write_text(json.dumps({
        "dataset": "pictures",
        "source": {"image_folder": {"path": str(pictures)}},
        "shuffle": {"seed": 3},
        "map": [{"decode_image": {"crop": "random_resized", "size": [224, 224]}},
                {"flip": {"horizontal": 0.5}},
                {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225],
                               "dtype": "float32", "layout": "chw"}}],
        "batch": {"size": 16}, "epochs": epochs, "on_error": on_error}))
    return path


def rows(socket_path, spec, job, pause=0.0, at=None):
    """(epoch, step, ids, digest) of each batch."""
    taken = []
    with penstock.attach(spec, socket=socket_path, job=job, timeout_s=120) as reader:
        for batch in reader:
            digest = hashlib.sha256(np.ascontiguousarray(batch["image"]).tobytes())
            digest.update(np.ascontiguousarray(batch["label"]).tobytes())
            taken.append((batch.epoch, batch.step, tuple(batch.ids.tolist()),
                          digest.hexdigest()))
            if at is not None:
                at(len(taken))
            time.sleep(pause)
    return taken


@pytest.fixture(scope="module")
def alone(pictures):
    """What a host without help delivers."""
    with penstock.broker(workers=2) as broker:
        return rows(broker.socket, spec_of(pictures), "alone")


class Program:
    """A `penstock link` that is read until it ends."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([os.path.join(BIN, "penstock"), "link", *arguments],
                                        stderr=subprocess.PIPE, text=True)
        self.lines, self.news = [], threading.Condition()
        self.reading = threading.Thread(target=self.read)
        self.reading.start()

    def read(self):
        for line in self.process.stderr:
            with self.news:
                self.lines.append(line.rstrip("\n"))
                self.news.notify_all()

    def line_with(self, text, seconds=30):
        def found():
            return [line for line in self.lines if text in line]
        with self.news:
            assert self.news.wait_for(found, seconds), f"no '{text}' in {self.lines}"
            return found()[0]

    def send(self, number):
        self.process.send_signal(number)

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(number)
        self.process.wait(20)
        self.reading.join()


class Hosts:
    """A training host, and one that makes rows for it."""

    def __init__(self, training, maker, folder):
        self.training, self.maker, self.options = training, maker, ()
        self.token = folder / "token"
        self.token.write_text("0123456789abcdef")
        self.serving = self.using = None
        self.serve()

    def secured(self, options):
        if {"--cert", "--token-file"}.intersection(options):
            return options
        return (*options, "--token-file", str(self.token))

    def serve(self, port=0):
        self.serving = Program("serve", "--socket", self.maker.socket, "--listen",
                               f"127.0.0.1:{port}", *self.secured(self.options))
        self.port = int(self.serving.line_with("makes rows at").rsplit(":", 1)[1])

    def start_using(self, remote=None, *options):
        self.using = Program("use", "--socket", self.training.socket, "--remote",
                             remote or f"127.0.0.1:{self.port}", *self.secured(options))

    def use(self, remote=None, *options):
        self.start_using(remote, *options)
        wait_for(lambda: [each for each in self.status().get("makers", [])
                          if each["state"] == "connected"])

    def status(self, broker=None):
        out = subprocess.run([os.path.join(BIN, "penstock"), "status", "--json", "--socket",
                              (broker or self.training).socket], check=True,
                             stdout=subprocess.PIPE).stdout
        return json.loads(out)

    def remote(self):
        for job in self.status()["jobs"]:
            if "remote_rows" in job:
                return job["remote_rows"]
        return None

    def end(self):
        for program in (self.using, self.serving):
            if program is not None:
                program.end()


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it has not happened")


@pytest.fixture
def hosts(tmp_path):
    with penstock.broker(workers=1) as training, penstock.broker(workers=1) as maker:
        made = Hosts(training, maker, tmp_path)
        yield made
        made.end()


@pytest.fixture(scope="module", autouse=True)
def busy():
    """Local workers come first: on an idle machine they need no help."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
             for _ in range(os.cpu_count() or 1)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


def test_rows_of_another_host_are_the_same(hosts, pictures, alone):
    hosts.use()
    seen = {}

    def look(step):
        if step % 4 == 0:
            seen.update(hosts.remote() or {})
    assert rows(hosts.training.socket, spec_of(pictures), "helped", at=look) == alone
    assert seen["rows_used"] > 0
    # They travel before they are float32.
    assert seen["steps"] == 2
    assert seen["row_bytes"] < 160_000
    assert seen["makers"][0]["checked"] > 0
    assert not seen["makers"][0]["distrusted"]
    # The maker is told that the job is over, though no other begins.
    wait_for(lambda: not hosts.status(hosts.maker)["jobs"])


def test_without_a_link_nothing_is_asked(hosts, pictures, alone):
    assert rows(hosts.training.socket, spec_of(pictures), "unhelped") == alone
    assert hosts.remote() is None


def run_with(hosts, pictures, events, pause=0.01):
    """The rows of a helped job, in which event n happens before step n is over."""
    left = dict(events)

    def at(step):
        if step in left:
            left.pop(step)()
    taken = rows(hosts.training.socket, spec_of(pictures), "disturbed", pause, at)
    assert not left
    return taken


def test_a_maker_dies_and_another_comes(hosts, pictures, alone):
    hosts.use()
    port = hosts.port

    def kill():
        hosts.serving.end(signal.SIGKILL)

    def back():
        hosts.serve(port)
    assert run_with(hosts, pictures, {4: kill, 8: back}) == alone


def test_the_link_dies_and_another_comes(hosts, pictures, alone):
    hosts.use()

    def kill():
        hosts.using.end(signal.SIGKILL)
    assert run_with(hosts, pictures, {4: kill, 8: hosts.use}) == alone


def test_a_maker_and_its_link_stand_still(hosts, pictures, alone):
    hosts.use()
    begun = time.monotonic()
    assert run_with(hosts, pictures, {
        3: lambda: hosts.serving.send(signal.SIGSTOP),
        6: lambda: hosts.serving.send(signal.SIGCONT),
        8: lambda: hosts.using.send(signal.SIGSTOP),
        12: lambda: hosts.using.send(signal.SIGCONT)}) == alone
    assert time.monotonic() - begun < 60


def test_the_maker_s_broker_dies(pictures, alone, tmp_path):
    with penstock.broker(workers=1) as training:
        maker = penstock.broker(workers=1)
        hosts = Hosts(training, maker, tmp_path)
        try:
            hosts.use()
            assert run_with(hosts, pictures, {4: maker.stop}) == alone
        finally:
            hosts.end()


def test_rows_are_asked_of_several_makers(hosts, pictures, alone, tmp_path):
    with penstock.broker(workers=1) as second:
        other = Hosts(hosts.training, second, tmp_path)
        try:
            hosts.use(f"127.0.0.1:{hosts.port},127.0.0.1:{other.port}")
            seen = {}
            assert rows(hosts.training.socket, spec_of(pictures), "several",
                        at=lambda _: seen.update(hosts.remote() or {})) == alone
            assert len([each for each in seen["makers"] if each["rows"] > 0]) == 2
        finally:
            other.end()


# ---- makers that are of no use: named, and training goes on

def test_a_maker_with_other_files(hosts, pictures, alone, tmp_path):
    other = tmp_path / "other"
    for path in sorted(pictures.rglob("*.jpg"))[1:]:
        (other / path.parent.name).mkdir(parents=True, exist_ok=True)
        (other / path.parent.name / path.name).write_bytes(path.read_bytes())
    hosts.serving.end()
    hosts.options = ("--map", f"{pictures}={other}")
    hosts.serve()
    hosts.use()
    assert rows(hosts.training.socket, spec_of(pictures), "other files") == alone
    hosts.using.line_with("the files here are not those of the other host")


def test_a_maker_whose_files_are_at_another_path(hosts, pictures, alone, tmp_path):
    (tmp_path / "here").symlink_to(pictures)
    hosts.serving.end()
    hosts.options = ("--map", f"{pictures}={tmp_path}/here")
    hosts.serve()
    hosts.use()
    seen = {}
    assert rows(hosts.training.socket, spec_of(pictures), "elsewhere",
                at=lambda _: seen.update(hosts.remote() or {})) == alone
    assert seen["rows_used"] > 0


def test_a_token_has_to_be_the_same(hosts, pictures, alone, tmp_path):
    for name, text in (("good", "0123456789abcdef"), ("bad", "0123456789abcdeg")):
        (tmp_path / name).write_text(text + "\n")
    hosts.serving.end()
    hosts.options = ("--token-file", str(tmp_path / "good"))
    hosts.serve()
    hosts.start_using(None, "--token-file", str(tmp_path / "bad"))
    hosts.using.line_with("the token is not the one of this link")
    assert rows(hosts.training.socket, spec_of(pictures), "bad token") == alone
    hosts.using.end()
    hosts.use(None, "--token-file", str(tmp_path / "good"))
    seen = {}
    assert rows(hosts.training.socket, spec_of(pictures), "good token",
                at=lambda _: seen.update(hosts.remote() or {})) == alone
    assert seen["rows_used"] > 0


def certificates(folder, names, days=30, ca="ca"):
    """NAME.pem and NAME.key of each, signed by CA.pem."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not (folder / f"{ca}.pem").exists():
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}", "-days", "30")
    for name in names:
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key",
                "-CAcreateserial", "-out", f"{name}.pem", "-days", str(days),
                "-extfile", "names")


def tls(folder, name, ca="ca"):
    return ("--cert", str(folder / f"{name}.pem"), "--key", str(folder / f"{name}.key"),
            "--ca", str(folder / f"{ca}.pem"))


def test_both_sides_show_certificates(hosts, pictures, alone, tmp_path):
    certificates(tmp_path, ["maker", "trainer"])
    hosts.serving.end()
    hosts.options = tls(tmp_path, "maker")
    hosts.serve()
    hosts.use(None, *tls(tmp_path, "trainer"))
    seen = {}
    assert rows(hosts.training.socket, spec_of(pictures), "tls",
                at=lambda _: seen.update(hosts.remote() or {})) == alone
    assert seen["rows_used"] > 0


@pytest.mark.parametrize("case, says", [
    ("stranger", "unknown ca"), ("plain", ""), ("name", "IP address mismatch")])
def test_a_certificate_that_is_not_good_is_named(hosts, pictures, alone, tmp_path, case, says):
    certificates(tmp_path, ["trainer", "maker"])
    certificates(tmp_path, ["stranger"], ca="other")
    hosts.serving.end()
    hosts.options = tls(tmp_path, "maker")
    hosts.serve()
    options = {"stranger": tls(tmp_path, "stranger"), "plain": ()}.get(
        case, tls(tmp_path, "trainer"))
    remote = f"127.0.0.2:{hosts.port}" if case == "name" else f"127.0.0.1:{hosts.port}"
    if case == "name":
        hosts.serving.end()
        hosts.serving = Program("serve", "--socket", hosts.maker.socket, "--listen",
                                f"127.0.0.2:{hosts.port}", *hosts.options)
        hosts.serving.line_with("makes rows at")
    hosts.start_using(remote, *options)
    assert rows(hosts.training.socket, spec_of(pictures), case) == alone
    maker = wait_for(lambda: [each for each in hosts.status().get("makers", [])
                              if each["error"]])[0]
    assert says in maker["error"]
    assert maker["rows"] == 0


def test_an_expired_certificate_is_named_at_once(hosts, tmp_path):
    certificates(tmp_path, ["expired"], days=0)
    time.sleep(1.1)
    for side in (("serve", "--socket", hosts.maker.socket),
                 ("use", "--socket", hosts.training.socket, "--remote", "127.0.0.1")):
        program = Program(*side, *tls(tmp_path, "expired"))
        program.line_with("expired.pem: the certificate has expired")
        assert program.process.wait(10) == 1
        program.end()


def test_a_maker_that_ends_while_nothing_is_asked_is_away(hosts):
    hosts.use()
    hosts.serving.end()
    wait_for(lambda: [each for each in hosts.status()["makers"] if each["state"] == "away"])


def test_nothing_is_asked_while_workers_keep_up(hosts, pictures):
    hosts.use()
    seen = {}
    rows(hosts.training.socket, spec_of(pictures), "slow", 0.25,
         at=lambda step: seen.__setitem__(step, (hosts.remote() or {}).get("rows_asked", 0)))
    # The first batches are waited for.
    assert seen[18] - seen[8] <= 16, seen


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n",
                                    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
                                    b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n",
                                    b"HTTP/1.1 200 OK\r\n\r\n", b""])
def test_a_server_that_is_none_of_ours(hosts, pictures, alone, answer):
    listener = socket.create_server(("127.0.0.1", 0))
    ends = threading.Event()

    def serve():
        listener.settimeout(0.1)
        while not ends.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(0.2)
                try:
                    connection.recv(1 << 16)
                    connection.sendall(answer)
                except OSError:
                    pass
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        hosts.start_using(f"127.0.0.1:{listener.getsockname()[1]}")
        assert rows(hosts.training.socket, spec_of(pictures), "no link") == alone
        wait_for(lambda: any(each["error"] for each in hosts.status().get("makers", [])))
    finally:
        ends.set()
        thread.join()
        listener.close()


def test_a_maker_that_makes_other_rows_is_put_out(hosts, pictures, alone, tmp_path):
    """The same files by their sizes and names, with other pixels."""
    other = tmp_path / "other"
    for path in pictures.rglob("*.jpg"):
        (other / path.parent.name).mkdir(parents=True, exist_ok=True)
        gray = io.BytesIO()
        Image.new("RGB", (900, 640), (90, 90, 90)).save(gray, "JPEG")
        # Comments (FF FE, their length) make it as long.
        made, left = gray.getvalue(), path.stat().st_size - len(gray.getvalue())
        while left > 0:
            piece = min(left, 60_000) if left - 60_000 not in range(1, 5) else left - 10
            made = made[:2] + b"\xff\xfe" + (piece - 2).to_bytes(2, "big") + \
                bytes(piece - 4) + made[2:]
            left -= piece
        assert len(made) == path.stat().st_size
        (other / path.parent.name / path.name).write_bytes(made)
    hosts.serving.end()
    hosts.options = ("--map", f"{pictures}={other}")
    hosts.serve()
    hosts.use()
    seen = {}
    assert rows(hosts.training.socket, spec_of(pictures), "liar", 0.02,
                at=lambda _: seen.update(hosts.remote() or {})) == alone
    assert seen["makers"][0]["distrusted"]
    hosts.using.line_with("makes other rows than this host")


# ---- a bad network

def test_a_network_that_loses_changes_and_delays_bytes(hosts, pictures, alone):
    proxy = Proxy(hosts.port)
    try:
        hosts.use(f"127.0.0.1:{proxy.port}")
        seen, used, jobs = {}, 0, 0
        # How many pieces a pass has, and so how many faults, is up to the kernel.
        while proxy.faults <= 10 or not used:
            jobs += 1
            assert jobs < 50
            assert rows(hosts.training.socket, spec_of(pictures), f"faults {jobs}",
                        at=lambda _: seen.update(hosts.remote() or {})) == alone
            used += seen.pop("rows_used", 0)
        # Changed bytes are no lie of the maker's.
        assert not any(each["distrusted"] for each in seen["makers"])
    finally:
        proxy.end()


# ---- where makers are found

def test_makers_come_and_go_with_a_file(hosts, pictures, tmp_path):
    listed = tmp_path / "makers"
    listed.write_text(f"# none yet\n127.0.0.1:{hosts.port}\n")
    hosts.use(f"file:{listed}")
    listed.write_text("")
    wait_for(lambda: not hosts.status().get("makers"))
    listed.write_text(f"127.0.0.1:{hosts.port}\n")
    wait_for(lambda: hosts.status().get("makers"))


def test_more_jobs_than_a_connection_opens(hosts, pictures, alone):
    hosts.use()
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(penstock.attach(
            spec_of(pictures), socket=hosts.training.socket, job=f"many {i}", timeout_s=120))
            for i in range(10)]
        ids = [[tuple(batch.ids.tolist()) for batch in reader] for reader in readers]
    assert all(each == [step[2] for step in alone] for each in ids)
    assert not [line for line in hosts.serving.lines if "no such dataset" in line]


def test_a_name_that_is_none(hosts, pictures, alone):
    hosts.start_using("dns:no-such-name.invalid")
    hosts.using.line_with("no-such-name.invalid")
    assert rows(hosts.training.socket, spec_of(pictures), "no name") == alone


@pytest.mark.parametrize("remote", ["", "a b", "host:0", "host:99999", "http://x"])
def test_an_address_that_is_none(hosts, remote):
    program = Program("use", "--socket", hosts.training.socket, "--remote", remote)
    program.line_with("wanted HOST:PORT")
    assert program.process.wait(10) == 1
    program.end()


def test_nobody_reaches_it_without_security(hosts):
    program = Program("serve", "--socket", hosts.maker.socket, "--listen", "127.0.0.1:0")
    program.line_with("whoever connects can read the files of this user")
    program.end()


# ---- functions

FUNCTION = """
import time


def slow(row, rng):
    time.sleep(0.01)
    return {"value": row["value"], "noise": rng.random(3)}
"""


def function_spec(folder, rows=600):
    path = folder / "function.yaml"
    path.write_text(json.dumps({
        "dataset": "slow", "source": {"range": rows}, "shuffle": {"seed": 5},
        "map": [{"python": {"function": "slow:slow", "features": {
                    "value": {"dtype": "int64", "shape": []},
                    "noise": {"dtype": "float64", "shape": [3]}}}},
                {"cast": {"feature": "noise", "dtype": "float32"}}],
        "batch": {"size": 16}}))
    return path


def function_rows(socket_path, spec, job, at=lambda: None):
    taken = []
    with penstock.attach(spec, socket=socket_path, job=job, timeout_s=120) as reader:
        for batch in reader:
            taken += zip(batch["value"].tolist(), map(tuple, batch["noise"].tolist()))
            at()
    return taken


@pytest.mark.parametrize("allowed", [True, False])
def test_functions_run_where_the_maker_s_broker_allows_them(tmp_path, allowed):
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "slow.py").write_text(FUNCTION)
    spec = function_spec(tmp_path)
    with penstock.broker(workers=1, python_path=[folder]) as training:
        alone = function_rows(training.socket, spec, "alone")
        with penstock.broker(workers=2, python_path=[folder] if allowed else None) as maker:
            hosts = Hosts(training, maker, tmp_path)
            try:
                # A job for each connection, with processes that import.
                hosts.use(None, "--connections", "1")
                seen = {}
                assert function_rows(training.socket, spec, "helped",
                                     lambda: seen.update(hosts.remote() or {})) == alone
                assert (seen["rows_used"] > 0) == allowed, seen
                assert seen["steps"] == 1
                if not allowed:
                    hosts.using.line_with("python_path")
            finally:
                hosts.end()
