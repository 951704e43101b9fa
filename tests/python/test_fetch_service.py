"""Object stores of a service: penstockd has no network and no credentials, penstock-fetch
has both, and serves it by a socket, as systemd starts it."""

import asyncio
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import numpy as np
import penstock
import pytest
from test_object_stores import bucket, fixed, records, same_records, store  # noqa: F401

pytest.importorskip("obstore")

BIN = os.path.join(os.path.dirname(penstock.__file__), "bin")


class FetchUnit:
    """penstock-fetch.socket and .service."""

    def __init__(self, folder, stores):
        self.path, self.folder = str(folder / "fetch.sock"), folder / "copies"
        self.stores = folder / "stores.ini"
        self.stores.write_text(stores)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()
        self.log = open(folder / "fetch.log", "w+")
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["bash", "-c", 'fd=$1; shift; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@" 3<&"$fd"',
             "fetch", str(self.listener.fileno()), sys.executable,
             os.path.join(BIN, "penstock-fetch"), "--stores", self.stores,
             "--folder", self.folder],
            pass_fds=(self.listener.fileno(),), stdout=self.log, stderr=self.log)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.kill()
        self.listener.close()


@contextlib.contextmanager
def service(folder, data, fetcher, name="broker"):
    """Its socket. data: the rules of `data`."""
    home = folder / name
    home.mkdir(exist_ok=True)
    (home / "penstockd.yaml").write_text(
        f"fetcher: {fetcher}\ncache_dir: {home}/cache\nworkers: 2\ndata:\n{data}")
    path = str(home / "penstock.sock")
    with open(home / "log", "a") as log:
        process = subprocess.Popen(
            [os.path.join(BIN, "penstockd"), "--config", home / "penstockd.yaml",
             "--socket", path], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 30
            while not os.path.exists(path):
                assert process.poll() is None, (home / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield path
        finally:
            process.terminate()
            process.wait()


@pytest.fixture
def unit(tmp_path):
    units = []

    def start(stores):
        units.append(FetchUnit(tmp_path, stores))
        return units[-1]

    yield start
    for each in units:
        each.end()


def rows_of(dataset, where, job):
    with penstock.attach(dataset, socket=where, job=job, timeout_s=60) as reader:
        return np.concatenate([np.array(batch["value"]) for batch in reader])


def test_a_service_reads_what_both_files_allow(store, unit, tmp_path):  # noqa: F811
    data = records(1000, 1000)
    store.files = {f"{folder}/a.bin": data.tobytes() for folder in ("open", "closed", "other")}
    started = unit(f"[{store.url}/open]\n[{store.url}/closed]\n")
    rules = (f"  - path: {store.url}/open/\n"
             f"  - {{path: {store.url}/closed, users: [nobody]}}\n"
             f"  - path: {store.url}/other\n")
    with service(tmp_path, rules, started.path) as where:
        rows = rows_of(fixed(store.url + "/open/a.bin", 1000, shuffle={"seed": 1}), where, "a")
        assert same_records(rows, data)
        for name, text in {
                "closed/a.bin": "not below an address that the broker's configuration",
                "open/../closed/a.bin": "not below an address",
                "open/%2e%2E/closed/a.bin": "not below an address",
                "opener/a.bin": "not below an address",
                "other/a.bin": "not below an address in .*stores.ini, which the administrator"}.items():
            with pytest.raises(penstock.Error, match=text):
                rows_of(fixed(f"{store.url}/{name}", 1000), where, "refused")
        assert store.sent == data.nbytes


def test_any_process_may_be_killed(store, unit, tmp_path):  # noqa: F811
    data = records(4000, 5000)
    store.files = {"a.bin": data.tobytes()}
    store.fault = lambda path, number: 0.02
    started = unit(f"[{store.url}]\n")
    dataset = fixed(store.url + "/a.bin", 5000, batch=100, shuffle={"seed": 1})
    rules = f"  - path: {store.url}\n"
    with service(tmp_path, rules, started.path) as where:
        rows = []
        with penstock.attach(dataset, socket=where, job="a", timeout_s=60) as reader:
            for step, batch in enumerate(reader):
                rows.append(np.array(batch["value"]))
                if step in (3, 12):
                    started.kill()
                    started.start()
        assert same_records(np.concatenate(rows), data)
    sent = store.sent
    with service(tmp_path, rules, started.path) as where:
        assert same_records(rows_of(dataset, where, "b"), data)
    assert store.sent == sent  # the copies stay


@pytest.mark.parametrize("room", [None, "3M"])
def test_two_brokers_share_a_fetcher(store, unit, tmp_path, room):  # noqa: F811
    data = records(1500, 5000)
    store.files = {"a.bin": data.tobytes()}
    started = unit(f"[{store.url}]\n")
    dataset = fixed(store.url + "/a.bin", 5000, batch=100, shuffle={"seed": 1},
                    **({"cache": {"files": room}} if room else {}))
    rules = f"  - path: {store.url}\n"
    with service(tmp_path, rules, started.path, "one") as one, \
            service(tmp_path, rules, started.path, "other") as other:
        rows = {one: [], other: []}
        with penstock.attach(dataset, socket=one, job="a", timeout_s=60) as first, \
                penstock.attach(dataset, socket=other, job="a", timeout_s=60) as second:
            for batches in zip(first, second):
                for where, batch in zip((one, other), batches):
                    rows[where].append(np.array(batch["value"]))
        for each in rows.values():
            assert same_records(np.concatenate(each), data)
    if room is None:
        assert store.sent == data.nbytes  # once for both


def test_credentials_are_the_fetchers_alone(bucket, unit, tmp_path, monkeypatch):  # noqa: F811
    data = records(1000, 1000)
    bucket("hidden/a.bin", data.tobytes())
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ALLOW_HTTP",
                 "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    keys = (f"aws_access_key_id = key\naws_secret_access_key = hidden\nregion = us-east-1\n"
            f"endpoint = {endpoint}\n")
    started = unit(f"[s3://data/hidden]\n{keys}[s3://data/wrong]\n{keys}acces_key = 1\n")
    with service(tmp_path, "  - path: s3://data\n", started.path) as where:
        assert np.array_equal(rows_of(fixed("s3://data/hidden/*.bin", 1000), where, "a"), data)
        with pytest.raises(penstock.Error, match=r"\[s3://data/wrong\].*acces_key") as error:
            rows_of(fixed("s3://data/wrong/a.bin", 1000), where, "b")
        assert "hidden" not in str(error.value)
    assert "hidden" not in (tmp_path / "broker" / "log").read_text()
    assert "hidden" not in (tmp_path / "fetch.log").read_text()


def test_what_is_not_there_is_named(store, unit, tmp_path):  # noqa: F811
    rules = f"  - path: {store.url}\n"
    with service(tmp_path, rules, tmp_path / "none.sock") as where:
        with pytest.raises(penstock.Error, match="none.sock does not answer .*systemctl enable "
                                                 "--now penstock-fetch.socket"):
            rows_of(fixed(store.url + "/a.bin", 1000), where, "a")
    started = unit("[data]\n")
    assert started.process.wait(30) == 1
    started.log.seek(0)
    assert "stores.ini: [data] is no address; wanted [s3://bucket/prefix]" in started.log.read()

# ---- the process by itself: its brokers are this test


@pytest.fixture
def program(monkeypatch):
    """What it defines, by name."""
    with open(os.path.join(BIN, "penstock-fetch")) as file:
        text = file.read()
    defined = {}
    monkeypatch.setattr(sys, "path", sys.path[:])
    exec(text[:text.rindex("\nif sys.argv[0] ==")], defined)
    return defined


class Broker:
    """A link to a Fetcher of the program."""

    def __init__(self, program, fetcher):
        self.end, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.end.setblocking(False)
        self.link = program["Link"](fetcher, other)
        fetcher.links.add(self.link)
        self.ask(first=1 << 32)

    def ask(self, **message):
        self.end.send(json.dumps(message).encode())

    async def answer(self, key):
        """The next answer with this key, the names before it, and its descriptor."""
        names = 0
        while True:
            await until(lambda: select.select([self.end], [], [], 0)[0])
            packet, descriptors, _, _ = socket.recv_fds(self.end, 1 << 17, 1)
            message = json.loads(packet)
            names += len(message.get("names", ()))
            if key in message:
                return message, names, descriptors[0] if descriptors else None


async def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


def objects(program, count, name_bytes=200):
    made = program["Objects"]()
    for i in range(count):
        made.append(f"{i:0{name_bytes}}", 4096, "1")
    return made.finished()


FOLDER = "s3://data/folder/"


def fetcher_of(program, folder, listed=None):
    """A Fetcher whose store lists these objects; None: it lists for ever."""
    fetcher = program["Fetcher"]({"folder": str(folder)})
    fetcher.stores.find = lambda url: (types.SimpleNamespace(requests=program["Requests"]()), "")

    async def list_folder(_):
        if listed is None:
            await asyncio.Event().wait()
        return listed
    fetcher.stores.list = fetcher.stores.list_folder = list_folder
    return fetcher


def test_a_closed_link_leaves_no_descriptor(program, tmp_path):
    async def run():
        broker = Broker(program, fetcher_of(program, tmp_path))
        broker.end.close()
        await until(lambda: broker.link.connection.fileno() < 0)
        descriptor = os.open(tmp_path, os.O_RDONLY)
        broker.link.say({}, descriptor)
        with pytest.raises(OSError):
            os.fstat(descriptor)
    asyncio.run(run())


@pytest.mark.parametrize("ends", [False, True])
def test_what_nobody_waits_for_ends(program, tmp_path, ends):
    async def run():
        listing = fetcher_of(program, tmp_path)
        # Its names are more than the socket takes.
        telling = fetcher_of(program, tmp_path, objects(program, 20000))
        for fetcher, question in ((listing, {"list": "s3://data/*"}),
                                  (listing, {"folder": FOLDER, "room": None}),
                                  (telling, {"folder": FOLDER, "room": None})):
            broker = Broker(program, fetcher)
            broker.ask(call=1, **question)
            await until(lambda: fetcher.tasks and (fetcher is listing or fetcher.copies))
            if ends:
                broker.end.close()
            else:
                broker.ask(cancel=1)
            await until(lambda: not fetcher.tasks)
            assert not broker.link.openings and not broker.link.calls
            assert not fetcher.copies and not fetcher.folder.rooms
    asyncio.run(run())


def test_names_are_not_told_again(program, tmp_path):
    async def run():
        broker = Broker(program, fetcher_of(program, tmp_path, objects(program, 1000)))
        broker.ask(call=1, folder=FOLDER, room=None)
        told, names, descriptor = await broker.answer("copy")
        assert names == 1000
        broker.ask(call=2, folder=FOLDER, room=None, had=told["version"],
                   inode=os.fstat(descriptor).st_ino)
        again, names, other = await broker.answer("copy")
        assert (again["version"], again["bytes"], names) == (told["version"], told["bytes"], 0)
        assert os.path.sameopenfile(descriptor, other)
    asyncio.run(run())


def test_ranges_go_on_while_a_folder_is_opened(program, tmp_path):
    begun, goes_on = [], threading.Event()

    class Slow(program["FolderCopy"]):
        def __init__(self, *arguments, **named):
            begun.append(self)
            assert goes_on.wait(5)
            super().__init__(*arguments, **named)
    program["FolderCopy"] = Slow

    async def run():
        fetcher = fetcher_of(program, tmp_path, objects(program, 10))
        brokers = [Broker(program, fetcher) for _ in range(3)]
        brokers[0].ask(call=1, folder=FOLDER, room=None)
        await until(lambda: begun)
        for broker in brokers[1:]:
            broker.ask(call=1, folder=FOLDER, room=None)
        await until(lambda: len(fetcher.tasks) == 3)
        brokers[0].ask(cancel=1)
        await until(lambda: not brokers[0].link.calls)
        goes_on.set()
        for broker in brokers[1:]:
            await broker.answer("copy")
        # What nobody waited for is closed; the others share the next one.
        (copy,), = fetcher.copies.values()
        assert copy.path.endswith("-0") and len(copy.openings) == 2 and len(begun) == 2
    asyncio.run(run())


def test_copies_that_are_not_used_are_looked_for_once(program, tmp_path, monkeypatch):
    monkeypatch.setitem(program, "LOOK_S", 60)
    folder = program["Folder"](str(tmp_path))
    for i in range(4):
        for name in (f"{i:032x}-0", f"{i:032x}-0.crc"):
            (tmp_path / name).write_bytes(b"x" * 4096)
        os.utime(tmp_path / f"{i:032x}-0.crc", (i, i))
    scans, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scans.append(path) or scandir(path))
    for i in range(4):
        assert folder.remove_unused(1) == 8192
        assert len(os.listdir(tmp_path)) == 6 - 2 * i
        assert not (tmp_path / f"{i:032x}-0").exists()
    assert folder.remove_unused(1) == 0
    assert len(scans) == 1


def test_a_broker_that_is_stopped_has_no_queue(program, tmp_path, monkeypatch):
    monkeypatch.setitem(program, "TUNE_S", 0.0001)
    path = str(tmp_path / "socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    uses = itertools.count()

    fetchers = []

    class Counting(program["Fetcher"]):
        def use(self, rate):
            fetchers.append(self)
            return {"bytes": next(uses)}
    program["Fetcher"] = Counting

    async def run():
        task = asyncio.ensure_future(program["run"]({"folder": str(tmp_path / "copies")}, listener))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
            end.connect(path)
            await until(lambda: next(uses) > 600)
            link, = fetchers[0].links
            assert len(link.answers) <= 1
            task.cancel()
    asyncio.run(run())
