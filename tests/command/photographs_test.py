#!/usr/bin/env python3
"""Promise: on real JPEGs every sample comes exactly once per epoch with the right
pixels, in an order that differs per epoch and depends on the seed alone; samples that
cannot be decoded are skipped or substituted. Method: `penstock bench --verify` against
the serial replay, on 1,000 JPEGs cut from photographs over two epochs (random-resized
crop, flip, normalize), and on damaged files of every format.

  photographs_test.py BUILD_DIR
"""

import json
import pathlib
import shutil
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
COUNT = 1000

SPEC = """
dataset: photographs
source:
  image_folder: {path: %s}
shuffle: {seed: %d}
map:
  - decode_image: {crop: {random_resized: {scale: [0.08, 1.0], ratio: [0.75, 1.3333]}}, size: [224, 224]}
  - flip: {horizontal: 0.5}
  - normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], dtype: float16, layout: chw}
batch: {size: 60, last: partial}
epochs: 2
"""


class Photographs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = BUILD / "tests" / f"photographs-{COUNT}"
        subprocess.run(
            ["/usr/bin/python3", SOURCE / "bench" / "make_photographs.py",
             "--count", str(COUNT), "--out", cls.folder], check=True)

    def bench(self, ranks, workers, seed=42, folder=None, extra=""):
        spec = BUILD / "tests" / f"photographs-{seed}.yaml"
        spec.write_text(SPEC % (folder or self.folder, seed) + extra)
        run = subprocess.run(
            [BUILD / "client" / "command" / "penstock", "bench", "--dataset",
             spec, "--ranks", str(ranks), "--workers", str(workers),
             "--verify", "--json"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        if not extra:
            self.assertEqual(run.stderr, "", "a progress bar in a pipe")
        return json.loads(run.stdout)

    def test_every_sample_exactly_once_whoever_makes_and_takes_it(self):
        results = {}
        for ranks, workers in [(1, 1), (1, 2), (2, 2), (4, 1), (4, 2)]:
            with self.subTest(ranks=ranks, workers=workers):
                result = self.bench(ranks, workers)
                results[ranks, workers] = result
                self.assertEqual(result["verified"], 2 * COUNT)
                for wrong in ("missing", "duplicated", "misplaced", "corrupt"):
                    self.assertEqual(result[wrong], 0)
                self.assertEqual(result["samples"], 2 * COUNT)
                self.assertEqual(result["epochs"], 2)
                # The same number of steps on every rank: ceil(COUNT / 60).
                self.assertEqual(result["steps_per_rank"],
                                 [2 * -(-COUNT // 60)] * ranks)
                self.assertEqual(len(result["rank_wait_s"]), ranks)
                self.assertGreater(result["samples_per_s"], 0)
                self.assertGreater(result["cpu_s_per_1k_samples"], 0)
                self.assertGreater(result["pss_bytes"], 0)
        orders = {tuple(r["order_digest_per_epoch"]) for r in results.values()}
        self.assertEqual(len(orders), 1, "the order depends on ranks or workers")
        first, second = orders.pop()
        self.assertNotEqual(first, second, "both epochs have the same order")

    def test_a_damaged_file_harms_no_row_but_its_own(self):
        # Each worker decodes in another order, and the replay in a third.
        folder = BUILD / "tests" / "mutants-250"
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([BUILD / "tests" / "fuzz" / "mutants", "--count", "250",
                        "--write", folder], check=True)
        for on_error in ("skip", "substitute"):
            digests = set()
            for workers in (1, 2):
                with self.subTest(on_error=on_error, workers=workers):
                    result = self.bench(2, workers, folder=folder,
                                        extra=f"on_error: {on_error}\n")
                    for wrong in ("missing", "duplicated", "misplaced",
                                  "corrupt"):
                        self.assertEqual(result[wrong], 0)
                    self.assertGreater(result["verified"], 125)
                    digests.add(tuple(result["order_digest_per_epoch"]))
            self.assertEqual(len(digests), 1, "which rows there are depends on "
                                              "the workers")

    def test_another_seed_is_another_order(self):
        orders = {tuple(self.bench(1, 2, seed)["order_digest_per_epoch"])
                  for seed in (42, 43)}
        self.assertEqual(len(orders), 2)


if __name__ == "__main__":
    unittest.main()
