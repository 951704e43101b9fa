#!/usr/bin/env python3
"""Promise: the judge of a launcher's attempts (JudgeAttempts) passes what is right, and
names what is lost, twice, torn, out of order or another rank's. Method: made-up logs of ten
rows in three steps: two ranks, then one from step 1 on; each is damaged in one place.

  judge_test.py CRASH_STORM
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

STORM = pathlib.Path(sys.argv.pop(1)).resolve()
STEPS = [[3, 1, 4, 0], [5, 9, 2, 6], [8, 7]]


def log(steps, ended=False):
    """steps: (step, rows, was it marked)."""
    lines, now = ["A 1 "], 10
    for number, (step, rows, marked) in enumerate(steps):
        lines += [f"T {now} {number} 0 {step} {marked} 0 {' '.join(map(str, rows))}",
                  f"r {now + 1} {number}", f"R {now + 2} {number}"]
        now += 10
    return "\n".join(lines + ["E 1000 0"] * ended) + "\n"


class Judge(unittest.TestCase):
    def verdict(self, change=lambda logs: None):
        logs = {"rank-0-restart-0": [(0, [3, 1], 0), (1, [5, 9], 0)],
                "rank-1-restart-0": [(0, [4, 0], 0)],
                "rank-0-restart-1": [(1, STEPS[1], 0), (2, STEPS[2], 0)]}
        change(logs)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "attempts").write_text("0 0 2\n0 1 1\n")
            (folder / "alone").mkdir()
            (folder / "alone" / "rank-0-restart-0").write_text(
                log([(i, rows, 0) for i, rows in enumerate(STEPS)], True))
            for name, steps in logs.items():
                (folder / name).write_text(log(steps, name.endswith("1")))
            done = subprocess.run(
                [STORM, "judge", "--delivery", "split", "--records", "10", "--batch", "4",
                 "--epochs", "1", "--folder", folder], stdout=subprocess.PIPE, check=False)
        verdict = json.loads(done.stdout)
        self.assertEqual(done.returncode, 1 if verdict["findings"] else 0)
        return " ".join(verdict["findings"])

    def test_what_is_right_passes(self):
        self.assertEqual(self.verdict(), "")

    def test_a_step_that_nobody_took_is_lost(self):
        def change(logs):
            logs["rank-1-restart-0"] = []
        self.assertIn("lost: epoch 0 sample 4", self.verdict(change))

    def test_what_comes_again_unmarked_is_found(self):
        def change(logs):
            logs["rank-0-restart-1"].insert(1, (1, STEPS[1], 0))
        self.assertIn("unmarked twice: sample 5", self.verdict(change))

    def test_steps_out_of_order_are_found(self):
        def change(logs):
            logs["rank-0-restart-1"] = [(2, STEPS[2], 0), (1, STEPS[1], 0)]
        self.assertIn("came where step 1 of the job was next", self.verdict(change))

    def test_rows_out_of_order_are_found(self):
        def change(logs):
            logs["rank-0-restart-1"][1] = (2, [7, 8], 0)
        self.assertIn("has other rows", self.verdict(change))

    def test_an_attempt_that_begins_elsewhere_is_found(self):
        def change(logs):
            logs["rank-0-restart-1"] = [(2, STEPS[2], 0)]
        self.assertIn("came where step 1 of the job was next", self.verdict(change))

    def test_rows_of_another_rank_are_found(self):
        def change(logs):
            logs["rank-1-restart-0"], logs["rank-0-restart-0"] = (
                logs["rank-0-restart-0"], logs["rank-1-restart-0"])
        self.assertIn("has other rows", self.verdict(change))


if __name__ == "__main__":
    unittest.main()
