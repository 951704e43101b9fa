#!/usr/bin/env python3
"""Promise: in systemd's journal each message of penstockd is one entry with its fields,
which journalctl explains by the installed catalogue; a client that is refused without end
writes a few. Method: a real systemd-journald in its own mount namespace; penstockd with
the standard error that systemd gives a service; journalctl is the judge. Exit status 77: it cannot run
here.

Usage: journald_test.py BUILD
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unittest

SKIP = 77
BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
JOURNALD = "/usr/lib/systemd/systemd-journald"
FLOOD = 500


def in_own_namespace():
    if os.environ.get("PENSTOCK_OWN_RUN") == "1":
        return
    mounts = 'mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journal /run/log/journal'
    if (not os.access(JOURNALD, os.X_OK) or os.geteuid() != 0 or
            subprocess.run(["unshare", "--mount", "sh", "-c", mounts], capture_output=True,
                           check=False).returncode != 0):
        print("skipped: no systemd-journald may run here")
        sys.exit(SKIP)
    os.execvp("unshare", ["unshare", "--mount", "env", "PENSTOCK_OWN_RUN=1", "sh", "-c",
                          mounts + ' && exec "$@"', "sh", sys.executable, __file__, BUILD,
                          *sys.argv[1:]])


def output(*words):
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def entries(*matches):
    output("journalctl", "--sync")
    # Not of another journal of this machine: only /run/log is this namespace's.
    shown = output("journalctl", "-D", "/run/log/journal", "-o", "json", "-t", "penstockd",
                   *matches)
    return [json.loads(line) for line in shown.splitlines()]


class Journal(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="penstock-journal-")
        cls.socket = pathlib.Path(cls.folder.name) / "penstock.sock"
        cls.processes = [subprocess.Popen([JOURNALD], stderr=subprocess.DEVNULL)]
        while not os.path.exists("/run/systemd/journal/socket"):
            assert cls.processes[0].poll() is None, "systemd-journald ended"
            time.sleep(0.02)
        # Standard error as systemd makes it.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.connect("/run/systemd/journal/stdout")
            stream.sendall(b"penstockd\n\n6\n1\n0\n0\n0\n")
            found = os.fstat(stream.fileno())
            cls.processes.append(subprocess.Popen(
                [BUILD / "broker/penstockd", "--socket", cls.socket], stderr=stream,
                env={**os.environ, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}))
        while not cls.socket.exists():
            assert cls.processes[1].poll() is None, "penstockd ended"
            time.sleep(0.02)

    @classmethod
    def tearDownClass(cls):
        for process in reversed(cls.processes):
            process.terminate()
            process.wait()
        cls.folder.cleanup()

    def test_entries_have_fields(self):
        serving, = entries("PENSTOCK_MESSAGE=serving")
        self.assertEqual(serving["PENSTOCK_SOCKET"], str(self.socket))
        self.assertEqual(serving["PRIORITY"], "6")
        self.assertEqual(serving["_TRANSPORT"], "journal")
        self.assertEqual(serving["_PID"], str(self.processes[1].pid))
        self.assertTrue(serving["MESSAGE"].startswith("penstockd "))
        warning, = entries("PENSTOCK_MESSAGE=no-state-directory")
        self.assertEqual(warning["PRIORITY"], "4")

    def test_refusals_without_end_are_few_entries(self):
        uid = str(os.getuid())
        for i in range(FLOOD):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.connect(str(self.socket))
                if i % 2 == 0:
                    client.send(b'no JSON at all')
                else:
                    client.send(json.dumps(
                        {"penstock": 1, "op": "state", "job": f"job {i}"}).encode())
                client.recv(65536)
        found = {}
        for entry in entries(f"PENSTOCK_UID={uid}"):
            found.setdefault(entry["PENSTOCK_MESSAGE"], []).append(entry)
        self.assertEqual(len(found["broken-request"]), 20)
        self.assertLessEqual(sum(map(len, found.values())), 60)
        # The rest is counted, at the latest at the end.
        daemon = self.processes.pop()
        daemon.terminate()
        daemon.wait()
        more = entries("PENSTOCK_MESSAGE=more-like-this")
        self.assertEqual(more[0]["PENSTOCK_CAUSE"], "user " + uid)
        self.assertIn("broken-request", [entry["PENSTOCK_KIND"] for entry in more])
        counted = sum(int(entry["PENSTOCK_COUNT"]) for entry in more)
        self.assertGreaterEqual(counted + 40, FLOOD)

    def test_the_catalogue_explains(self):
        root = pathlib.Path(self.folder.name) / "root"
        catalogue = root / "usr/lib/systemd/catalog"
        catalogue.mkdir(parents=True)
        (root / "var/lib/systemd/catalog").mkdir(parents=True)
        text = (BUILD / "systemd/man/penstock.catalog").read_text(encoding="utf-8")
        (catalogue / "penstock.catalog").write_text(text, encoding="utf-8")
        output("journalctl", "--update-catalog", f"--root={root}")
        listed = output("journalctl", "--list-catalog", f"--root={root}")
        ids = [line.split()[1] for line in text.splitlines() if line.startswith("-- ")]
        self.assertGreater(len(ids), 50)
        self.assertEqual(len(listed.splitlines()), len(ids))
        # In place of the machine's own, in this namespace only.
        output("mount", "--bind", root / "var/lib/systemd/catalog",
               "/var/lib/systemd/catalog")
        shown = output("journalctl", "-D", "/run/log/journal", "-x", "-t", "penstockd",
                       "PENSTOCK_MESSAGE=no-state-directory")
        self.assertIn("Subject: Penstock: no-state-directory", shown)
        self.assertIn("Set state_dir in the configuration.", shown)
        self.assertIn("man:penstockd(8)", shown)


if __name__ == "__main__":
    in_own_namespace()
    unittest.main()
