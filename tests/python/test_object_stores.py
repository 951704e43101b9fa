"""Files of object stores: the same rows as of local files, whatever the store does."""

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import penstock
import pytest
from web_server import web_server

pytest.importorskip("obstore")

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")


@pytest.fixture
def store():
    with web_server() as running:
        yield running


@pytest.fixture
def own_broker(tmp_path, monkeypatch):
    """A broker with a cache folder of its own."""
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    with penstock.broker(workers=2) as started:
        yield started


def rows_of(dataset, **options):
    options.setdefault("timeout_s", 60)
    with penstock.attach(dataset, job=f"job{random.random()}", **options) as reader:
        return [np.array(batch["value"]) for batch in reader]


def records(count, size=100, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, size), dtype=np.uint8)


def fixed(files, size, batch=50, **keys):
    """A dataset of records of one size."""
    return penstock.Dataset(
        {"dataset": "remote", "source": {"fixed_length_records": {
            "files": files, "features": {"value": {"dtype": "uint8", "shape": [size]}}}},
         "batch": {"size": batch}, **keys})


def tar_of(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_each_row_comes_as_it_lies_there(store, own_broker):
    data = records(3000, 1000)
    store.files = {f"part-{i}.bin": data[i * 1000:(i + 1) * 1000].tobytes() for i in range(3)}
    files = store.url + "/part-{0..2}.bin"
    assert np.array_equal(np.concatenate(rows_of(fixed(files, 1000))), data)
    sent = store.sent
    assert sent == data.nbytes  # each byte once
    shuffled = np.concatenate(rows_of(fixed(files, 1000, shuffle={"seed": 1})))
    assert not np.array_equal(shuffled, data)
    assert np.array_equal(np.sort(shuffled.view("V1000").ravel()),
                          np.sort(data.view("V1000").ravel()))
    assert store.sent == sent  # all of it is kept


def same_records(rows, data):
    """In another order."""
    view = f"V{data.shape[1]}"
    return np.array_equal(np.sort(np.ascontiguousarray(rows).view(view).ravel()),
                          np.sort(data.view(view).ravel()))


def test_a_copy_outlives_its_broker(store, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path))
    data = records(2000, 1000)
    store.files = {"a.bin": data.tobytes()}
    for times in range(3):
        with penstock.broker(workers=2) as started:
            rows = np.concatenate(rows_of(fixed(store.url + "/a.bin", 1000, shuffle={"seed": 1})))
            assert same_records(rows, data)
            assert store.sent == data.nbytes
        if times == 1:  # a block that was damaged meanwhile is fetched again
            path, = (each for each in (tmp_path / "objects").iterdir()
                     if not each.name.endswith(".crc") and each.stat().st_size == data.nbytes)
            with open(path, "r+b") as file:
                file.seek(4096 * 10 + 7)
                byte = file.read(1)
                file.seek(4096 * 10 + 7)
                file.write(bytes([byte[0] ^ 1]))
            store.sent -= 4096


@pytest.mark.parametrize("alike", [True, False])
def test_two_brokers_of_one_environment_share_what_they_fetch(store, tmp_path, monkeypatch, alike):
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path))
    data = records(2000, 1000)
    store.files = {"a.bin": data.tobytes()}
    dataset = fixed(store.url + "/a.bin", 1000)
    with contextlib.ExitStack() as ends:
        one = penstock.broker(workers=1)
        ends.callback(one.stop)
        if not alike:
            monkeypatch.setenv("AWS_PROFILE", "other")
        with penstock.broker(workers=1) as other:
            with penstock.attach(dataset, job="one", socket=one.socket, timeout_s=60) as reader:
                batches = iter(reader)
                rows = [np.array(next(batches)["value"])]
                assert np.array_equal(np.concatenate(rows_of(dataset, socket=other.socket)), data)
                rows += [np.array(batch["value"]) for batch in batches]
            assert np.array_equal(np.concatenate(rows), data)
            times = 1 if alike else 2  # a copy without a name, which nobody else may remove
            assert store.sent == times * data.nbytes
            # The process of the first one ends with it: the copy is the other's.
            one.stop()
            assert np.array_equal(np.concatenate(rows_of(dataset, socket=other.socket)), data)
            assert store.sent == times * data.nbytes


