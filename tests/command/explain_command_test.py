#!/usr/bin/env python3
"""Promise: `penstock explain` says of a spec which step of its map takes how much, and
of a running job whether its ranks or the loader limit. Method: the built command on
pictures made here, on a slow Python function, and on a broker with two paced ranks.

  explain_command_test.py BUILD_DIR
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

from PIL import Image

from running_broker import BrokerTest

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
PENSTOCK = BUILD / "client/command/penstock"


def explain(folder, spec, *options, **environment):
    (folder / "spec.yaml").write_text(spec)
    return subprocess.run(
        [PENSTOCK, "explain", "spec.yaml", "--seconds", "3", *options], cwd=folder,
        env=dict(os.environ, **environment), capture_output=True, text=True,
        timeout=120, check=False)


class Specs(unittest.TestCase):

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-explain-")
        self.folder = pathlib.Path(self._folder.name)

    def tearDown(self):
        self._folder.cleanup()

    def pictures(self):
        draw = random.Random(1)
        for label in ("a", "b"):
            (self.folder / "pictures" / label).mkdir(parents=True)
        for i in range(40):
            small = Image.frombytes("RGB", (40, 30), draw.randbytes(3600))
            small.resize((400, 300)).save(
                self.folder / "pictures" / "ab"[i % 2] / f"{i}.jpg", quality=90)

    def test_the_step_that_takes_most(self):
        self.pictures()
        done = explain(self.folder, """
dataset: pictures
source: {image_folder: {path: pictures}}
shuffle: {seed: 1}
map:
  - decode_image: {size: [224, 224]}
  - flip: {horizontal: 0.5}
  - normalize: {mean: [0.5, 0.5, 0.5], std: [0.2, 0.2, 0.2], dtype: float32}
batch: {size: 16}
""", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        told = json.loads(done.stdout)
        self.assertEqual(told["records"], 40)
        parts = {each.get("name", each["part"]): each for each in told["parts"]}
        self.assertGreater(parts["decode_image"]["share"], 0.4)
        self.assertEqual(parts["flip"]["sample_s"], 0)  # in the pass of normalize
        self.assertGreater(parts["normalize"]["sample_s"], 0)
        self.assertAlmostEqual(sum(each["share"] for each in parts.values()), 1, 3)
        self.assertGreater(told["repeat_first_samples_per_s"], 0)
        self.assertGreater(told["cached"]["bytes_per_sample"], 3000)
        self.assertEqual(told["smaller"]["size"], "112 x 112")
        self.assertGreater(told["smaller"]["repeat_first_samples_per_s"], 0)

    def test_a_slow_function_and_its_hand_over(self):
        modules = self.folder / "modules"
        modules.mkdir()
        (modules / "slow.py").write_text(
            "import time\ndef wait(row):\n    time.sleep(0.01)\n    return row\n")
        modules.chmod(0o755)
        (modules / "slow.py").chmod(0o644)
        done = explain(self.folder, """
dataset: slow
source: {range: {stop: 1000}}
map:
  - python: {function: "slow:wait"}
batch: {size: 8}
""", "--json", PENSTOCK_PYTHON_PATH=str(modules),
                       PENSTOCK_PYTHON="/usr/bin/python3")  # the one with NumPy
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        told = json.loads(done.stdout)
        self.assertEqual(told["limit"], "step python")
        parts = {each.get("name", each["part"]): each for each in told["parts"]}
        self.assertGreater(parts["python"]["sample_s"], 0.0095)
        self.assertGreater(parts["hand_over"]["sample_s"], 0)
        self.assertIsNone(told["cold"])
        self.assertIn("need no reads", told["cold_why"])

    def test_what_people_see(self):
        done = explain(self.folder, """
dataset: numbers
source: {range: {stop: 100000}}
batch: {size: 512}
""")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("numbers: 100,000 records", done.stdout)
        self.assertEqual(done.stdout.count("< bottleneck"), 1)
        self.assertIn("all together, now", done.stdout)

    def test_what_cannot_be(self):
        for spec, status, told in (
                ("dataset: x\nsource: {range: {stop: 3}}\nbatch: {siz: 1}\n", 1,
                 "siz"),
                ("dataset: x\nsource: {image_folder: {path: none}}\n"
                 "batch: {size: 1}\n", 1, "none")):
            with self.subTest(told):
                wrong = explain(self.folder, spec)
                self.assertEqual(wrong.returncode, status)
                self.assertIn(told, wrong.stderr)
        wrong = subprocess.run([PENSTOCK, "explain", "x", "--seconds", "0"],
                               capture_output=True, text=True, check=False)
        self.assertEqual(wrong.returncode, 2)


class Jobs(BrokerTest):
    BUILD = BUILD

    def test_slow_ranks_are_the_limit(self):
        done = self.broker.ask("explain", "train", "--seconds", "3", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        told = json.loads(done.stdout)
        self.assertEqual(told["limit"], "ranks", told)
        self.assertIn("ranks are the bottleneck", told["advice"])
        # 12 rows a batch, at most one of each rank in 5 ms.
        self.assertLess(told["samples_per_s"], 2 * 12 / 0.005)

    def test_a_job_that_is_not_there(self):
        wrong = self.broker.ask("explain", "nothing", "--seconds", "2")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("no job 'nothing'", wrong.stderr)


if __name__ == "__main__":
    unittest.main()
