"""The examples, run as a user runs them."""

import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = (pathlib.Path(__file__).parent.parent.parent
            / "client" / "python" / "examples")
PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")


def run(*arguments):
    """What `penstock run` printed; in the examples' folder, with this Python."""
    path = os.pathsep.join([os.path.dirname(sys.executable),
                            os.environ["PATH"]])
    # Everything else says why it failed on standard error, which pytest shows.
    done = subprocess.run([PENSTOCK, "run", *arguments], cwd=EXAMPLES,
                          env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
                          stdout=subprocess.PIPE, text=True, timeout=300)
    return done.returncode, done.stdout


def accuracies(text):
    return [float(found) for found in re.findall(r"test accuracy ([\d.]+)", text)]


def test_a_search_over_one_broadcast_job():
    code, output = run("--ranks", "4", "--", "python3", "hyperparameter_search.py")
    assert code == 0
    assert output.count("60000 pictures") == 4
    assert min(accuracies(output)) > 0.7


def test_a_producer_and_its_ranks():
    code, output = run(
        "--ranks", "2", "--", "sh", "-c",
        '[ "$RANK" = 0 ] && python3 producer.py --steps 1000 & '
        'python3 consumer.py')
    assert code == 0
    found = re.findall(r"(\d+) rows, squared error ([\d.]+)", output)
    assert sum(int(rows) for rows, _ in found) == 64_000
    assert all(float(error) < 0.01 for _, error in found)


def test_outputs_are_in_the_order_of_the_samples(tmp_path):
    out = tmp_path / "scores.f32"
    code, output = run("--ranks", "3", "--", "python3", "inference.py", "--out", str(out))
    assert code == 0
    found = re.findall(r"(\d+) pictures, (\d+) right", output)
    assert sum(int(rows) for rows, _ in found) == 10_000
    with gzip.open("/usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    scores = np.fromfile(out, np.float32).reshape(10_000, 10)
    right = int((scores.argmax(axis=1) == labels).sum())
    assert right == sum(int(each) for _, each in found) > 6_000


def test_mpirun_says_the_ranks():
    pytest.importorskip("mpi4py")
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    code, output = run("--ranks", "0", "--", "mpirun", *root, "--oversubscribe",
                     "-np", "4", "python3", "mpi_average.py", "--epochs", "1")
    assert code == 0
    assert "4 ranks" in output
    assert accuracies(output)[0] > 0.75


def test_ddp_goes_on_with_other_ranks(tmp_path):
    pytest.importorskip("torch")
    command = ["--", "python3", "ddp_fashion_mnist.py", "--checkpoint",
               str(tmp_path / "ckpt.pt"), "--epochs", "1"]
    code, _ = run("--ranks", "4", *command, "--stop-after", "130")
    assert code == 3
    code, output = run("--ranks", "2", *command)
    assert code == 0
    # 235 steps an epoch; the checkpoint is of the hundredth.
    assert "2 ranks, 135 steps" in output
    assert accuracies(output)[0] > 0.75


def test_the_example_of_speech():
    pytest.importorskip("torch")
    if len(list(pathlib.Path("/usr/share/asterisk/sounds").glob("*/digits"))) < 5:
        pytest.skip("no asterisk-core-sounds-*-wav of Debian")
    code, output = run("--ranks", "1", "--", "python3", "speech.py", "--epochs", "3")
    assert code == 0
    assert "5 languages, 556 recordings" in output
    assert accuracies(output)[0] > 0.85


def test_the_page_of_language_models(tmp_path):
    """Its spec, program and commands, run as they stand there; what it names is there."""
    page = (EXAMPLES.parent / "LANGUAGE_MODELS.md").read_text()
    rng = np.random.default_rng(1)
    for kind in ("web", "code"):
        (tmp_path / kind).mkdir()
        for shard in range(2):
            tokens = rng.integers(0, 400, 60_000, dtype=np.uint16)
            tokens[tokens == 0] = 50256
            tokens.tofile(tmp_path / kind / f"{shard}.bin")
    blocks = re.findall(r"```(\w+)\n(.*?)```", page, re.S)
    assert [language for language, _ in blocks] == ["yaml", "python", "sh"]
    (tmp_path / "train.yaml").write_text(blocks[0][1])
    # What is a trainer's own.
    (tmp_path / "train.py").write_text(f"""\
import os
saved = []
def load():
    return None
def save(state):
    saved.append(state)
def train(tokens, positions, cu_seqlens, max_length, labels):
    assert tokens.shape == positions.shape == labels.shape == (1, 4096), tokens.shape
    assert cu_seqlens[-1] == 4096 and 0 < max_length <= 1024
    if len(saved) == 2:
        print("trained", saved[1]["epoch"] >= 0, flush=True)
        os._exit(0)
{blocks[1][1]}""")
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    done = subprocess.run(["sh", "-ec", blocks[2][1]], cwd=tmp_path, timeout=120, text=True,
                          env={**os.environ, "PATH": path}, stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert "pack" in done.stdout and done.stdout.count("trained True") == 4, done.stdout
    penstock = pytest.importorskip("penstock")
    for name in re.findall(r"`penstock\.([a-z_.]+)", page):
        found = penstock
        for part in name.split("."):
            found = getattr(found, part)