def test_shards_are_indexed_and_shuffled(store, own_broker):
    members = [(f"{i:04}.{kind}", value) for i in range(300)
               for kind, value in (("cls", str(i).encode()), ("bin", os.urandom(2000)))]
    store.files = {f"train-{i}.tar": tar_of(members[i * 200:(i + 1) * 200]) for i in range(3)}
    dataset = penstock.Dataset.webdataset(
        store.url + "/train-{0..2}.tar",
        {"value": {"member": "cls", "dtype": "int64", "shape": []}}).shuffle(seed=1).batch(20)
    rows = np.concatenate(rows_of(dataset))
    assert sorted(rows.tolist()) == list(range(300))
    assert rows.tolist() != list(range(300))
    assert store.sent <= sum(map(len, store.files.values()))


@pytest.fixture
def two_hosts(tmp_path, monkeypatch):
    """The sockets of two brokers with a cache folder each."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for host in range(2):
            monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / f"host{host}"))
            sockets.append(stack.enter_context(penstock.broker(workers=2)).socket)
        yield sockets


def rows_of_hosts(dataset, attachments):
    """The rows of all steps. attachments: how each process attaches, by host."""
    job = f"job{random.random()}"
    processes = [(socket, options) for socket, of_host in attachments.items()
                 for options in of_host]
    with ThreadPoolExecutor(len(processes)) as pool:
        def rows(process):
            socket, options = process
            with penstock.attach(dataset, job=job, socket=socket, timeout_s=60,
                                 **options) as reader:
                return [np.array(batch["value"]) for batch in reader]
        of_each = list(pool.map(rows, processes))
    return np.concatenate([rows for batches in zip(*of_each) for rows in batches])


@pytest.mark.parametrize("keys, size, times", [
    ({"shard": "file"}, 1000, 1),
    ({"shard": "file", "shuffle": {"seed": 1}}, 1000, 1),
    ({"shard": "file", "shuffle": {"seed": 1, "window_files": 2}}, 1000, 1),
    ({"shuffle": {"seed": 1}}, 1 << 20, 1),  # no two rows are fetched together
    ({"shuffle": {"seed": 1}}, 1000, 2),
])
def test_each_host_fetches_what_its_ranks_read(store, two_hosts, keys, size, times):
    data = records(32 * (1 << 20) // size // 8 * 8, size)
    store.files = {f"{i}.bin": part.tobytes() for i, part in enumerate(np.split(data, 8))}
    # A host has the ranks 0 and 1, the other 2 and 3.
    own = [dict(rank=rank, world_size=4, local_world_size=2) for rank in range(4)]
    rows = rows_of_hosts(fixed(store.url + "/{0..7}.bin", size, batch=16 if size > 9999 else 256,
                               **keys),
                         dict(zip(two_hosts, (own[:2], own[2:]))))
    assert same_records(rows, data)
    if times == 1:
        assert store.sent == data.nbytes
    else:  # almost: each unit has rows of both
        assert 1.9 * data.nbytes < store.sent <= 2 * data.nbytes


@pytest.mark.parametrize("here", [
    lambda host: [dict(rank=host, world_size=2, local_world_size=1, delivery="broadcast")],
    lambda host: [dict(rank=host, world_size=2, local_world_size=1, delivery="independent")],
    lambda host: [dict(rank=rank, world_size=2, replica=host, replicas=2, local_world_size=2,
                       local_replicas=1) for rank in range(2)],
])
def test_hosts_whose_ranks_read_all_rows_fetch_all(store, two_hosts, here):
    data = records(8000, 1000)
    store.files = {"a.bin": data.tobytes()}
    rows = rows_of_hosts(fixed(store.url + "/a.bin", 1000, shuffle={"seed": 1}),
                         {socket: here(host) for host, socket in enumerate(two_hosts)})
    assert same_records(rows, np.concatenate([data, data]))
    assert store.sent == 2 * data.nbytes


def index_of(spec, out, **environment):
    subprocess.run([PENSTOCK, "index", "--out", str(out), str(spec)], check=True,
                   env={**os.environ, **environment})


def test_an_index_beside_a_file_saves_its_scan(store, tmp_path, own_broker):
    members = [(f"{i:04}.{kind}", value) for i in range(300)
               for kind, value in (("cls", str(i).encode()), ("bin", os.urandom(20000)))]
    tars = {f"train-{i}.tar": tar_of(members[i * 200:(i + 1) * 200]) for i in range(3)}
    data = tmp_path / "data"
    data.mkdir()
    for name, content in tars.items():
        (data / name).write_bytes(content)
    features = {"value": {"member": "cls", "dtype": "int64", "shape": []}}
    spec = penstock.Dataset.webdataset(str(data / "train-*.tar"), features).batch(20)
    (data / "spec.yaml").write_text(spec.to_json())
    index_of(data / "spec.yaml", data, PENSTOCK_CACHE_DIR=str(tmp_path / "other"))
    indexes = {each.name: each.read_bytes() for each in data.glob("*.index")}
    assert len(indexes) == 3
    remote = penstock.Dataset.webdataset(store.url + "/train-{0..2}.tar", features).shuffle(
        seed=1).batch(20)
    store.files = {**tars, **indexes}
    # A HEAD and a GET of each file and of its index: what follows is of rows.
    store.fault = lambda path, number: 1.0 if number > 12 else None
    with penstock.attach(remote, job="first", timeout_s=60):
        assert store.sent < sum(map(len, tars.values())) / 2
    store.fault = None
    # Those that are of other files, or of none, count for nothing.
    changed = tar_of([(name, b"7" * len(value) if name.endswith("cls") else value)
                      for name, value in members[:200]])
    store.files["train-0.tar"] = changed[:-1024] + b"\0" * 1024
    store.files[next(iter(indexes))] = b"nothing"
    rows = np.concatenate(rows_of(remote))
    assert sorted(rows.tolist())[-100:] == list(range(200, 300))
    assert len(rows) == 300


def test_faults_cost_nothing_but_time(store, own_broker):
    data = records(4000, 5000)
    store.files = {f"{i}.bin": data[i * 500:(i + 1) * 500].tobytes() for i in range(8)}
    rng = random.Random(3)
    faults = []

    def fault(path, number):
        if number <= 8 or rng.random() > 0.5:
            return None
        faults.append(rng.choice([503, 429, 500, "half", "cut", 0.05, 6.0]))
        return faults[-1]
    store.fault = fault
    rows = np.concatenate(rows_of(fixed(store.url + "/{0..7}.bin", 5000, shuffle={"seed": 1})))
    assert same_records(rows, data)
    assert len(faults) > 20


def test_a_changed_object_is_an_error_that_names_it(store, own_broker):
    data = records(1000, 4096)
    store.files = {"a.bin": data.tobytes()}
    dataset = fixed(store.url + "/a.bin", 4096, batch=10, cache={"files": "16M"})

    def change(path, number):
        if number == 3:
            store.files["a.bin"] = bytes(len(store.files["a.bin"]))
        return None
    store.fault = change
    with pytest.raises(penstock.Error, match="a.bin: the object has changed"):
        rows_of(dataset)
    # The next job opens what is there now.
    assert not np.concatenate(rows_of(fixed(store.url + "/a.bin", 4096))).any()


@pytest.mark.parametrize("status, text", [
    (404, "there is no such object"), (403, "the store refuses"), (401, "the store refuses")])
def test_what_cannot_be_read_is_named(store, own_broker, status, text):
    store.files = {"a.bin": b"x" * 1000}
    store.fault = lambda path, number: status
    with pytest.raises(penstock.Error, match=f"/a.bin: {text}"):
        rows_of(fixed(store.url + "/a.bin", 100))


def test_a_web_server_lists_nothing(store, own_broker):
    with pytest.raises(penstock.Error, match="a web server lists no files: name them with braces"):
        rows_of(fixed(store.url + "/*.bin", 100))


def fetchers():
    folder = os.path.join(os.environ["PENSTOCK_CACHE_DIR"], "objects")
    found = subprocess.run(["pgrep", "-f", folder], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def test_a_killed_fetcher_costs_nothing_but_time(store, own_broker):
    data = records(4000, 5000)
    store.files = {"a.bin": data.tobytes()}
    store.fault = lambda path, number: 0.02
    rows = []
    dataset = fixed(store.url + "/a.bin", 5000, batch=100, shuffle={"seed": 1})
    with penstock.attach(dataset, job="killed", timeout_s=60) as reader:
        for step, batch in enumerate(reader):
            rows.append(np.array(batch["value"]))
            if step in (3, 12):
                for pid in fetchers():
                    os.kill(pid, signal.SIGKILL)
    assert same_records(np.concatenate(rows), data)


def test_a_cache_of_half_fetches_half_of_a_pass(store, own_broker):
    data = records(1000, 65536)
    store.files = {f"{i}.bin": data[i * 100:(i + 1) * 100].tobytes() for i in range(10)}
    dataset = fixed(store.url + "/{0..9}.bin", 65536, batch=20, shuffle={"seed": 1}, epochs=3,
                    cache={"files": "32M"})
    with penstock.attach(dataset, job="half", timeout_s=120) as reader:
        for epoch in reader.epochs():
            rows = np.concatenate([np.array(batch["value"]) for batch in epoch])
            assert same_records(rows, data)
    status = json.loads(subprocess.run([PENSTOCK, "status", "--json", "--socket",
                                        own_broker.socket], capture_output=True,
                                       check=True).stdout)
    kept = 32 << 20
    # In all: what a pass fetches ahead is of the next. A request that took long under the load
    # of others was sent twice.
    sent = store.sent - status["stores"]["hedged"] * 65536
    assert sent <= 1.01 * (3 * data.nbytes - 2 * kept * 7 // 8)
    folder = os.path.join(os.environ["PENSTOCK_CACHE_DIR"], "objects")
    used = sum(each.stat().st_blocks * 512 for each in os.scandir(folder))
    assert used <= kept * 9 / 8  # and what workers have in hand


def test_files_beside_the_data_have_its_room(store, tmp_path, own_broker):
    tars = {f"{i}.tar": tar_of([(f"{i}{j:03}.bin", os.urandom(65536)) for j in range(50)])
            for i in range(8)}
    data = tmp_path / "data"
    data.mkdir()
    for name, content in tars.items():
        (data / name).write_bytes(content)
    features = {"value": {"member": "bin", "dtype": "uint8", "shape": [65536]}}
    (data / "spec.yaml").write_text(
        penstock.Dataset.webdataset(str(data / "*.tar"), features).batch(20).to_json())
    index_of(data / "spec.yaml", data, PENSTOCK_CACHE_DIR=str(tmp_path / "other"))
    store.files = {**tars, **{each.name: each.read_bytes() for each in data.glob("*.index")}}
    bytes_of_all = sum(map(len, store.files.values()))
    dataset = penstock.Dataset.webdataset(store.url + "/{0..7}.tar", features).shuffle(
        seed=1).batch(20).repeat(2).cache(files="8M")
    with penstock.attach(dataset, job="beside", timeout_s=60) as reader:
        sent = [store.sent for epoch in reader.epochs() for _ in epoch]
    # A third is kept; units of 512 KiB for each row that is not would be five times the data.
    assert sent[-1] - sent[len(sent) // 2] < bytes_of_all
    assert copies_bytes() <= 12 << 20


# ---- S3


@pytest.fixture
def bucket(monkeypatch):
    """A bucket of moto's server: files by key."""
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    for name, value in {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
                        "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    # What tests before this one put is kept by the process, not by the server.
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST"))
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="data")

    def put(key, data):
        client.put_object(Bucket="data", Key=key, Body=data)
    put.remove = lambda key: client.delete_object(Bucket="data", Key=key)
    yield put
    server.stop()


