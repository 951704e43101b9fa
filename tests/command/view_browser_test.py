#!/usr/bin/env python3
"""Promise: the page of `penstock view` shows jobs, ranks, times, memory and errors live
in a browser, light and dark, and every control is reached by keyboard. Method: a broker
with a job of two ranks; headless Chromium prints what the page has become. Exit status
77: there is no Chromium.

  view_browser_test.py BUILD_DIR [SCREENSHOT.png]
"""

import html.parser
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from running_broker import BrokerTest

SKIP = 77
BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
SCREENSHOT = sys.argv.pop(1) if len(sys.argv) > 1 else ""
CHROMIUM = shutil.which("chromium")


class Texts(html.parser.HTMLParser):
    """The text of each element that has an id, and the attributes of all."""

    def __init__(self, text):
        super().__init__()
        self.open, self.of, self.tags = [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        if tag not in ("meta", "input", "br", "link"):
            self.open.append((tag, attrs.get("id")))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for _, name in self.open:
            if name:
                self.of[name] = self.of.get(name, "") + data + " "


class Browser(BrokerTest):
    BUILD = BUILD

    def chromium(self, address, *options):
        done = subprocess.run(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu",
             "--hide-scrollbars", "--window-size=1100,1120",
             f"--user-data-dir={self.broker.folder / 'chromium'}", *options, address],
            capture_output=True, text=True, timeout=90, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def check(self, text):
        page = Texts(text)
        shown = page.of
        self.assertRegex(shown["broker"], r"penstockd \S+ \(pid \d+\), \d+ workers")
        self.assertIn("train", shown["job"])
        self.assertIn("running", shown["job-row"])
        self.assertRegex(shown["job-row"], r"[\d,]+/250,000")
        self.assertIn("bottleneck", shown["why"])
        self.assertEqual(shown["rank-rows"].count("attached"), 2)
        self.assertRegex(shown["rank-rows"], r"\d+\.\d ms")
        self.assertRegex(shown["stage-key"], r"make its rows: [\d.]+ of \d+ workers")
        self.assertRegex(shown["slots-key"], r"out: \d")
        self.assertRegex(shown["memory"], r"promised to all jobs +[\d.]+ KiB")
        self.assertEqual(shown["errors"].strip(), "none")
        self.assertIn("make-batch", [attrs.get("id") for tag, attrs in page.tags
                                     if tag == "button"])
        self.assertNotIn("trouble", {name for name in shown if shown[name].strip()})
        paths = [attrs["d"] for tag, attrs in page.tags if tag == "path"]
        self.assertEqual(len(paths), 3)  # one job, two ranks
        self.assertTrue(all(path.startswith("M") for path in paths), paths)
        # Only elements that the keyboard reaches by themselves can be operated.
        self.assertNotIn("onclick", text.split("<script>")[0])
        self.assertEqual([attrs for _, attrs in page.tags if "tabindex" in attrs], [])
        for label in ("rate", "wait", "stage", "slots"):
            self.assertTrue(any(attrs.get("id") == label and "aria-labelledby" in attrs
                                for _, attrs in page.tags), label)

    def test_live(self):
        served = subprocess.Popen(
            [self.broker.penstock, "view", "--socket", self.broker.socket],
            stdout=subprocess.PIPE, text=True)
        try:
            address = served.stdout.readline().strip()
            self.check(self.chromium(address, "--virtual-time-budget=6000", "--dump-dom"))
        finally:
            served.terminate()
            served.wait()
            served.stdout.close()

    def test_a_file(self):
        file = self.broker.folder / "report.html"
        done = self.broker.ask("view", "--out", file, "--seconds", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check(self.chromium(file.as_uri(), "--dump-dom"))
        sizes = set()
        for mode in ("1", "0"):
            picture = self.broker.folder / f"{mode}.png"
            self.chromium(file.as_uri(), f"--screenshot={picture}",
                          f"--blink-settings=preferredColorScheme={mode}")
            sizes.add(picture.read_bytes())
            if SCREENSHOT and mode == "1":
                shutil.copy(picture, SCREENSHOT)
        self.assertEqual(len(sizes), 2)  # light and dark differ


if __name__ == "__main__":
    if not CHROMIUM:
        print("skipped: Debian's package chromium is not installed")
        sys.exit(SKIP)
    unittest.main()
