"""Sources whose files lie in object stores, beside what the same files on this machine give:
pictures that a list or COCO's annotations name, LMDB, Parquet, Arrow, datasets of a hub."""

import io
import json
import os
import random
import time

import numpy as np
import penstock
import pytest
from test_object_stores import (bucket, fixed, index_of, own_broker, records,  # noqa: F401
                                rows_of, store)
from test_store_tools import alone, of_json, spec_of  # noqa: F401

pytest.importorskip("obstore")


def batches_of(dataset, **options):
    with penstock.attach(dataset, job=f"job{random.random()}", timeout_s=60,
                         **options) as reader:
        return [{name: np.array(value) for name, value in batch.items()} for batch in reader]


def assert_same(remote, local):
    assert len(remote) == len(local) > 0
    for one, other in zip(remote, local):
        assert one.keys() == other.keys()
        for name in one:
            assert np.array_equal(one[name], other[name]), name


# ---- pictures that a list names


NAMES = ("cat/1.png", "cat/deep/2.png", "a b/3.png", "dog/4.PNG")


@pytest.fixture
def pictures(bucket, tmp_path):  # noqa: F811
    """The same pictures in the bucket and on this machine, with masks and others beside."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name in (*NAMES, *("masks/" + each for each in NAMES), "other/5.png"):
        out = io.BytesIO()
        image.fromarray(rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(out, "PNG")
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(out.getvalue())
        bucket("pictures/" + name, out.getvalue())
    return tmp_path / "data"


def listed(file, folder=None, **keys):
    return penstock.Dataset.image_list(
        file, {"image": {"encoded": True, "column": "file"},
               "mask": {"encoded": True, "column": "mask"}, "label": {"classes": True}},
        folder=folder, **keys).map(penstock.decode_image(size=(40, 30))).map(
            penstock.decode_image(feature="mask", size=(40, 30))).batch(2)


@pytest.mark.parametrize("where", ["in the bucket", "on this machine"])
def test_a_list_of_pictures_at_an_address(pictures, bucket, own_broker, where):  # noqa: F811
    rows = ["file,mask,label"] + [f"{name},masks/{name},{name[:3]}" for name in NAMES]
    text = "\n".join([*rows, "./cat/deep/../1.png,masks//cat/1.png,cat"])
    (pictures / "list.csv").write_text(text)
    bucket("pictures/list.csv", text.encode())
    local = batches_of(listed(pictures / "list.csv"))
    if where == "in the bucket":
        assert_same(batches_of(listed("s3://data/pictures/list.csv")), local)
        return
    assert_same(batches_of(listed(pictures / "list.csv", "s3://data/pictures")), local)
    # Names may be addresses below that of the folder.
    whole = text.replace("\ncat", "\ns3://data/pictures/cat")
    (pictures / "list.csv").write_text(whole)
    assert_same(batches_of(listed(pictures / "list.csv", "s3://data/pictures/")), local)


def test_pictures_of_a_list_that_are_not_there(pictures, bucket, own_broker):  # noqa: F811
    text = "file,mask,label\n" + "".join(
        f"{name},masks/{name},x\n" for name in ("none.png", *NAMES))
    bucket("pictures/list.csv", text.encode())
    with pytest.raises(penstock.Error, match="line 2: .*s3://data/pictures/none.png: there is no "
                       "such object; `on_missing: skip`"):
        batches_of(listed("s3://data/pictures/list.csv"))
    rows = batches_of(listed("s3://data/pictures/list.csv", on_missing="skip"))
    assert sum(len(batch["label"]) for batch in rows) == len(NAMES)
    with pytest.raises(penstock.Error, match="s3://data/none.csv: there is no such object"):
        batches_of(listed("s3://data/none.csv", folder="s3://data/pictures"))
    with pytest.raises(penstock.Error, match="s3://data/none/: there are no objects"):
        batches_of(listed("s3://data/pictures/list.csv", folder="s3://data/none"))
    text = "file,mask,label\ns3://elsewhere/1.png,1.png,x\n"
    bucket("pictures/list.csv", text.encode())
    with pytest.raises(penstock.Error, match="'?s3://elsewhere/1.png'? is an address; give the "
                       "one that all pictures lie below as `folder`"):
        batches_of(listed("s3://data/pictures/list.csv"))


def test_a_web_server_has_no_pictures_of_a_list(store, own_broker):  # noqa: F811
    store.files = {"list.csv": b"file,mask,label\n1.png,1.png,x\n"}
    with pytest.raises(penstock.Error, match="a web server lists no files"):
        batches_of(listed(store.url + "/list.csv"))


def test_coco_at_an_address(pictures, bucket, own_broker):  # noqa: F811
    text = json.dumps({
        "images": [{"id": i, "file_name": name} for i, name in enumerate(NAMES)],
        "categories": [{"id": 1, "name": "x"}],
        "annotations": [{"id": i, "image_id": i % 4, "category_id": 1, "area": 4, "iscrowd": 0,
                         "bbox": [i, 1, 2, 2], "segmentation": [[0, 0, i, 1, 1, 1]]}
                        for i in range(10)]})
    (pictures / "objects.json").write_text(text)
    bucket("objects.json", text.encode())

    def rows(annotations, images):
        return batches_of(penstock.Dataset.coco(
            annotations, images, segmentation=True).map(
                penstock.decode_image(size=(40, 30), boxes="boxes")).batch(1))
    local = rows(pictures / "objects.json", pictures)
    assert_same(rows("s3://data/objects.json", "s3://data/pictures"), local)
    assert_same(rows(pictures / "objects.json", "s3://data/pictures"), local)
    bucket("objects.json", text.replace("cat/1.png", "none.png").encode())
    with pytest.raises(penstock.Error, match="s3://data/pictures/none.png: there is no such"):
        rows("s3://data/objects.json", "s3://data/pictures")


def test_a_list_of_files_at_an_address(store, bucket, own_broker, tmp_path):  # noqa: F811
    data = records(300, 1000)
    for i in range(3):
        part = data[i * 100:(i + 1) * 100].tobytes()
        bucket(f"parts/{i}.bin", part)
        store.files[f"parts/{i}.bin"] = part
    (tmp_path / "2.bin").write_bytes(data[200:].tobytes())
    bucket("parts/list.txt", f"0.bin\ns3://data/parts/1.bin\n{tmp_path}/2.bin\n".encode())
    store.files["list.txt"] = b"parts/0.bin\r\nparts/1.bin\r\n\r\nparts/2.bin"
    for each in ("s3://data/parts/list.txt", store.url + "/list.txt"):
        rows = np.concatenate(rows_of(fixed({"list": each}, 1000)))
        assert np.array_equal(rows, data), each
    # The next job takes the list as it is then.
    bucket("parts/list.txt", b"1.bin\n")
    rows = np.concatenate(rows_of(fixed({"list": "s3://data/parts/list.txt"}, 1000)))
    assert np.array_equal(rows, data[100:200])
    bucket("parts/list.txt", b"1.bin\nnone.bin\n")
    with pytest.raises(penstock.Error, match="s3://data/parts/none.bin: there is no such object"):
        rows_of(fixed({"list": "s3://data/parts/list.txt"}, 1000))
    with pytest.raises(penstock.Error, match="s3://data/none.txt: there is no such object"):
        rows_of(fixed({"list": "s3://data/none.txt"}, 1000))


# ---- LMDB


def lmdb_of(folder, values):
    """The bytes of a database of these values."""
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(folder), map_size=1 << 28) as environment:
        with environment.begin(write=True) as transaction:
            for i, value in enumerate(values):
                transaction.put(b"image-%06d" % i, value)
                transaction.put(b"label-%06d" % i, b"%d" % i)
    return (folder / "data.mdb").read_bytes()


def of_lmdb(path, size):
    return penstock.Dataset.lmdb(path, {
        "image": {"key": "image-*", "dtype": "uint8", "max_length": size},
        "label": {"key": "label-*", "max_bytes": 8}}).batch(16, last="partial")


@pytest.mark.parametrize("size", [50, 6000, 100000])
def test_lmdb_at_an_address(store, own_broker, tmp_path, size):  # noqa: F811
    rng = np.random.default_rng(size)
    count = {50: 3000, 6000: 1500, 100000: 100}[size]
    (tmp_path / "db").mkdir()
    data = lmdb_of(tmp_path / "db", [rng.bytes(int(rng.integers(1, size))) for _ in range(count)])
    store.files = {"db/data.mdb": data}
    local = batches_of(of_lmdb(tmp_path / "db", size))
    for each in ("db", "db/", "db/data.mdb"):
        assert_same(batches_of(of_lmdb(f"{store.url}/{each}", size)), local)
    assert store.sent <= len(data)


def test_the_index_of_lmdb_fetches_no_values(store, own_broker, tmp_path):  # noqa: F811
    (tmp_path / "db").mkdir()
    data = lmdb_of(tmp_path / "db", [os.urandom(100000) for _ in range(300)])
    store.files = {"db/data.mdb": data}
    dataset = of_lmdb(store.url + "/db", 100000)
    (tmp_path / "spec.yaml").write_text(dataset.to_json())
    index_of(tmp_path / "spec.yaml", tmp_path, PENSTOCK_CACHE_DIR=str(tmp_path / "other"))
    # The keys; the head and the first value bring units of 512 KiB.
    assert store.sent < 3 * (512 << 10) < len(data) // 10
    # Where the copies have no room, too.
    assert_same(batches_of(dataset.cache(files="4M")), batches_of(of_lmdb(tmp_path / "db", 100000)))


def test_lmdb_that_is_damaged_or_another(store, own_broker, tmp_path):  # noqa: F811
    (tmp_path / "db").mkdir()
    data = lmdb_of(tmp_path / "db", [os.urandom(6000) for _ in range(300)])
    store.files = {"cut.mdb": data[:len(data) // 2 // 4096 * 4096], "empty.mdb": data[:100],
                   "other.mdb": bytes(100000), "a.mdb": data}
    for name, text in (("cut", "it is damaged or cut off"), ("empty", "is no LMDB file"),
                       ("other", "is no LMDB file")):
        with pytest.raises(penstock.Error, match=f"{name}.mdb.*{text}"):
            batches_of(of_lmdb(f"{store.url}/{name}.mdb", 6000))
    with pytest.raises(penstock.Error, match="none.*: there is no such object"):
        batches_of(of_lmdb(store.url + "/none", 6000))

    def change(path, number):
        if number > 8:
            store.files["a.mdb"] = data[:-1] + b"x"
        return None
    store.fault = change
    store.requests = 0
    with pytest.raises(penstock.Error, match="a.mdb: the object has changed"):
        batches_of(of_lmdb(store.url + "/a.mdb", 6000).cache(files="1M"))


# ---- Parquet and Arrow


COLUMNS = 20


def table_of(rows, text=2000, seed=0):
    """A table of 20 columns of alike bytes, which compress to no less."""
    pa = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(seed)
    return pa.table({f"c{i:02}": [rng.bytes(int(rng.integers(1, text))) for _ in range(rows)]
                     for i in range(COLUMNS - 1)} | {"id": np.arange(rows)})


def bytes_of(table, kind, rows):
    """As a file whose groups have so many rows."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.ipc
    import pyarrow.parquet
    out = io.BytesIO()
    if kind == "parquet":
        pa.parquet.write_table(table, out, row_group_size=rows)
        return out.getvalue()
    options = pa.ipc.IpcWriteOptions(compression="zstd" if "compressed" in kind else None)
    make = pa.ipc.new_stream if "stream" in kind else pa.ipc.new_file
    with make(out, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return out.getvalue()


def of_table(files, columns, text=2000, **keys):
    return penstock.Dataset.parquet(
        files, columns=columns, max_length={each: text for each in columns if each != "id"},
        **keys).batch(16, last="partial")


KINDS = ("parquet", "arrow file", "arrow stream")


@pytest.mark.parametrize("kind", [*KINDS, "compressed arrow file"])
@pytest.mark.parametrize("files", ["all is kept", "some pass"])
def test_tables_at_an_address(store, own_broker, tmp_path, kind, files):  # noqa: F811
    parts = {f"{i}.table": bytes_of(table_of(500, seed=i), kind, 60) for i in range(3)}
    for name, data in parts.items():
        (tmp_path / name).write_bytes(data)
    store.files = parts
    for columns, shuffled in ((["c03", "id"], True), ([f"c{i:02}" for i in range(19)], False)):
        def rows(where):
            dataset = of_table([f"{where}/{name}" for name in parts], columns)
            if shuffled:
                dataset = dataset.shuffle(seed=1, window_files=2)
            if files == "some pass" and where == store.url:
                dataset = dataset.cache(files="4M")
            return batches_of(dataset)
        assert_same(rows(store.url), rows(tmp_path))


@pytest.mark.parametrize("kind", KINDS)
def test_a_tenth_of_the_columns_is_a_tenth_of_the_bytes(store, own_broker, kind):  # noqa: F811
    data = bytes_of(table_of(2000), kind, 250)
    store.files = {"a.table": data}
    rows = batches_of(of_table(store.url + "/a.table", ["c05", "c11"]))
    assert sum(len(batch["c05"]) for batch in rows) == 2000
    # The footer, messages and the ends of blocks are the rest.
    assert len(data) * 0.1 < store.sent < len(data) * 0.12
    fetched = {block for _, begin, end in store.ranges for block in range(begin, end)}
    assert len(fetched) == store.sent  # none twice


def test_check_counts_the_columns_that_are_read(store, alone):  # noqa: F811
    data = bytes_of(table_of(500), "parquet", 100)
    store.files = {"a.parquet": data}
    spec = spec_of(alone, of_table(store.url + "/a.parquet", ["c05", "c11"]))
    told = of_json("check", spec)["remote"]
    assert len(data) * 0.1 < told["bytes"] < len(data) * 0.12


def test_the_columns_of_the_next_row_groups_are_fetched_ahead(store, own_broker):  # noqa: F811
    data = bytes_of(table_of(2000), "parquet", 100)
    store.files = {"a.parquet": data}
    store.fault = lambda path, number: 0.3
    with penstock.attach(of_table(store.url + "/a.parquet", ["c05", "id"]), job="ahead",
                         timeout_s=60) as reader:
        batches = iter(reader)
        next(batches)
        sent = wait_until_quiet(store)
        # All of its 20 groups, of which the first batches have come.
        assert sent > len(data) / COLUMNS
        store.fault = lambda path, number: 500
        assert sum(len(batch["id"]) for batch in batches) == 2000 - 16


def wait_until_quiet(store):  # noqa: F811
    sent = -1
    while sent != (sent := store.sent):
        time.sleep(1)
    return sent


def test_columns_that_lie_beside_each_other_are_one_request(store, own_broker):  # noqa: F811
    data = bytes_of(table_of(300), "parquet", 300)
    store.files = {"a.parquet": data}
    batches_of(of_table(store.url + "/a.parquet", [f"c{i:02}" for i in range(5, 10)]))
    assert len(store.ranges) <= 4  # the head, the footer, the columns; and what a query asks


def test_tables_that_are_damaged_or_others(store, own_broker):  # noqa: F811
    data = bytes_of(table_of(500), "parquet", 100)
    stream = bytes_of(table_of(500), "arrow stream", 100)
    store.files = {"cut.parquet": data[:len(data) // 2], "tiny.parquet": b"PAR1",
                   "text.parquet": b"no table at all, but text" * 100,
                   "cut.arrow": stream[:len(stream) // 2], "a.parquet": data}
    for name, text in (("cut.parquet", "it is damaged"), ("tiny.parquet", "it is damaged"),
                       ("text.parquet", "wanted a file of Parquet"),
                       ("cut.arrow", "it is damaged"),
                       ("none.parquet", "there is no such object")):
        with pytest.raises(penstock.Error, match=f"{name}.*{text}"):
            batches_of(of_table(f"{store.url}/{name}", ["c05"]))

    def change(path, number):
        if number > 8:
            store.files["a.parquet"] = data[:-1] + b"x"
        return None
    store.fault = change
    store.requests = 0
    with pytest.raises(penstock.Error, match="a.parquet: the object has changed"):
        batches_of(of_table(store.url + "/a.parquet", ["c05", "c11"]).cache(files="1M"))


# ---- a hub


class Hub:
    """A fake Hugging Face Hub: the files of commits of one dataset, o/n."""

    def __init__(self):
        import http.server
        import threading
        self.commits, self.branch = {}, None
        hub = self

        class Answer(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.do_GET()

            def do_POST(self):
                size = int(self.headers.get("Content-Length", 0))
                self.say(*hub.answer(self.path, self.rfile.read(size)))

            def do_GET(self):
                self.say(*hub.answer(self.path, None, self.headers.get("Range")))

            def say(self, status, body, headers=None):
                headers = dict(headers or {})
                self.send_response(status)
                if not isinstance(body, bytes):
                    body = json.dumps(body).encode()
                    headers["Content_Type"] = "application/json"
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.server.daemon_threads = True
        self.url = "http://127.0.0.1:{}".format(self.server.server_address[1])
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def push(self, files):
        self.branch = f"{len(self.commits) + 1:040x}"
        self.commits[self.branch] = dict(files)
        return self.branch

    def answer(self, path, body=None, wanted=None):
        import urllib.parse
        path, _, query = urllib.parse.unquote(path).partition("?")
        parts = path.strip("/").split("/")
        if parts[:4] == ["api", "datasets", "o", "n"]:
            revision = parts[5] if len(parts) > 5 else "main"
            commit = self.branch if revision == "main" else revision
            if commit not in self.commits:
                return 404, {"error": "no revision"}, {"X_Error_Code": "RevisionNotFound"}
            files, what = self.commits[commit], parts[4] if len(parts) > 4 else "revision"
            if what == "revision":
                return 200, {"id": "o/n", "sha": commit, "private": False, "tags": [],
                             "siblings": [{"rfilename": name} for name in files]}
            below = "/".join(parts[6:])
            if what == "paths-info":
                asked = urllib.parse.parse_qs(body.decode()).get("paths") or \
                    json.loads(body)["paths"]
                below, files = "", {name: files[name] for name in asked if name in files}
            return 200, [{"type": "file", "path": name, "size": len(data), "oid": commit}
                         for name, data in files.items() if name.startswith(below)]
        if parts[:4] == ["datasets", "o", "n", "resolve"]:
            commit = self.branch if parts[4] == "main" else parts[4]
            data = self.commits[commit].get("/".join(parts[5:]))
            if data is not None:
                begin, _, end = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
                part = data[int(begin):int(end or len(data)) + 1]
                return (206 if wanted else 200), part
            return 404, {"error": "no entry"}, {"X_Error_Code": "EntryNotFound"}
        return 404, {"error": "no repository"}, {"X_Error_Code": "RepoNotFound"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    pytest.importorskip("huggingface_hub")
    made = Hub()
    monkeypatch.setenv("HF_ENDPOINT", made.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_push_is_not_seen_before_the_data_are_opened_again(hub, own_broker):  # noqa: F811
    data, other = records(1000, 5000), records(1000, 5000, seed=1)
    first = hub.push({"data/0.bin": data[:500].tobytes(), "data/1.bin": data[500:].tobytes(),
                      "README.md": b"text"})
    dataset = fixed("hf://datasets/o/n/data/*.bin", 5000, batch=50,
                    cache={"files": "1M"})
    with penstock.attach(dataset, job="first", timeout_s=60) as reader:
        batches = iter(reader)
        rows = [np.array(next(batches)["value"])]
        hub.push({"data/0.bin": other[:500].tobytes(), "data/1.bin": other[500:].tobytes()})
        rows += [np.array(batch["value"]) for batch in batches]
    assert np.array_equal(np.concatenate(rows), data)
    # The hub is asked once a second at most.
    deadline = time.monotonic() + 30
    while not np.array_equal(np.concatenate(rows_of(dataset)), other):
        assert time.monotonic() < deadline
    pinned = fixed(f"hf://datasets/o/n@{first}/data/{{0,1}}.bin", 5000)
    assert np.array_equal(np.concatenate(rows_of(pinned)), data)
    branch = fixed("hf://datasets/o/n@main/data/1.bin", 5000)
    assert np.array_equal(np.concatenate(rows_of(branch)), other[500:])


def test_tables_of_a_hub(hub, own_broker, tmp_path):  # noqa: F811
    data = bytes_of(table_of(500), "parquet", 100)
    (tmp_path / "a.parquet").write_bytes(data)
    hub.push({"data/train-0.parquet": data})
    assert_same(batches_of(of_table("hf://datasets/o/n/data/train-*.parquet", ["c05", "id"])),
                batches_of(of_table(tmp_path / "a.parquet", ["c05", "id"])))


@pytest.mark.parametrize("path, text", [
    ("datasets/o/none/a.bin", "the hub has no such repository; a private or gated one wants a "
     "token"),
    ("datasets/o/n@none/a.bin", "the repository has no such revision"),
    ("datasets/o/n/none.bin", "none.bin: there is no such object"),
    ("datasets/o/n/none-*.bin", "no object matches it")])
def test_what_a_hub_has_not_is_named(hub, own_broker, path, text):  # noqa: F811
    hub.push({"a.bin": bytes(1000)})
    with pytest.raises(penstock.Error, match=text):
        rows_of(fixed("hf://" + path, 100))