def test_objects_of_a_bucket(bucket, own_broker, tmp_path):
    data = records(1000, 1000)
    for i in range(10):
        bucket(f"train/part-{i}.bin", data[i * 100:(i + 1) * 100].tobytes())
    bucket("train/deeper/part-0.bin", b"other")
    bucket("train/part-1.txt", b"other")
    rows = np.concatenate(rows_of(fixed("s3://data/train/part-*.bin", 1000)))
    assert np.array_equal(rows, data)
    rows = np.concatenate(rows_of(fixed("s3://data/*/part-[12].bin", 1000)))
    assert np.array_equal(rows, data[100:300])
    files = tmp_path / "files.txt"
    files.write_text("s3://data/train/part-3.bin\ns3://data/train/part-5.bin\n")
    rows = np.concatenate(rows_of(fixed({"list": str(files)}, 1000)))
    assert np.array_equal(rows, np.concatenate([data[300:400], data[500:600]]))


def test_an_index_is_put_into_the_bucket(bucket, own_broker, tmp_path):
    lines = "".join(f"line {i}\n" for i in range(1000))
    bucket("text/a.txt", lines.encode())
    spec = penstock.Dataset.text_lines("s3://data/text/a.txt", max_bytes=20).batch(10)
    (tmp_path / "spec.yaml").write_text(spec.to_json())
    index_of(tmp_path / "spec.yaml", "s3://data/text")
    # It is the only other object there, and is none of the data.
    with penstock.attach(penstock.Dataset.text_lines("s3://data/text/*", max_bytes=20).batch(10),
                         job="all", timeout_s=60) as reader:
        assert sum(batch.rows for batch in reader) == 1000
    assert len(rows_of(fixed("s3://data/text/a.txt.text_lines-*.index", 1, batch=1 << 20))) == 1


