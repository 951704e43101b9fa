#!/usr/bin/env python3
"""Promise: Debian's Prometheus scrapes `penstock metrics`, its promtool finds nothing
to object to, each expression of the dashboard gives a value where there is one to
give, and the daemon listens to no network. Method: a broker with a job of two ranks,
and a real Prometheus for some seconds. Exit status 77: there is none.

  metrics_scrape_test.py BUILD_DIR
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import unittest
import urllib.parse
import urllib.request

from running_broker import BrokerTest

SKIP = 77
BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
# Metrics of the dashboard of which this job has no series, or none yet: it has no limit and
# no object store.
NO_SERIES = ("penstock_memory_limit_bytes", "penstock_job_cache_hits_total", "penstock_store_",
             "penstock_job_remote_", "penstock_job_ahead_seconds")


class Scrape(BrokerTest):
    BUILD = BUILD

    def promtool(self, text):
        return subprocess.run(["promtool", "check", "metrics"], input=text,
                              capture_output=True, text=True, check=False)

    def test_promtool_has_nothing_to_object_to(self):
        # Its ranks attach in their own time, of which the broker tells no event.
        deadline = time.monotonic() + 60
        while True:
            shown = self.broker.ask("metrics")
            self.assertEqual((shown.returncode, shown.stderr), (0, ""))
            if shown.stdout.count("penstock_rank_batches_taken_total{") == 2:
                break
            self.assertLess(time.monotonic(), deadline, shown.stdout)
            time.sleep(0.1)
        checked = self.promtool(shown.stdout)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr),
                         (0, ""))
        self.assertIn('job_name="train"', shown.stdout)
        taken = re.findall(r"penstock_rank_batches_taken_total\{.*rank=\"(\d)\"\} (\d+)",
                           shown.stdout)
        self.assertEqual(sorted(rank for rank, _ in taken), ["0", "1"])

    def test_the_textfile_is_replaced_whole(self):
        file = self.broker.folder / "penstock.prom"
        for _ in range(2):
            done = self.broker.ask("metrics", "--textfile", file)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertIn("penstock_up 1\n", file.read_text())
        self.assertEqual(self.promtool(file.read_text()).returncode, 0)
        self.assertTrue(stat.S_IMODE(file.stat().st_mode) & stat.S_IROTH)
        self.assertEqual(list(self.broker.folder.glob("*.part")), [])
        # Without a broker the old values go, and the caller sees it.
        dead = subprocess.run(
            [self.broker.penstock, "metrics", "--textfile", file, "--socket",
             self.broker.folder / "none"], capture_output=True, text=True, check=False)
        self.assertEqual(dead.returncode, 1)
        self.assertIn("penstock_up 0\n", file.read_text())
        self.assertNotIn("penstock_job", file.read_text())
        # A folder that is missing, one that is full.
        for bad in (self.broker.folder / "none/a.prom", "/dev/full", self.broker.folder):
            with self.subTest(bad):
                wrong = self.broker.ask("metrics", "--textfile", bad)
                self.assertEqual(wrong.returncode, 1)
                self.assertIn(str(bad), wrong.stderr)

    def test_prometheus_scrapes_it(self):
        served = subprocess.Popen(
            [self.broker.penstock, "metrics", "--listen", "127.0.0.1:0", "--socket",
             self.broker.socket], stderr=subprocess.PIPE, text=True)
        self.addCleanup(served.stderr.close)
        url = re.search(r"http://(\S+)/metrics", served.stderr.readline())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        config = self.broker.folder / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n"
            "- {job_name: penstock, static_configs: [{targets: ['%s']}]}\n"
            % url[1])
        log = open(self.broker.folder / "prometheus.log", "w", encoding="utf-8")
        prometheus = subprocess.Popen(
            ["prometheus", f"--config.file={config}",
             f"--storage.tsdb.path={self.broker.folder / 'tsdb'}",
             f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)

        def query(text):
            address = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode(
                {"query": text})
            with urllib.request.urlopen(address, timeout=10) as answer:
                return json.load(answer)["data"]["result"]

        try:
            scraped = 0
            give_up = time.monotonic() + 60
            while scraped < 4 and time.monotonic() < give_up:
                time.sleep(0.3)
                try:
                    found = query("count_over_time(penstock_up[1m])")
                except OSError:
                    continue  # it starts
                scraped = int(found[0]["value"][1]) if found else 0
            self.assertGreaterEqual(scraped, 4, (self.broker.folder /
                                                 "prometheus.log").read_text())
            self.assertEqual(query("up")[0]["value"][1], "1")
            self.assertEqual(query("penstock_up")[0]["value"][1], "1")
            self.assertGreater(float(query(
                'sum(rate(penstock_job_rows_total{job_name="train"}[10s]))'
            )[0]["value"][1]), 100)
            dashboard = json.loads(self.broker.ask("metrics", "--dashboard").stdout)
            for panel in dashboard["panels"]:
                for target in panel["targets"]:
                    text = target["expr"]
                    for name, value in (("$__rate_interval", "10s"),
                                        ("$instance", ".*"), ("$jobs", ".*")):
                        text = text.replace(name, value)
                    with self.subTest(text):
                        found = query(text)
                        if not any(name in text for name in NO_SERIES):
                            self.assertGreater(len(found), 0)
            # The daemon itself has no socket but its own.
            self.assertEqual(self.network_sockets(self.broker.daemon.pid), [])
            # A broker that is gone is seen, and its return too.
            self.broker.daemon.kill()
            self.broker.daemon.wait()
            with urllib.request.urlopen(f"http://{url[1]}/metrics", timeout=20) as page:
                self.assertIn("penstock_up 0\n", page.read().decode())
            self.broker.start()
            for _ in range(100):
                with urllib.request.urlopen(f"http://{url[1]}/metrics", timeout=20) as page:
                    text = page.read().decode()
                    self.assertEqual(page.headers["Content-Type"],
                                     "text/plain; version=0.0.4; charset=utf-8")
                if "penstock_up 1\n" in text:
                    break
                time.sleep(0.1)
            self.assertIn("penstock_up 1\n", text)
        finally:
            prometheus.kill()
            prometheus.wait()
            log.close()
            served.send_signal(signal.SIGTERM)
            self.assertEqual(served.wait(10), 0)

    def network_sockets(self, pid):
        inodes = set()
        for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(fd)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
        found = []
        for name in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
            for line in pathlib.Path(f"/proc/{pid}/net/{name}").read_text(
                    ).splitlines()[1:]:
                if line.split()[9] in inodes:
                    found.append(line)
        return found


if __name__ == "__main__":
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        print("skipped: Debian's package prometheus is not installed")
        sys.exit(SKIP)
    unittest.main()
