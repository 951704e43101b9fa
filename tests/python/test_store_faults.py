"""Stores, networks, disks and processes that fail while rows are read from object stores:
each row comes once, as it lies in the store, or an error says what to do."""

import concurrent.futures
import contextlib
import hashlib
import http.server
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

import numpy as np
import penstock
import pytest
from test_kill_and_resume import kill
from test_object_stores import (  # noqa: F401 (fixtures)
    PENSTOCK, bucket, fetchers, fixed, own_broker, records, rows_of, same_records, store)
from web_server import web_server

pytest.importorskip("obstore")


@pytest.fixture
def broker_of(tmp_path, monkeypatch):
    """broker_of(name=value, ...): a broker with these in its environment."""
    started = []

    def start(**environment):
        environment.setdefault("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        context = penstock.broker(workers=2)
        started.append(context)
        broker = context.__enter__()
        return broker

    yield start
    for context in reversed(started):
        context.__exit__(None, None, None)


def status_of_stores():
    return json.loads(subprocess.run([PENSTOCK, "status", "--json"], capture_output=True,
                                     check=True).stdout)["stores"]


def objects():
    return os.path.join(os.environ["PENSTOCK_CACHE_DIR"], "objects")


# ---- a thousand faults

FAULTS = {"half": 160, "cut": 150, "short": 100, "range": 100, "etag": 90, "garbage": 90,
          "reset": 140, 500: 90, 503: 25, 429: 15, 0.02: 30, "stall": 10}


# In a process of its own: a reader that waits for another broker holds up the threads of its
# process, which would be those of the server.
READER = """
import hashlib, sys
import numpy as np
import penstock
with penstock.attach(sys.argv[1], job="faults", timeout_s=120) as reader:
    for batch in reader:
        rows = hashlib.sha256(np.array(batch["value"]).tobytes()).hexdigest()
        print(batch.epoch, batch.step, rows, flush=True)
        sys.stdin.readline()
"""


def test_a_thousand_faults_and_six_kills(store, broker_of, tmp_path):
    assert sum(FAULTS.values()) == 1000
    deadline_s = 60
    broker = broker_of(PENSTOCK_STORE_TIMEOUT_S=str(deadline_s))
    data = records(1500, 8192)
    files = {f"{i}.bin": data[i * 300:(i + 1) * 300].tobytes() for i in range(5)}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)

    def dataset(where):
        return fixed(where + "/{0..4}.bin", 8192, batch=50, shuffle={"seed": 1}, epochs=2,
                     cache={"files": "4M"})

    expected = [hashlib.sha256(rows.tobytes()).hexdigest()
                for rows in rows_of(dataset(str(tmp_path)))]
    plan = [kind for kind, count in FAULTS.items() for _ in range(count)] + [None] * 1500
    random.Random(5).shuffle(plan)
    # Not where a version is asked for: a wrong one is a changed object.
    store.fault = lambda path, number: plan.pop() if plan and store.headers["Range"] else None
    store.files = files
    (tmp_path / "reader.py").write_text(READER)
    (tmp_path / "spec.json").write_text(dataset(store.url).to_json())
    seen, gaps, told = {}, [], {}
    with subprocess.Popen([sys.executable, tmp_path / "reader.py", tmp_path / "spec.json"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        before = time.monotonic()
        for number, line in enumerate(reader.stdout):
            gaps.append(time.monotonic() - before)
            epoch, step, rows = line.split()
            # What a killed broker gave last may come once more: the same.
            assert seen.setdefault((int(epoch), int(step)), rows) == rows
            if number == 28:
                told = status_of_stores()
                made = store.faults.copy()
            if number in (30, 34, 42, 46):
                for pid in fetchers():
                    os.kill(pid, signal.SIGKILL)
            if number in (38, 50):
                assert kill("penstockd\0", os.path.dirname(broker.socket)) == 1
            before = time.monotonic()
            print(file=reader.stdin, flush=True)
    assert reader.returncode == 0
    assert [seen[place] for place in sorted(seen)] == expected
    assert sum(store.faults.values()) == 1000 and not plan
    assert max(gaps) < deadline_s
    # What the user is told. Of resets, those of a first try may be of idle connections.
    failed = sum(count for kind, count in made.items() if kind not in ("delay", "stall", "reset"))
    assert failed > 300
    assert told["retries"] > failed / 2
    assert told["throttled"] > 0


# ---- stores that do not answer


def test_a_store_that_stops_is_an_error_that_says_what_was_tried(store, broker_of):
    broker_of(PENSTOCK_STORE_TIMEOUT_S="4")
    data = records(1000, 4096)
    store.files = {"a.bin": data.tobytes()}
    dataset = fixed(store.url + "/a.bin", 4096, batch=10, cache={"files": "1M"})
    store.fault = lambda path, number: "stall" if number > 20 else None
    rows = []
    with pytest.raises(penstock.Error, match=(
            re.escape(store.url) + r"/a\.bin: no good answer in [4-9] s, of [2-9] tries; the last "
            r"one: no answer in time: check the network and http://127.0.0.1:\d+; "
            r"PENSTOCK_STORE_TIMEOUT_S \(now 4\) waits longer")), \
            penstock.attach(dataset, job="stops", timeout_s=60) as reader:
        for batch in reader:
            rows.append(np.array(batch["value"]))
    for number, part in enumerate(rows):
        assert np.array_equal(part, data[number * 10:number * 10 + 10])


def test_a_store_that_stops_holds_up_nobody_else(store, broker_of, tmp_path):
    broker = broker_of(PENSTOCK_STORE_TIMEOUT_S="600")
    data = records(1000, 4096)
    store.files = {"a.bin": data.tobytes()}
    (tmp_path / "a.bin").write_bytes(data.tobytes())
    stopped = threading.Event()

    def stall(path, number):
        if number > 20:
            stopped.set()
            return "stall"
        return None
    store.fault = stall
    dataset = fixed(store.url + "/a.bin", 4096, batch=10, cache={"files": "1M"})
    reader = penstock.attach(dataset, job="stops", timeout_s=60)
    ended = []

    def read():
        try:
            for _ in reader:
                pass
        except penstock.Error as error:
            ended.append(error)
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert stopped.wait(60)
    with web_server() as other:
        other.files = store.files
        for where in (str(tmp_path), other.url):
            rows = rows_of(fixed(where + "/a.bin", 4096, batch=10))
            assert np.array_equal(np.concatenate(rows), data)
    assert thread.is_alive() and not ended
    begun = time.monotonic()
    broker.stop()
    assert time.monotonic() - begun < 60


def test_a_store_that_is_away_for_a_while_costs_nothing_but_time(broker_of):
    broker_of(PENSTOCK_STORE_TIMEOUT_S="60")
    data = records(1000, 4096)
    gone = threading.Event()

    def leave(path, number):
        if number > 100:
            gone.set()
            return "reset"
        return None
    with web_server() as first:
        port = first.server.server_address[1]
        first.files = {"a.bin": data.tobytes()}
        first.fault = leave
        dataset = fixed(first.url + "/a.bin", 4096, batch=10, cache={"files": "1M"})
        thread = concurrent.futures.ThreadPoolExecutor(1)
        rows = thread.submit(rows_of, dataset)
        assert gone.wait(60)
    time.sleep(1)  # connections are refused
    with web_server(port, first.files) as again:
        assert np.array_equal(np.concatenate(rows.result(100)), data)
        assert again.sent > data.nbytes / 2


@pytest.mark.parametrize("endpoint, text", [
    ("http://127.0.0.1:1", "Connection refused.*: nothing listens at {}: check the address"),
    ("http://no-such-host.invalid", "the host of {} is not known: check its name, and this host's "
     "DNS")])
@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_an_address_of_nobody_is_an_error_soon(broker_of, endpoint, text, scheme):
    broker_of(AWS_ENDPOINT_URL=endpoint, AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
    url = "s3://data/a.bin" if scheme == "s3" else endpoint + "/a.bin"
    with pytest.raises(penstock.Error, match=re.escape(url) + ": no good answer in [1-5] s.*" +
                       text.format(re.escape(endpoint))):
        rows_of(fixed(url, 100))


def test_a_host_without_credentials_is_told_so(broker_of, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    broker_of(AWS_METADATA_ENDPOINT="http://127.0.0.1:1", HOME=str(tmp_path))
    with pytest.raises(penstock.Error, match="s3://data/a.bin: no good answer in [1-5] s.*no "
                       "credentials are given, and this machine has no role"):
        rows_of(fixed("s3://data/a.bin", 100))


def on_a_terminal(*command, **environment):
    """What it shows there, and its exit status."""
    main, other = os.openpty()
    with subprocess.Popen(command, stdin=other, stdout=other, stderr=other,
                          env={**os.environ, **environment, "TERM": "xterm"}) as process:
        os.close(other)
        shown = b""
        while True:
            try:
                shown += os.read(main, 65536)
            except OSError:  # the end of a terminal
                break
    os.close(main)
    return shown, process.returncode


def test_a_silent_address_is_named_while_it_is_waited_for(tmp_path):
    with socket.socket() as listener, contextlib.ExitStack() as others:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(2):  # then what comes more is dropped
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        endpoint = "http://127.0.0.1:{}".format(listener.getsockname()[1])
        spec = tmp_path / "spec.json"
        spec.write_text(fixed(endpoint + "/a.bin", 100).to_json())
        shown, status = on_a_terminal(PENSTOCK, "check", str(spec), PENSTOCK_STORE_TIMEOUT_S="20",
                                      PENSTOCK_CACHE_DIR=str(tmp_path / "cache"))
    assert status == 1
    endpoint = re.escape(endpoint.encode())
    assert re.search(rb"waiting for " + endpoint + rb", seconds \[#+\.+\] \d\d% [2-4]/5", shown), \
        shown
    assert re.search(endpoint + rb"/a.bin: no good answer in [4-6] s, of [34] tries; the last one: no "
                     rb"connection in time: check the address " + endpoint, shown), shown


def test_a_wrong_time_limit_is_named(broker_of):
    broker_of(PENSTOCK_STORE_TIMEOUT_S="2min")
    with pytest.raises(penstock.Error, match="PENSTOCK_STORE_TIMEOUT_S is '2min': wanted whole"):
        rows_of(fixed("http://127.0.0.1:1/a.bin", 100))


# ---- credentials and clocks


@pytest.fixture
def s3(store, monkeypatch):
    """The web server as a store of one bucket, "data"."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    return store


def refusal(status, code, message):
    return status, (f"<Error><Code>{code}</Code><Message>{message}</Message>"
                    "<Token-0>SECRET</Token-0></Error>")


EXPIRED = refusal(400, "ExpiredToken", "The provided token has expired.")


@pytest.mark.parametrize("fault, text", [
    (EXPIRED, r"the store refuses \(400, ExpiredToken: The provided token has expired\.\): renew "
     r"them: those of a profile \(~/\.aws\) are read again, others when the broker starts again"),
    (refusal(403, "RequestTimeTooSkewed", "Too large."), "the clock of this host differs from the "
     "store's: set it"),
    (refusal(403, "AccessDenied", "Access Denied"), r"\(403, AccessDenied: Access Denied\): the "
     "credentials of the broker's environment do not read it")])
@pytest.mark.parametrize("requests", [0, 20])
def test_a_refusal_is_named(s3, broker_of, fault, text, requests):
    broker_of(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
    data = records(1000, 4096)
    s3.files = {"data/a.bin": data.tobytes()}
    s3.fault = lambda path, number: fault if number > requests else None
    with pytest.raises(penstock.Error, match="s3://data/a.bin: .*" + text) as caught:
        rows_of(fixed("s3://data/a.bin", 4096, batch=10, cache={"files": "1M"}))
    assert "SECRET" not in str(caught.value)


def test_credentials_that_expire_are_read_again(s3, broker_of, tmp_path):
    pytest.importorskip("boto3")
    profile = tmp_path / "credentials"

    def give(key):
        new = tmp_path / "new"
        new.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\n")
        new.replace(profile)

    give("FIRST")
    broker_of(AWS_SHARED_CREDENTIALS_FILE=str(profile), AWS_CONFIG_FILE=str(tmp_path / "none"))
    data = records(1000, 4096)
    s3.files = {"data/a.bin": data.tobytes()}
    refused = []

    def fault(path, number):
        if number <= 30 or "Credential=SECOND/" in s3.headers["Authorization"]:
            return None
        refused.append(number)
        if len(refused) == 20:
            give("SECOND")
        return EXPIRED
    s3.fault = fault
    rows = rows_of(fixed("s3://data/a.bin", 4096, batch=10, cache={"files": "1M"}))
    assert np.array_equal(np.concatenate(rows), data)
    assert len(refused) >= 20


# ---- disks and cache folders

READ = """
import hashlib, os, sys
import numpy as np
import penstock
spec, filler = sys.argv[1:]
def fill():
    with open(os.path.join(os.environ["PENSTOCK_CACHE_DIR"], "filler"), "wb", 0) as file:
        try:
            while file.write(bytes(65536)):
                pass
        except OSError:
            pass
        if filler != "before":  # what passes needs some
            file.truncate(max(0, os.fstat(file.fileno()).st_size - (512 << 10)))
with penstock.broker(workers=2):
    if filler == "before":
        fill()
    digest = hashlib.sha256()
    with penstock.attach(spec, job="disk", timeout_s=100) as reader:
        for number, batch in enumerate(reader):
            digest.update(np.array(batch["value"]).tobytes())
            if filler == "20" and number == 20:
                fill()
    print(digest.hexdigest())
"""


@pytest.mark.parametrize("filler", ["never", "20", "before"])
def test_a_full_disk(store, tmp_path, filler):
    data = records(1500, 8192)
    store.files = {"a.bin": data.tobytes()}
    spec = tmp_path / "spec.json"
    spec.write_text(fixed(store.url + "/a.bin", 8192, epochs=2, cache={"files": "1G"}).to_json())
    (tmp_path / "read.py").write_text(READ)
    cache = tmp_path / "cache"
    cache.mkdir()
    # The broker's own files are elsewhere.
    script = (f"mount -t tmpfs -o size=8M none {cache} || exit 77; "
              f"{sys.executable} {tmp_path}/read.py {spec} {filler}")
    result = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PENSTOCK_CACHE_DIR": str(cache), "PENSTOCK_STORE_TIMEOUT_S": "20"})
    if result.returncode == 77 or "unshare" in result.stderr:
        pytest.skip("no tmpfs can be mounted here: " + result.stderr)
    if filler == "before":
        assert re.search("objects: no space is left for what is fetched: make room, let the copies "
                         "take less .*, or set PENSTOCK_CACHE_DIR", result.stderr), result.stderr
        return
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-1] == hashlib.sha256(data.tobytes() * 2).hexdigest()
    # It cannot keep all, and says so.
    assert re.search(r"12288000 bytes of objects of stores are open, and local copies have room for "
                     r"\d{7}: the rest is fetched in each pass", result.stderr), result.stderr
    assert store.sent > 1.3 * data.nbytes


def test_a_name_that_is_not_known_for_a_while(store, tmp_path):
    data = records(1000, 8192)
    store.files = {"a.bin": data.tobytes()}
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 store.test\n")

    def forget(path, number):
        if number == 100:
            hosts.write_text("")
            threading.Timer(1, hosts.write_text, ["127.0.0.1 store.test\n"]).start()
        return "closes"  # the next request looks for the host
    store.fault = forget
    spec = tmp_path / "spec.json"
    spec.write_text(fixed(store.url.replace("127.0.0.1", "store.test") + "/a.bin", 8192, batch=10,
                          cache={"files": "1M"}).to_json())
    (tmp_path / "read.py").write_text(READ)
    script = (f"mount --bind {hosts} /etc/hosts || exit 77; "
              f"{sys.executable} {tmp_path}/read.py {spec} never")
    result = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script], capture_output=True, text=True, timeout=150,
        env={**os.environ, "PENSTOCK_CACHE_DIR": str(tmp_path / "cache")})
    if result.returncode == 77 or "unshare" in result.stderr:
        pytest.skip("/etc/hosts cannot be replaced here: " + result.stderr)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-1] == hashlib.sha256(data.tobytes()).hexdigest()


def test_a_limit_of_file_sizes(store, tmp_path):
    store.files = {"a.bin": records(3000, 8192).tobytes()}
    spec = tmp_path / "spec.json"
    spec.write_text(fixed(store.url + "/a.bin", 8192).to_json())
    (tmp_path / "read.py").write_text(READ)
    result = subprocess.run(
        [sys.executable, tmp_path / "read.py", spec, "never"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20)),
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "PENSTOCK_CACHE_DIR": str(tmp_path / "cache")})
    assert re.search("objects: File too large: set PENSTOCK_CACHE_DIR", result.stderr), \
        result.stderr


def test_a_cache_folder_that_is_none_is_named(store, broker_of, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "objects").write_text("others'")
    broker_of()
    store.files = {"a.bin": bytes(1000)}
    with pytest.raises(penstock.Error, match="cache/objects: File exists: wanted a folder for local "
                       "copies of objects, on a file system .*: set PENSTOCK_CACHE_DIR"):
        rows_of(fixed(store.url + "/a.bin", 100))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_cache_folder_that_cannot_be_written_is_named(store, broker_of, tmp_path):
    (tmp_path / "cache" / "objects").mkdir(parents=True)
    (tmp_path / "cache" / "objects").chmod(0o500)
    broker_of()
    store.files = {"a.bin": bytes(1000)}
    with pytest.raises(penstock.Error, match="cache/objects: Permission denied: wanted a folder"):
        rows_of(fixed(store.url + "/a.bin", 100))


def copies():
    return {each for each in os.listdir(objects()) if re.fullmatch(r"[0-9a-f]{32}-\d+", each)}


def test_what_others_left_in_the_cache_folder(store, broker_of):
    data = records(500, 8192)
    store.files = {f"{i}.bin": data.tobytes() for i in range(3)}
    broker_of()
    assert same_records(np.concatenate(rows_of(fixed(store.url + "/0.bin", 8192))), data)
    first, = copies()
    junk = {"text": b"others'", "text.crc": b"others'", "0" * 32 + "-0.crc": b""}
    for name, content in junk.items():
        with open(os.path.join(objects(), name), "wb") as file:
            file.write(content)
    os.mkdir(os.path.join(objects(), "1" * 32 + "-0.crc"))
    os.symlink("loop", os.path.join(objects(), "loop"))
    os.mkfifo(os.path.join(objects(), "2" * 32 + "-0.crc"))
    # There is no room for another: the unused copy goes, what is none stays.
    for name in ("1.bin", "2.bin"):
        rows = rows_of(fixed(f"{store.url}/{name}", 8192, cache={"files": "5M"}))
        assert same_records(np.concatenate(rows), data)
    assert first not in copies()
    assert {*junk, "loop", "1" * 32 + "-0.crc"} <= set(os.listdir(objects()))
    # A copy's name that is another thing.
    name, = copies()
    path = os.path.join(objects(), name)
    os.unlink(path)
    os.mkdir(path)
    with pytest.raises(penstock.Error, match=f"{name}: Is a directory: set PENSTOCK_CACHE_DIR"):
        rows_of(fixed(store.url + "/2.bin", 8192))


def test_copies_of_a_killed_fetcher_are_read_when_they_are_whole(store, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    data = records(2000, 8192)
    store.files = {"a.bin": data.tobytes()}
    dataset = fixed(store.url + "/a.bin", 8192, batch=100)
    with penstock.broker(workers=2) as started:
        assert np.array_equal(np.concatenate(rows_of(dataset)), data)
        for pid in fetchers():
            os.kill(pid, signal.SIGKILL)
    name, = copies()
    with open(os.path.join(objects(), name), "r+b") as file:  # some blocks of three
        for block in range(0, 2000 * 2, 3):
            file.seek(4096 * block + block % 4096)
            file.write(b"damage")
    store.sent = 0
    with penstock.broker(workers=2) as started:
        assert np.array_equal(np.concatenate(rows_of(dataset)), data)
    assert store.sent < data.nbytes / 2


def test_a_cache_folder_that_is_removed_under_way(store, broker_of, tmp_path):
    broker_of()
    data = records(1000, 8192)
    store.files = {"a.bin": data.tobytes()}
    dataset = fixed(store.url + "/a.bin", 8192, batch=10, cache={"files": "2M"})
    rows = []
    with penstock.attach(dataset, job="removed", timeout_s=60) as reader:
        for number, batch in enumerate(reader):
            rows.append(np.array(batch["value"]))
            if number == 20:
                shutil.rmtree(objects())
    assert np.array_equal(np.concatenate(rows), data)
    assert np.array_equal(np.concatenate(rows_of(dataset)), data)
    # No other fetcher finds what this broker reads.
    with pytest.raises(penstock.Error, match=r"a\.bin: its local copy was removed from .*objects "
                       "while it was read: attach the job again"), \
            penstock.attach(dataset, job="again", timeout_s=60) as reader:
        for number, batch in enumerate(reader):
            if number == 20:
                shutil.rmtree(objects())
                for pid in fetchers():
                    os.kill(pid, signal.SIGKILL)
    for left in range(50, -1, -1):  # until the last reads of that job are over
        try:
            assert np.array_equal(np.concatenate(rows_of(dataset)), data)
            break
        except penstock.Error:
            assert left > 0
            time.sleep(0.2)


def test_a_cache_smaller_than_a_row_goes_on_and_says_so(store, broker_of, capfd):
    broker_of()
    data = records(40, 1 << 20)
    store.files = {"a.bin": data.tobytes()}
    rows = rows_of(fixed(store.url + "/a.bin", 1 << 20, batch=8, cache={"files": "64K"}))
    assert np.array_equal(np.concatenate(rows), data)
    told, deadline = "", time.monotonic() + 10
    while not told and time.monotonic() < deadline:
        time.sleep(0.1)
        told = capfd.readouterr().err
    assert re.search("41943040 bytes of objects of stores are open, and local copies have room for "
                     r"\d+: the rest is fetched in each pass", told)


# ---- odd objects


@pytest.mark.parametrize("key", ["/a.bin", "b//a.bin", "../a.bin", "b/./a.bin", "b/.."])
def test_a_name_that_cannot_be_read_is_refused(s3, broker_of, key):
    broker_of(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
    s3.files = {"data/a.bin": b"another object's bytes"}
    with pytest.raises(penstock.Error, match="no object of such a name can be read: with an empty "
                       "part"):
        rows_of(fixed("s3://data/" + key, 1))


def test_an_address_with_a_query_is_refused(store, broker_of):
    broker_of()
    with pytest.raises(penstock.Error, match=r"a\.bin\?\.\.\.: an address with a query cannot be "
                       "read") as caught:
        rows_of(fixed(store.url + "/a.bin?signature=SECRET", 1))
    assert "SECRET" not in str(caught.value).replace(store.url + "/a.bin?signature=SECRET", "")


def test_a_server_without_ranges_is_named(store, broker_of):
    broker_of()
    store.files = {"a.bin": bytes(1000)}
    store.fault = lambda path, number: 200 if number > 1 else None
    with pytest.raises(penstock.Error, match="the server cannot do what is asked .*Range"):
        rows_of(fixed(store.url + "/a.bin", 100))


def test_an_object_that_vanishes_is_named(store, broker_of):
    broker_of()
    data = records(1000, 4096)
    store.files = {"a.bin": data.tobytes()}

    def vanish(path, number):
        if number == 20:
            store.files = {}
    store.fault = vanish
    with pytest.raises(penstock.Error, match=r"/a\.bin: there is no such object"):
        rows_of(fixed(store.url + "/a.bin", 4096, batch=10, cache={"files": "1M"}))


def test_an_object_that_shrinks_is_named(store, broker_of):
    broker_of()
    store.files = {"a.bin": records(1000, 4096).tobytes()}

    def shrink(path, number):
        if number == 20:
            store.files = {"a.bin": bytes(4096)}
        return 416 if number >= 20 and store.headers["Range"] else None
    store.fault = shrink
    with pytest.raises(penstock.Error, match=r"/a\.bin: the object has changed since"):
        rows_of(fixed(store.url + "/a.bin", 4096, batch=10, cache={"files": "1M"}))


def test_an_empty_object_is_as_an_empty_file(store, broker_of, tmp_path):
    broker_of()
    data = records(10, 100)
    store.files = {"0.bin": b"", "1.bin": data.tobytes()}
    for name, content in store.files.items():
        (tmp_path / name).write_bytes(content)

    def told(files):
        try:
            return np.concatenate(rows_of(fixed(files, 100))).tolist()
        except penstock.Error as error:
            return str(error).replace(str(tmp_path), "").replace(store.url, "")

    for files in ("/0.bin", "/{0,1}.bin"):
        assert told(store.url + files) == told(str(tmp_path) + files)


class Bucket(http.server.BaseHTTPRequestHandler):
    """A bucket with many objects, which are listed by arithmetic; each fourth page fails first."""

    protocol_version = "HTTP/1.1"
    objects, requests = 20_000, 0

    def log_message(self, *_):
        pass

    def do_GET(self):
        Bucket.requests += 1
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(self.path).query))
        begin = int(query.get("continuation-token", 0))
        if not begin and "start-after" in query:  # a listing that goes on after a fault
            begin = int(query["start-after"][-12:-4]) + 1
        end = min(begin + 1000, self.objects)
        text = "<ListBucketResult><IsTruncated>" + (
            f"true</IsTruncated><NextContinuationToken>{end}</NextContinuationToken>"
            if end < self.objects else "false</IsTruncated>") + "".join(
                f"<Contents><Key>train/cat/{i:08}.png</Key><Size>{i + 1}</Size><ETag>&quot;{i}&quot;"
                "</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for i in range(begin, end)) + "</ListBucketResult>"
        time.sleep(0.1)
        found = "list-type" in query
        self.send_response(503 if Bucket.requests % 4 == 0 else 200 if found else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def test_a_long_listing_goes_on_after_faults_and_shows_how_far_it_is(s3, tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    spec = tmp_path / "spec.json"
    spec.write_text(penstock.Dataset.image_folder("s3://data/train").map(
        penstock.decode_image(size=(8, 8))).named("many").batch(1).to_json())
    environment = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}",
                   "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
                   "PENSTOCK_CACHE_DIR": str(tmp_path / "cache")}
    shown, status = on_a_terminal(PENSTOCK, "check", str(spec), **environment)
    server.shutdown()
    server.server_close()
    assert status == 1  # no row can be read
    assert re.search(rb"listing [1-9][0-9]?,000", shown), shown
    assert re.search(rb"records +20,000\r", shown), shown
    assert b"train/cat/00000000.png: there is no such object" in shown


def test_connections_that_the_store_has_closed_are_no_retries(store, broker_of):
    broker_of()
    data = records(2000, 4096)
    store.files = {"a.bin": data.tobytes()}
    store.fault = lambda path, number: "closes" if number % 3 == 0 else None
    rows = rows_of(fixed(store.url + "/a.bin", 4096, batch=10, cache={"files": "1M"}))
    assert np.array_equal(np.concatenate(rows), data)
    assert store.faults["closes"] > 200
    # Two in a row may meet one request.
    assert status_of_stores()["retries"] < store.faults["closes"] / 10