def test_keys_with_odd_characters(bucket, own_broker):
    data = records(10, 100)
    for key in ("a b.bin", "a#b.bin", "a%20b.bin", "ä+ö&=.bin", "a;b:c@d.bin"):
        bucket("odd/" + key, data.tobytes())
        rows = np.concatenate(rows_of(fixed("s3://data/odd/" + key, 100)))
        assert np.array_equal(rows, data), key
    assert len(np.concatenate(rows_of(fixed("s3://data/odd/*.bin", 100)))) == 50


def test_patterns_are_as_those_of_files(bucket, own_broker):
    data = records(10, 100)
    for key in ("odd/z.bin", "odd/[z].bin", "odd?z.bin", "a/b.bin"):
        bucket(key, data.tobytes())
    for files, found in (("odd?z.bin", 1), ("odd[!a]z.bin", 1), ("odd/?.bin", 1),
                         ("odd/[z].bin", 1), ("odd/*", 2), ("*/?.bin", 2)):
        rows = np.concatenate(rows_of(fixed("s3://data/" + files, 100)))
        assert len(rows) == 10 * found, files


def test_an_object_that_the_client_cannot_name_is_named(bucket, own_broker):
    bucket("odd/a//b.bin", b"x")
    begun = time.monotonic()
    with pytest.raises(penstock.Error, match=r"the store's client lists no such names .*a//b.bin"):
        rows_of(fixed("s3://data/odd/*", 100))
    assert time.monotonic() < begun + 10


