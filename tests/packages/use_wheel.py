"""What a new user does with the installed wheel, in a root that has nothing else:
the first batch, pictures, training, `penstock run`, kill -9.

    use_wheel.py PICTURES      (of make_pictures.py)
"""


import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import penstock

PENSTOCK = pathlib.Path(sys.executable).parent / "penstock"
FIRST_BATCH = """
import penstock
print(next(iter(penstock.attach(penstock.Dataset.range(24).batch(8), autostart=True)))["value"])
"""
# Appends its steps' rows to a file, and the state after each.
TRAINER = """
import json, os, sys, time
import penstock
folder = sys.argv[1]
state = os.path.join(folder, "state.json")
start = json.load(open(state)) if os.path.exists(state) else None
with open(os.path.join(folder, "rows"), "a") as out, \\
        penstock.attach(job="killed", state=start, timeout_s=60) as reader:
    for batch in reader:
        time.sleep(0.01)
        print(*batch["value"].tolist(), file=out, flush=True)
        with open(state + ".new", "w") as file:
            json.dump(reader.state_dict(), file)
        os.replace(state + ".new", state)
"""
RANK = """
import sys
import penstock
with penstock.attach() as reader:
    rows = [row for batch in reader for row in batch["value"].tolist()]
    # One write: the ranks share the standard output, perhaps an unbuffered one.
    sys.stdout.write(" ".join(map(str, rows)) + "\\n")
"""


def first_batch():
    result = subprocess.run([sys.executable, "-c", FIRST_BATCH], text=True,
                            check=True, capture_output=True)
    assert result.stdout.split() == "[0 1 2 3 4 5 6 7]".split(), result.stdout


def pictures(folder):
    """Every decoder that the wheel carries, and what it leaves out."""
    dataset = (penstock.Dataset.image_folder(folder / "known", labels="none")
               .map(penstock.decode_image((48, 64), exact=True)).batch(1))
    names = sorted(os.listdir(folder / "known"))
    with penstock.attach(dataset, job="pictures") as reader:
        for name, batch in zip(names, reader):
            wanted = np.load(folder / f"{name}.npy")
            assert (batch["image"][0] == wanted).all(), name
    refused = (penstock.Dataset.image_folder(folder / "refused", labels="none")
               .map(penstock.decode_image(48)).batch(1))
    try:
        with penstock.attach(refused, job="refused") as reader:
            list(reader)
    except penstock.DataLoss as error:
        assert "ZSTD" in str(error) and "zstd.tif" in str(error), error
    else:
        raise AssertionError("a TIFF by ZSTD was taken")


def training(folder):
    """Logistic regression."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2000, 8)).astype("float32")
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", (x @ rng.normal(size=8) > 0).astype("int64"))
    dataset = (penstock.Dataset.npy({"x": folder / "x.npy", "y": folder / "y.npy"})
               .shuffle(seed=1).batch(100).repeat(5))
    weights = np.zeros(8, "float32")
    right = []
    with penstock.attach(dataset, job="training") as reader:
        for epoch in reader.epochs():
            right.append(0)
            for batch in epoch:
                odds = 1 / (1 + np.exp(-batch["x"] @ weights))
                right[-1] += int(((odds > 0.5) == batch["y"]).sum())
                weights -= 0.5 * batch["x"].T @ (odds - batch["y"]) / batch.rows
    assert right[-1] > 1900, right


def run_command(folder):
    spec = folder / "range.yaml"
    spec.write_text(penstock.Dataset.range(100).shuffle(seed=1).batch(10).to_yaml())
    result = subprocess.run(
        [PENSTOCK, "run", "--dataset", spec, "--ranks", "2", "--", sys.executable,
         "-c", RANK], text=True, capture_output=True)
    assert result.returncode == 0, result.stderr
    rows = [int(word) for line in result.stdout.splitlines()
            for word in line.split("] ")[-1].split()]
    assert sorted(rows) == list(range(100)), result.stdout


def killed(folder):
    """The trainer, twice, and the broker: each row once, but those of the step that
    had no state yet."""
    folder = folder / "killed"
    folder.mkdir()
    spec = folder / "range.yaml"
    spec.write_text(penstock.Dataset.range(1000).shuffle(seed=1).batch(10).to_yaml())
    rows = folder / "rows"
    rows.touch()

    def steps():
        return rows.read_text().splitlines()

    def until(count):
        end = time.monotonic() + 60
        while len(steps()) < count:
            assert time.monotonic() < end, "it stands still"
            assert trainer.poll() is None, "it has ended"
            time.sleep(0.01)

    with penstock.broker(workers=1) as broker:
        environment = {**os.environ, "PENSTOCK_DATASET": str(spec)}
        for stop in (30, 60, None):
            trainer = subprocess.Popen([sys.executable, "-c", TRAINER, folder],
                                       env=environment)
            if stop is None:
                until(80)
                assert kill_broker(broker.socket)
                assert trainer.wait(60) == 0
            else:
                until(stop)
                trainer.kill()
                trainer.wait()
    seen = [int(row) for line in steps() for row in line.split()]
    again = len(seen) - 1000
    assert set(seen) == set(range(1000)) and 0 <= again <= 20, again


def kill_broker(socket):
    folder = os.path.dirname(socket).encode()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if b"penstockd\0" in command and folder in command:
                os.kill(int(process.name), signal.SIGKILL)
                return True
        except OSError:  # it has ended
            pass
    return False


def main():
    given = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        first_batch()
        print("the first batch in two lines", flush=True)
        with penstock.broker():
            pictures(given)
            print("pictures of every format", flush=True)
            training(folder)
            print("training", flush=True)
        run_command(folder)
        print("penstock run", flush=True)
        killed(folder)
        print("kill -9 of trainer and broker", flush=True)


if __name__ == "__main__":
    main()
