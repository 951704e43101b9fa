"""What commands say of data in object stores: how much is fetched and who waits for it
(status, trace), what it will cost (check, explain), what a store does (doctor)."""

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import time

import penstock
import pytest
from test_object_stores import (PENSTOCK, bucket, fetchers, fixed, own_broker,  # noqa: F401
                                records, rows_of, rows_of_hosts, store, tar_of, two_hosts)

pytest.importorskip("obstore")


def told(*arguments, status=0, **options):
    done = subprocess.run([PENSTOCK, *map(str, arguments)], capture_output=True, text=True,
                          **options)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stdout + done.stderr


def of_json(*arguments, **options):
    return json.loads(told(*arguments, "--json", **options))


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Commands with brokers of their own."""
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PENSTOCK_PYTHON", sys.executable)
    return tmp_path


def spec_of(folder, dataset):
    (folder / "spec.yaml").write_text(dataset.to_json())
    return folder / "spec.yaml"


# ---- a running job


def test_a_job_that_waits_for_a_store_says_so(store, own_broker, tmp_path):  # noqa: F811
    data = records(2000, 4096)
    store.files = {"a.bin": data.tobytes()}
    # Slow enough that nothing is ever ahead.
    store.fault = lambda path, number: 0.3
    dataset = fixed(store.url + "/a.bin", 4096, batch=4, cache={"files": "1M"},
                    shuffle={"seed": 1}, epochs=100)
    file = tmp_path / "trace.json"

    def watch():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            job, = of_json("status", "--socket", own_broker.socket)["jobs"]
            if job["bottleneck"]["what"] == "network" and job.get("remote", {}).get("wait_s"):
                break
        told("trace", "slow", "--socket", own_broker.socket, "--seconds", "2", "--out", file)
        return job

    with penstock.attach(dataset, job="slow", timeout_s=60) as reader, \
            concurrent.futures.ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        for _ in reader:
            if watching.done():
                break
    job = watching.result()
    text = job["bottleneck"]["text"]
    assert text.startswith("the network is the bottleneck: workers wait"), text
    # Counted one after the other.
    assert 0 < job["bottleneck"]["network"] <= job["bottleneck"]["storage"] + 0.1
    assert 0 < job["remote"]["wait_s"] <= job["read_wait_s"] + 1
    trace = json.loads(file.read_text())["traceEvents"]
    fetches = [each for each in trace if each["name"] == "fetch"]
    assert fetches
    lanes = {}
    for each in sorted(fetches, key=lambda each: each["ts"]):
        assert each["args"]["bytes"] >= 4096 and each["args"]["retries"] >= 0
        # One after the other in each lane.
        assert each["ts"] >= lanes.get(each["tid"], 0) - 1
        lanes[each["tid"]] = each["ts"] + each["dur"]
    assert max(each["args"]["of object stores"] for each in trace
               if each["name"] == "wait for reads") > 0


def test_what_was_needed_and_what_was_fetched(store, own_broker):  # noqa: F811
    data = records(1000, 65536)
    store.files = {f"{i}.bin": data[i * 100:(i + 1) * 100].tobytes() for i in range(10)}
    dataset = fixed(store.url + "/{0..9}.bin", 65536, batch=20, shuffle={"seed": 1}, epochs=2)

    def remote():
        status = of_json("status", "--socket", own_broker.socket)
        return status["stores"], status["jobs"][0].get("remote")

    with penstock.attach(dataset, job="twice", timeout_s=60) as reader:
        for epoch in reader.epochs():
            for batch in epoch:
                if epoch.number == 1 and batch.step > 40:
                    stores, use = remote()
    # All is kept: what the second epoch needed was there.
    assert use["fetched_bytes"] <= data.nbytes
    assert use["bytes"] > data.nbytes
    assert 0 < use["hit_rate_all"] <= 0.5
    assert use["hit_rate"] > use["hit_rate_all"]
    assert stores["bytes"] >= data.nbytes
    table = told("status", "--socket", own_broker.socket)
    assert "stores " in table
    metrics = told("metrics", "--socket", own_broker.socket)
    assert f"penstock_store_bytes_total {stores['bytes']}" in metrics


def test_totals_outlive_the_process_that_fetches(store, own_broker):  # noqa: F811
    data = records(2000, 5000)
    store.files = {"a.bin": data.tobytes()}
    store.fault = lambda path, number: 0.02

    def stores():
        return of_json("status", "--socket", own_broker.socket).get("stores", {})
    before = 0
    dataset = fixed(store.url + "/a.bin", 5000, batch=20, shuffle={"seed": 1}, epochs=50,
                    cache={"files": "1M"})
    with penstock.attach(dataset, job="killed", timeout_s=60) as reader:
        for batch in reader:
            now = stores().get("bytes", 0)
            assert now >= before
            if now > data.nbytes // 2 and not before:
                before = now
                for pid in fetchers():
                    os.kill(pid, signal.SIGKILL)
            if now > before > 0:
                break


# ---- what data will cost


def tars(count=3):
    return {f"train-{i}.tar": tar_of([(f"{i}{k:04}.{kind}", value) for k in range(100)
                                      for kind, value in (("cls", b"7"),
                                                          ("bin", os.urandom(20000)))])
            for i in range(count)}


FEATURES = {"value": {"member": "cls", "dtype": "int64", "shape": []},
            "data": {"member": "bin", "dtype": "uint8", "shape": [20000]}}


def test_check_says_what_an_index_costs_before_it_is_paid(store, alone):  # noqa: F811
    store.files = tars()
    spec = spec_of(alone, penstock.Dataset.webdataset(
        store.url + "/train-{0..2}.tar", FEATURES).shuffle(seed=1).batch(20))
    text = told("check", "--no-scan", spec, status=1)
    assert "train-0.tar and 2 more files have no index" in text
    assert "they would be read once on each host, which fetches up to" in text
    assert "penstock index --out" in text
    all_bytes = sum(map(len, store.files.values()))
    # Only what tells of a compressed file.
    assert store.sent <= 3 * (512 << 10)
    checked = of_json("check", spec)["remote"]
    assert (checked["files"], checked["bytes"]) == (3, all_bytes)
    assert (checked["index_kept"], checked["index_beside"]) == (0, 0)
    assert (checked["index_scanned"], checked["index_scanned_bytes"]) == (3, all_bytes)
    assert checked["rows"] == 300
    assert 20001 <= checked["row_bytes"] <= 22000  # with headers between
    assert checked["row_block_bytes"] > checked["row_bytes"]
    # It is paid once.
    sent = store.sent
    text = told("check", "--no-scan", "--no-row", spec)
    assert "3 files' in the cache folder" in text
    assert store.sent == sent


def test_check_says_that_indexes_lie_beside(store, alone, tmp_path, monkeypatch):  # noqa: F811
    data = tmp_path / "data"
    data.mkdir()
    files = tars(2)
    for name, content in files.items():
        (data / name).write_bytes(content)
    local = spec_of(data, penstock.Dataset.webdataset(
        str(data / "train-*.tar"), FEATURES).batch(20))
    told("index", "--out", data, local)
    store.files = {**files, **{each.name: each.read_bytes() for each in data.glob("*.index")}}
    spec = spec_of(alone, penstock.Dataset.webdataset(
        store.url + "/train-{0..1}.tar", FEATURES).batch(20))
    checked = of_json("check", "--no-scan", spec)["remote"]
    assert (checked["index_beside"], checked["index_scanned"]) == (2, 0)


def test_an_index_that_nobody_needs_is_named(alone):
    (alone / "a.bin").write_bytes(bytes(1000))
    spec = spec_of(alone, fixed(str(alone / "a.bin"), 100))
    text = told("index", "--out", alone, spec, status=1)
    assert "\npenstock: dataset 'remote': its source needs no index beside its files" in text
    assert "leave --out out" in text
    assert "penstockd" not in text and "write-indexes" not in text


@pytest.mark.parametrize("out, why", [
    ("{}/below", "{}/below/0.tar.*: the server cannot do what is asked"),
    ("s3://nowhere/x", "s3://nowhere/x/0.tar.*: there is no such bucket"),
    ("http://127.0.0.1:1/x", "nothing listens at http://127.0.0.1:1: check the address")])
def test_an_index_that_cannot_be_put_is_named(bucket, store, alone, out, why):  # noqa: F811
    (alone / "0.tar").write_bytes(tar_of([("a.bin", b"1")]))
    spec = spec_of(alone, penstock.Dataset.webdataset(str(alone / "0.tar"), {
        "x": {"member": "bin", "dtype": "uint8", "shape": [1]}}).batch(1))
    text = told("index", "--out", out.format(store.url), spec, status=1)
    assert re.search(why.format(re.escape(store.url)), text), text
    assert "penstockd" not in text


@pytest.mark.parametrize("command", [
    ["check", "s3://data/spec.yaml"], ["check", "--all", "--out", "s3://data/broken.txt", "SPEC"],
    ["convert", "--to", "webdataset", "--out", "s3://data/tars", "SPEC"]])
def test_an_address_where_only_a_file_can_be_is_named(alone, command):
    spec = spec_of(alone, penstock.Dataset.range(8).batch(4))
    text = told(*(spec if each == "SPEC" else each for each in command), status=1, cwd=alone)
    assert "is an address: object stores have data and indexes" in text
    assert sorted(each.name for each in alone.iterdir()) == ["spec.yaml"]


def test_explain_says_what_epochs_download(store, alone, monkeypatch):  # noqa: F811
    data = records(4000, 10000)
    store.files = {f"{i}.bin": data[i * 100:(i + 1) * 100].tobytes() for i in range(40)}
    dataset = fixed(store.url + "/{0..39}.bin", 10000, batch=20, shuffle={"seed": 1},
                    cache={"files": "16M"})
    spec = spec_of(alone, dataset)
    explained = of_json("explain", "--seconds", "2", spec)["remote"]
    assert (explained["files"], explained["bytes"]) == (40, data.nbytes)
    assert explained["bytes_per_s"] > 0
    assert explained["kept_bytes"] == 14 << 20
    left = data.nbytes - (14 << 20)
    # Rows of 10,000 bytes lie in 3 or 4 blocks, and few are looked ahead in 2 MiB.
    assert 1.2 * left < explained["epoch_bytes"] < 1.6 * left
    assert explained["epoch_bytes_least"] == pytest.approx(data.nbytes - (16 << 20), rel=0.01)
    # 2 MiB are looked ahead: two files of 1 MB.
    assert explained["window_files"] == 2
    # Nothing is in copies yet.
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(alone / "empty"))
    text = told("explain", "--seconds", "2", "--bandwidth", "1M", spec)
    assert "the network" in text
    assert "Of 40 files in object stores (38.1 MiB) it downloads" in text
    assert "`shuffle: {window_files: 2}` downloads each byte once" in text


@pytest.mark.parametrize("keys, size, times", [
    ({"shard": "file", "shuffle": {"seed": 1, "window_files": 2}}, 1000, 1),
    ({"shuffle": {"seed": 1}}, 200_000, 1.5),  # 2.6 rows in each unit
    ({"shuffle": {"seed": 1}}, 1000, 2),
    ({}, 1000, 2),  # stretches of 4 rows
])
def test_check_says_what_several_hosts_download(store, two_hosts, alone,  # noqa: F811
                                                keys, size, times):
    data = records((20 << 20) // size // 8 * 8, size)
    store.files = {f"{i}.bin": data[i::8].tobytes() for i in range(8)}
    dataset = fixed(store.url + "/{0..7}.bin", size, batch=8, **keys)
    spec = spec_of(alone, dataset)
    own = [dict(rank=rank, world_size=4, local_world_size=2) for rank in range(4)]
    rows_of_hosts(dataset, dict(zip(two_hosts, (own[:2], own[2:]))))
    sent = store.sent
    checked = of_json("check", "--ranks", "4", "--hosts", "2", spec)["remote"]
    assert checked["all_hosts_bytes"] == 2 * checked["host_first_epoch_bytes"]
    assert checked["all_hosts_bytes_least"] == data.nbytes
    assert checked["all_hosts_bytes"] == pytest.approx(sent, rel=0.12 if times == 1.5 else 0.02)
    assert sent == pytest.approx(times * data.nbytes, rel=0.2 if times == 1.5 else 0.02)
    text = told("check", "--no-scan", "--ranks", "4", "--hosts", "2", spec)
    assert "a host downloads" in text and "all 2 hosts" in text
    assert ("`shard: file` downloads each byte once" in text) == (times > 1)
    assert "2 ranks of a host" in text


def test_ranks_that_are_not_equally_many_on_each_host_are_refused(alone):
    spec = spec_of(alone, penstock.Dataset.range(8).batch(4))
    assert "3 ranks are not equally many on each of --hosts 2" in told(
        "check", "--ranks", "3", "--hosts", "2", spec, status=2)


def test_a_window_downloads_less(store, own_broker):  # noqa: F811
    data = records(1000, 1000)
    store.files = {f"{i}.bin": data[i * 50:(i + 1) * 50].tobytes() for i in range(20)}
    sent = []
    for shuffle in ({"seed": 1}, {"seed": 1, "window_files": 1}):
        before = store.sent
        rows_of(fixed(store.url + "/{0..19}.bin", 1000, batch=10, shuffle=shuffle,
                      cache={"files": "256K"}))
        sent.append(store.sent - before)
    # Far apart, rows fetch the blocks of 4 KiB that they share again.
    assert sent[1] < 0.7 * sent[0]


# ---- a store


def doctor(address):
    done = subprocess.run([PENSTOCK, "doctor", "--json", "--seconds", "1", address],
                          capture_output=True, text=True)
    told = json.loads(done.stdout)
    assert done.returncode == (1 if told["problems"] else 0)
    about = [each for each in told["findings"] if each["subject"].startswith("store ")]
    return told["stores"][0], about


def test_doctor_tries_a_web_server(store, alone):  # noqa: F811
    store.files = {"a.bin": bytes(8 << 20)}
    found, about = doctor(store.url + "/a.bin")
    assert "error" not in found
    assert found["etag"] and found["bytes"] == 8 << 20 and found["credentials"] == "none"
    assert found["first_byte_s"] > 0 and found["requests_per_s"] > 0
    assert [each["at_once"] for each in found["rates"]] == [1, 4, 16, 64]
    assert all(each["bytes_per_s"] > 0 for each in found["rates"])
    assert abs(found["clock_skew_s"]) < 30
    assert "problem" not in {each["severity"] for each in about}
    text = told("doctor", "--seconds", "1", store.url + "/a.bin")
    assert "to the first byte" in text and "requests of 1 MiB at once" in text


def test_doctor_says_what_is_wrong_with_a_store(store, alone, monkeypatch):  # noqa: F811
    store.files = {"a.bin": bytes(1 << 20)}
    for status, text, change in ((404, "there is no such object", "correct the address"),
                                 (403, "the store refuses", "give credentials")):
        store.fault = lambda path, number: status
        found, about = doctor(store.url + "/a.bin")
        problem, = (each for each in about if each["severity"] == "problem")
        assert text in problem["found"] and change in problem["change"]
    store.fault = None
    found, about = doctor(store.url + "/a.bin?secret=1")  # as of a signed address
    assert "secret=1" not in json.dumps([found, about])
    found, about = doctor(store.url + "/")
    assert "a web server lists no files" in found["error"]["text"]
    found, about = doctor("http://no-such-host.invalid/a.bin")
    assert found["error"]["step"] == "resolve"
    store.ranges_off = True
    found, about = doctor(store.url + "/a.bin")
    assert found["error"]["step"] == "read_small", found
    assert any("answers ranges" in each["change"] for each in about)
    monkeypatch.setenv("PENSTOCK_PYTHON", "/usr/bin/python3")
    if subprocess.run(["/usr/bin/python3", "-c", "import obstore"],
                      capture_output=True).returncode:
        found, about = doctor(store.url + "/a.bin")
        assert any("pip install obstore" in each["change"] for each in about)


def test_doctor_tries_a_bucket(bucket, alone):  # noqa: F811
    for i in range(3):
        bucket(f"train/{i}.bin", bytes((i + 1) << 20))
    for address in ("s3://data", "s3://data/train", "s3://data/train/", "s3://data/train/*.bin"):
        found, about = doctor(address)
        assert "error" not in found, found
        assert found["listed"] == 3 and found["object"] == "train/2.bin"
        assert found["credentials"] == "AWS_ACCESS_KEY_ID of the environment"
        assert "key" not in {str(value) for value in found.values()}
    found, about = doctor("s3://nowhere/train")
    assert "there is no such" in found["error"]["text"]