def test_nothing_of_an_answer_but_its_reason_is_told(store, own_broker):
    store.files = {"a.bin": b"x" * 1000}
    store.fault = lambda path, number: (403, "<html>token=BODYSECRET</html>")
    with pytest.raises(penstock.Error, match="refuses .403 Forbidden.: no credentials are sent") \
            as told:
        rows_of(fixed(store.url + "/a.bin", 100))
    assert "SECRET" not in str(told.value)
    address = store.url.replace("://", "://user:PASSWORD@")
    with pytest.raises(penstock.Error, match="an address with a password") as told:
        rows_of(fixed(address + "/a.bin", 100))
    assert "PASSWORD" not in str(told.value)


def copies_bytes():
    folder = os.path.join(os.environ["PENSTOCK_CACHE_DIR"], "objects")
    return sum(each.stat().st_blocks * 512 for each in os.scandir(folder)
               if not each.name.endswith(".crc"))


def test_the_next_fetcher_has_the_room_of_the_former(store, own_broker):
    data = records(400, 65536)
    store.files = {f"{i}.bin": data[i * 100:(i + 1) * 100].tobytes() for i in range(4)}
    dataset = fixed(store.url + "/{0..3}.bin", 65536, batch=10, shuffle={"seed": 1}, epochs=4,
                    cache={"files": "8M"})
    with penstock.attach(dataset, job="room", timeout_s=60) as reader:
        for step, batch in enumerate(reader):
            if step % 40 == 20:
                for pid in fetchers():
                    os.kill(pid, signal.SIGKILL)
            # The data have 26 MB. Beside the room are what workers have in hand, and what passed
            # in a process that was killed, until it is read.
            assert copies_bytes() <= 12 << 20


def test_a_job_that_says_no_room_has_that_of_the_disk(store, own_broker):
    data = records(100, 65536)
    store.files = {"a.bin": data.tobytes(), "b.bin": data.tobytes()}
    small = fixed(store.url + "/a.bin", 65536, batch=10, epochs=2, cache={"files": "1M"})
    with penstock.attach(small, job="small", timeout_s=60) as reader:
        reader.next()
        sent = store.sent
        for _ in range(2):
            rows_of(fixed(store.url + "/b.bin", 65536))
        assert store.sent - sent <= 2 * data.nbytes * 1.1  # a pass of both jobs, at most


@pytest.mark.parametrize("files, text", [
    ("s3://data/none.bin", "s3://data/none.bin: there is no such object"),
    ("s3://data/none-*.bin", "none-\\*.bin: no object matches it"),
    ("s3://nowhere/a-*.bin", "no such bucket"),
    ("s3://nowhere/a.bin", "s3://nowhere/a.bin: there is no such"),
    ("s3://data", "s3://data: wanted s3://bucket/key")])
