#!/usr/bin/env python3
"""Promise: `penstock trace` writes what workers and ranks did for these seconds, in
Chrome's format and with the time of day; `penstock view` serves one page to who knows
its address, and nothing to another host's or site's page. Method: a broker with a job
of two ranks; both commands as a person uses them.

  view_trace_test.py BUILD_DIR
"""

import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest
import urllib.parse
import urllib.request

from running_broker import BrokerTest

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()


class ViewAndTrace(BrokerTest):
    BUILD = BUILD

    def test_trace(self):
        file = self.broker.folder / "trace.json"
        begin = time.time()
        done = self.broker.ask("trace", "train", "--seconds", "1", "--out", file)
        end = time.time()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        events = json.loads(file.read_text())["traceEvents"]
        names = {(each["pid"], each["tid"]): each["args"]["name"] for each in events
                 if each["name"] == "thread_name"}
        tracks = {}
        for each in events:
            if each["ph"] != "X":
                continue
            self.assertGreaterEqual(each["ts"], begin * 1e6)
            self.assertLessEqual(each["ts"] + each["dur"], end * 1e6 + 1000)
            track = names[(each["pid"], each["tid"])]
            tracks.setdefault(track, []).append(each)
        self.assertLessEqual({"rank 0", "rank 1"}, set(tracks))
        self.assertTrue(any(name.startswith("worker ") for name in tracks))
        made = sum(each["args"]["rows"] for name, track in tracks.items()
                   if name.startswith("worker") for each in track
                   if each["name"] == "make rows")
        batches = [each for each in tracks["rank 0"] if each["name"] == "batch"]
        # 6 rows of each batch are the rank's; slots are made ahead.
        self.assertGreater(len(batches), 20)
        self.assertGreater(made, 6 * len(batches))
        # Activities of a rank follow each other, and fill nearly all of the second.
        ranks = sorted(tracks["rank 0"], key=lambda each: each["ts"])
        for one, two in zip(ranks, ranks[1:]):
            self.assertLessEqual(one["ts"] + one["dur"], two["ts"] + 1)
        self.assertGreater(sum(each["dur"] for each in ranks), 0.7e6)

    def test_a_trace_of_torch_gives_the_base(self):
        beside = self.broker.folder / "torch.json"
        base = time.time_ns() - 10 ** 9
        beside.write_text('{"schemaVersion": 1,\n "baseTimeNanoseconds": %d,\n' % base)
        file = self.broker.folder / "beside.json"
        done = self.broker.ask("trace", "train", "--seconds", "0.3", "--out", file,
                               "--beside", beside)
        self.assertEqual(done.returncode, 0, done.stderr)
        trace = json.loads(file.read_text())
        self.assertEqual(trace["otherData"],
                         {"clock": "CLOCK_REALTIME", "base_unix_ns": base})
        times = [each["ts"] for each in trace["traceEvents"] if each["ph"] == "X"]
        self.assertGreater(min(times), 0.9e6)
        self.assertLess(max(times), 60e6)

    def test_traces_that_cannot_be(self):
        for options, told in ((("nothing",), "no job 'nothing'"),
                              (("train", "--out", "/dev/null"), "not a regular file"),
                              (("train", "--beside", "/none"), "/none")):
            with self.subTest(options):
                wrong = self.broker.ask("trace", *options)
                self.assertEqual(wrong.returncode, 1)
                self.assertIn(told, wrong.stderr)
        def record():
            return subprocess.Popen(
                [self.broker.penstock, "trace", "train", "--seconds", "30", "--out",
                 self.broker.folder / "long.json", "--socket", self.broker.socket],
                stderr=subprocess.PIPE, text=True)

        running = record()
        for _ in range(50):
            second = self.broker.ask("trace", "train", "--seconds", "0.1", "--out",
                                     self.broker.folder / "second.json")
            if second.returncode != 0:
                break
            if running.poll() is not None:  # it came while the second recorded
                running.stderr.close()
                running = record()
        self.assertIn("another trace is being recorded", second.stderr)
        # One that is given up makes room at once.
        running.send_signal(signal.SIGINT)
        self.assertEqual(running.wait(10), 130)
        running.stderr.close()
        self.assertFalse((self.broker.folder / "long.json").exists())
        third = self.broker.ask("trace", "train", "--seconds", "0.1", "--out",
                                self.broker.folder / "third.json")
        self.assertEqual(third.returncode, 0, third.stderr)

    def test_view(self):
        served = subprocess.Popen(
            [self.broker.penstock, "view", "--socket", self.broker.socket],
            stdout=subprocess.PIPE, text=True)
        self.addCleanup(served.stdout.close)
        try:
            found = re.fullmatch(r"http://(127\.0\.0\.1:(\d+))(/[0-9a-f]{32}/)\n",
                                 served.stdout.readline())
            host, port, base = found.groups()

            def get(target, **headers):
                connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
                connection.request("GET", target, headers=headers)
                answer = connection.getresponse()
                text = answer.read().decode()
                connection.close()
                return answer, text

            answer, page = get(base)
            self.assertEqual(answer.status, 200)
            self.assertIn("default-src 'none'", answer.headers["Content-Security-Policy"])
            self.assertEqual(answer.headers["Referrer-Policy"], "no-referrer")
            # One file: nothing of it comes from elsewhere.
            self.assertEqual(re.findall(r"(?:src|href)=|url\(|@import|https?://(?!www\.w3\.org)",
                                        page), [])
            answer, text = get(base + "status")
            self.assertEqual(json.loads(text)["jobs"][0]["job"], "train")
            self.assertEqual(get(base + "status", Host=f"localhost:{port}")[0].status, 200)
            self.assertEqual(get(base + "status", Origin=f"http://{host}")[0].status, 200)
            for target in ("/", "/status", "/" + "0" * 32 + "/", base[:-1],
                           base + "../", base + "x"):
                self.assertEqual(get(target)[0].status, 404, target)
            for headers in ({"Host": f"evil.example:{port}"}, {"Host": "127.0.0.1"},
                            {"Host": ""}, {"Origin": "http://evil.example"},
                            {"Origin": "null"}):
                self.assertEqual(get(base + "status", **headers)[0].status, 403, headers)
        finally:
            served.send_signal(signal.SIGTERM)
            self.assertEqual(served.wait(10), 0)

    def test_the_last_batch(self):
        served = subprocess.Popen(
            [self.broker.penstock, "view", "--socket", self.broker.socket],
            stdout=subprocess.PIPE, text=True)
        self.addCleanup(served.stdout.close)
        try:
            base = served.stdout.readline().strip()

            def batch(key):
                with urllib.request.urlopen(
                        base + "batch?" + urllib.parse.quote(key, safe=""),
                        timeout=60) as answer:
                    return json.load(answer)

            job = json.loads(self.broker.ask("status", "--json").stdout)["jobs"][0]
            key = f"train / {job['dataset']} / {os.getuid()} / "
            made = batch(key)
            self.assertEqual(made.get("error"), None)
            first, last = map(int, re.fullmatch(r"rows (\d+) to (\d+) of epoch 0",
                                                made["text"]).groups())
            self.assertEqual(last - first, 11)  # a step of 12 rows
            self.assertEqual(first % 12, 0)
            self.assertGreaterEqual(first, 12 * (job["step"] - 1))
            self.assertEqual(made["picture"], "")  # no feature is a picture
            self.assertEqual(len(made["table"].splitlines()), 13)
            self.assertEqual(batch("no / such / 0 / "), {"error": "this job is over"})
        finally:
            served.send_signal(signal.SIGTERM)
            self.assertEqual(served.wait(10), 0)
        # The job goes on, and nothing of the other broker is left.
        self.assertEqual(json.loads(self.broker.ask("status", "--json").stdout)
                         ["jobs"][0]["state"], "running")

    def test_view_as_a_file(self):
        file = self.broker.folder / "report.html"
        done = self.broker.ask("view", "--out", file, "--seconds", "2")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        recorded = re.search(r"const RECORDED = (\[.*\]);\n", file.read_text())
        samples = json.loads(recorded[1])
        self.assertEqual(len(samples), 3)
        self.assertNotIn("<", recorded[1])
        self.assertEqual(samples[2]["status"]["jobs"][0]["job"], "train")
        batches = json.loads(re.search(r"const BATCHES = (\{.*\});\n", file.read_text())[1])
        batch, = batches.values()
        self.assertIn("sample", batch["table"])


if __name__ == "__main__":
    unittest.main()