def test_what_a_bucket_has_not_is_named(bucket, own_broker, files, text):
    with pytest.raises(penstock.Error, match=text):
        rows_of(fixed(files, 100))


def test_pictures_below_an_address(bucket, own_broker, tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name in ("cat/1.png", "cat/deep/2.png", "a b/3.png", "a/4.png", "dog/5.PNG"):
        out = io.BytesIO()
        image.fromarray(rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(out, "PNG")
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(out.getvalue())
        bucket("pictures/" + name, out.getvalue())
    for name in ("cat/text.txt", "loose.png", ".hidden/6.png"):
        bucket("pictures/" + name, b"other")

    def rows(path, **keys):
        dataset = penstock.Dataset.image_folder(path, max_path_bytes=40, **keys).map(
            penstock.decode_image(size=(40, 30))).batch(1)
        with penstock.attach(dataset, job=f"job{random.random()}", timeout_s=60) as reader:
            return [{name: np.array(value) for name, value in batch.items()}
                    for batch in reader]

    for keys in ({}, {"labels": "none"}):
        if keys:
            (tmp_path / "data" / "loose.png").write_bytes(out.getvalue())
            bucket("pictures/loose.png", out.getvalue())
        local = rows(tmp_path / "data", **keys)
        remote = rows("s3://data/pictures", **keys)
        assert len(remote) == len(local) == (6 if keys else 5)
        for one, other in zip(local, remote):
            assert one.keys() == other.keys()
            for name in one:
                assert np.array_equal(one[name], other[name]), name
    with pytest.raises(penstock.Error, match="s3://data/none/: there are no objects"):
        rows("s3://data/none")


def test_objects_more_or_fewer_leave_the_copies_of_the_others(bucket, own_broker, tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    sizes = {}

    def put(name):
        out = io.BytesIO()
        image.fromarray(rng.integers(0, 256, (60, 60, 3), dtype=np.uint8)).save(out, "PNG")
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(out.getvalue())
        bucket("pictures/" + name, out.getvalue())
        sizes[name] = len(out.getvalue())

    def remove(name):
        (tmp_path / "data" / name).unlink()
        bucket.remove("pictures/" + name)
        del sizes[name]

    def check(fetched, kill=False):
        """That all rows are there, and so many bytes were fetched for them."""
        def rows(path):
            dataset = penstock.Dataset.image_folder(path, max_path_bytes=40).map(
                penstock.decode_image(size=(60, 60))).batch(1)
            with penstock.attach(dataset, job=f"job{random.random()}", timeout_s=60) as reader:
                for step, batch in enumerate(reader):
                    yield {name: np.array(value).tolist() for name, value in batch.items()}
                    if kill and step == 5 and path.startswith("s3"):
                        for pid in fetchers():
                            os.kill(pid, signal.SIGKILL)
        before = bytes_fetched()
        assert list(rows("s3://data/pictures")) == list(rows(str(tmp_path / "data")))
        deadline = time.monotonic() + 10
        while bytes_fetched() - before < fetched and time.monotonic() < deadline:
            pass  # it is told twice a second
        assert bytes_fetched() - before == fetched

    def bytes_fetched():
        status = json.loads(subprocess.run([PENSTOCK, "status", "--json"], capture_output=True,
                                           check=True).stdout)
        return status.get("stores", {}).get("bytes", 0)

    def places():
        found, = (tmp_path / "cache" / "objects").glob("*.places")
        return found

    for i in range(30):
        put(f"{'cat' if i % 3 else 'dog'}/{i:02}.png")
    check(sum(sizes.values()))
    for name in ("ant/first.png", "cat/04a.png", "dog/00.png", "dog/last.png"):
        put(name)
    remove("cat/07.png"), remove("dog/27.png")
    check(sum(sizes[name] for name in ("ant/first.png", "cat/04a.png", "dog/00.png",
                                       "dog/last.png")))
    remove("cat/08.png")
    check(0, kill=True)
    # Nothing is left of what is gone.
    used = places().with_suffix("").stat().st_blocks * 512
    assert used <= sum(-(-size // 4096) * 4096 for size in sizes.values()) + 8192
    # What lies where is not known, or is of others: all is fetched anew.
    places().write_bytes(places().read_bytes()[:-1] + b"?")
    check(sum(sizes.values()))
    for name in list(sizes)[3:]:
        if name != "ant/first.png":  # an empty folder is a class, too
            remove(name)
    put("cat/new.png"), put("dog/new.png")
    check(sum(sizes.values()))
