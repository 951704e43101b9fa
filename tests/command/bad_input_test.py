#!/usr/bin/env python3
"""Promise: bad input gets a message that names the thing and how to fix it, an exit
status other than 0, and leaves no process and no memory behind. Method: the command
line, as a person uses it.

  bad_input_test.py BUILD_DIR
"""

import gzip
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
PENSTOCK = BUILD / "client" / "command" / "penstock"

IMAGES = """
dataset: pictures
source: {image_folder: {path: pictures}}
map: [{decode_image: {size: [32, 32]}}]
batch: {size: 4}
"""


class BadInput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.good = BUILD / "tests" / "few-photographs"
        subprocess.run(
            ["/usr/bin/python3", SOURCE / "bench" / "make_photographs.py",
             "--count", "20", "--out", cls.good], check=True)

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="penstock-bad-"))
        self.addCleanup(shutil.rmtree, self.folder)
        # Everything this test starts carries the mark in its environment.
        self.mark = f"bad-input-{os.getpid()}-{self.id()}"
        self.env = dict(os.environ, PENSTOCK_TEST_MARK=self.mark,
                        XDG_RUNTIME_DIR=str(self.folder),
                        PENSTOCK_CACHE_DIR=str(self.folder / "cache"))

    def tearDown(self):
        self.assertEqual(self.left_behind(), [])
        self.assertEqual(list(self.folder.glob("penstock-*")), [])

    def left_behind(self):
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (path / "environ").read_bytes():
                    found.append((path / "cmdline").read_bytes())
            except OSError:
                pass  # ended meanwhile
        return [line for line in found if line]

    def penstock(self, *arguments):
        return subprocess.run([PENSTOCK, *arguments], env=self.env,
                              capture_output=True, text=True, timeout=60,
                              cwd=self.folder)

    def spec(self, text, name="spec.yaml"):
        (self.folder / name).write_text(text)
        return name

    def refused(self, text, *words):
        run = self.penstock("check", self.spec(text))
        self.assertNotEqual(run.returncode, 0, run.stdout)
        for word in words:
            self.assertIn(word, run.stderr)
        self.assertEqual(run.stderr.count("\n"), 1, run.stderr)

    def pictures(self):
        shutil.copytree(self.good, self.folder / "pictures")
        return sorted((self.folder / "pictures").rglob("*.jpg"))

    def bench(self, text, *more):
        return self.penstock("bench", "--dataset", self.spec(text), "--ranks",
                             "2", "--verify", "--json", *more)

    def test_a_state_file_that_is_none_is_named_before_anything_starts(self):
        spec = self.spec("dataset: d\nsource: {range: 8}\nbatch: {size: 4}\n")
        (self.folder / "folder").mkdir()
        os.mkfifo(self.folder / "fifo")
        files = {"empty.json": "", "blank.json": " \n", "half.json": "{",
                 "newer.json": '{"penstock_state": 9}',
                 "other.json": '{"penstock_state": 1, "dataset": 3}',
                 "unnamed.json": '{"penstock_state": 1, "dataset": ""}',
                 "position.json": '{"epoch": 0, "row": 2}',
                 "large.json": " " * (2 << 20)}
        for name, text in files.items():
            (self.folder / name).write_text(text)
        for name, found in (("empty.json", "is empty: its checkpoint is incomplete"),
                            ("blank.json", "is empty: its checkpoint is incomplete"),
                            ("half.json", "not a Penstock state: not JSON: line 1, column 2: "
                             "unexpected end of input"),
                            ("newer.json", "a state of version 9"),
                            ("other.json", "'dataset' is 3: wanted a string"),
                            ("unnamed.json", "'dataset' is \"\": wanted a string that is"),
                            ("position.json", "has a position alone and names no dataset"),
                            ("large.json", "is larger than 1024 KiB, the limit"),
                            ("folder", "is a folder, not a text file"),
                            ("fifo", "is not a regular file"),
                            ("none.json", "No such file"),
                            ("", "No such file")):
            with self.subTest(name):
                run = self.penstock("run", "--dataset", spec, "--state", name,
                                    "--ranks", "1", "--", "echo", "started")
                self.assertEqual(run.returncode, 1, run.stderr)
                self.assertEqual(run.stdout, "")
                self.assertIn(f"state file '{name}'", run.stderr)
                self.assertIn(found, run.stderr)
                self.assertIn("wanted a state that `penstock state --save` or a "
                              "trainer wrote; the job begins anew without --state",
                              run.stderr)
                self.assertEqual(run.stderr.count("\n"), 1, run.stderr)

    def test_state_of_no_dataset_of_the_run_is_refused(self):
        spec = self.spec("dataset: x\nsource: {range: 4}\nbatch: {size: 2}\n")
        (self.folder / "other.json").write_text(
            '{"penstock_state": 1, "dataset": "y", "delivery": "split", "records": 4, '
            '"seed": 0, "shuffle": null, "epoch": 0, "row": 2, "owed": []}')
        run = self.penstock("run", "--dataset", spec, "--state", "other.json",
                            "--ranks", "1", "--", "echo", "started")
        self.assertEqual((run.returncode, run.stdout), (1, ""), run.stderr)
        self.assertIn("state 'other.json' is of dataset 'y'; --dataset names x", run.stderr)

    def test_unknown_key_names_line_column_and_the_key_meant(self):
        self.refused("dataset: x\nsource: {range: 4}\nbatch: {size: 2}\n"
                     "shufle: {seed: 1}\n", "spec.yaml:4:1", "shuffle")

    def test_wrong_type_names_line_and_column(self):
        self.refused("dataset: x\nsource: {range: 4}\nbatch: {size: two}\n",
                     "spec.yaml:3:15", "two")

    def test_missing_folder(self):
        self.refused(IMAGES, str(self.folder / "pictures"))

    def test_empty_folder(self):
        (self.folder / "pictures").mkdir()
        self.refused(IMAGES, str(self.folder / "pictures"), "class")

    def test_pictures_without_class_folders(self):
        (self.folder / "pictures").mkdir()
        for path in sorted(self.good.rglob("*.jpg"))[:3]:
            shutil.copy(path, self.folder / "pictures")
        self.refused(IMAGES, "one folder per class")

    @unittest.skipIf(os.geteuid() != 0, "needs root to become another user")
    def test_home_the_broker_cannot_read_names_penstock_run(self):
        locked = self.folder / "home"
        self.pictures()
        locked.mkdir()
        shutil.move(self.folder / "pictures", locked / "pictures")
        os.chmod(locked, 0o700)
        os.chmod(self.folder, 0o755)
        self.spec(IMAGES.replace("path: pictures", f"path: {locked}/pictures"))
        runtime = self.folder / "run"
        runtime.mkdir()
        os.chown(runtime, 65534, 65534)
        self.env["XDG_RUNTIME_DIR"] = str(runtime)
        self.env["PENSTOCK_CACHE_DIR"] = str(runtime / "cache")
        # The build may lie where user 65534 cannot go: copy the two programs.
        for program in (PENSTOCK, BUILD / "broker" / "penstockd"):
            shutil.copy(program, runtime)
        for library in (BUILD / "client").glob("libpenstock.so*"):
            shutil.copy(library, runtime, follow_symlinks=True)
        self.env["LD_LIBRARY_PATH"] = str(runtime)
        run = subprocess.run([runtime / "penstock", "check",
                              self.folder / "spec.yaml"], env=self.env,
                             capture_output=True, text=True, timeout=60,
                             user=65534, group=65534, extra_groups=[])
        self.assertNotEqual(run.returncode, 0)
        self.assertIn(str(locked), run.stderr)
        self.assertIn("penstock run", run.stderr)

    def test_truncated_picture_fails_by_name(self):
        bad = self.pictures()[7]
        bad.write_bytes(bad.read_bytes()[:5000])
        run = self.bench(IMAGES)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn(str(bad), run.stderr)
        self.assertIn("on_error", run.stderr)

    def test_file_that_is_no_picture_is_skipped_counted_and_named(self):
        bad = self.pictures()[3]
        bad.write_bytes(b"GIF89a is not decoded")
        run = self.bench(IMAGES + "on_error: skip\n")
        self.assertEqual(run.returncode, 0, run.stderr)
        result = json.loads(run.stdout)
        self.assertIn(str(bad), run.stderr)
        self.assertIn("not a JPEG, PNG, WebP, TIFF, BMP, PGM or PPM: begins with GIF's signature", run.stderr)
        self.assertEqual(result["samples"], 19)
        self.assertEqual(result["verified"], 19)
        self.assertEqual(result["steps_per_rank"], [5, 5])

    def test_bad_picture_is_substituted_and_the_shape_stays(self):
        bad = self.pictures()[3]
        bad.write_bytes(b"")
        run = self.bench(IMAGES + "on_error: substitute\n")
        self.assertEqual(run.returncode, 0, run.stderr)
        result = json.loads(run.stdout)
        self.assertEqual(result["verified"], 20)

    def test_skipping_every_sample_is_a_failure(self):
        for path in self.pictures():
            path.write_bytes(b"")
        run = self.penstock("bench", "--dataset",
                            self.spec(IMAGES + "on_error: skip\n"),
                            "--ranks", "2", "--json")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("samples were skipped", run.stderr)

    def test_gzip_that_unpacks_to_more_than_the_limit_is_refused(self):
        rows = 100_000
        with gzip.open(self.folder / "images.gz", "wb") as out:
            out.write(bytes([0, 0, 8, 2]) + rows.to_bytes(4, "big") +
                      (1024).to_bytes(4, "big") + bytes(rows * 1024))
        run = self.bench("dataset: x\nsource: {idx: {images: images.gz}}\n"
                         "batch: {size: 1}\n", "--memory-limit", "64M")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("images.gz", run.stderr)
        self.assertIn("memory_limit", run.stderr)

    def test_socket_of_another_program_is_left_alone(self):
        path = self.folder / "other.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.bind(str(path))
            other.listen()
            inode = path.stat().st_ino
            run = subprocess.run([BUILD / "broker" / "penstockd", "--socket",
                                  path], env=self.env, capture_output=True,
                                 text=True, timeout=60)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(str(path), run.stderr)
            self.assertEqual(path.stat().st_ino, inode)

    def penstockd(self, *arguments):
        return subprocess.run([BUILD / "broker" / "penstockd", *arguments],
                              env=self.env, capture_output=True, text=True,
                              timeout=60, cwd=self.folder)

    def started(self, *arguments, **options):
        """A penstockd that is ready."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.settimeout(60)
            ready.bind(str(self.folder / "ready"))
            broker = subprocess.Popen(
                [BUILD / "broker" / "penstockd", *arguments],
                env=dict(self.env, NOTIFY_SOCKET=str(self.folder / "ready")),
                cwd=self.folder, **options)
            self.addCleanup(broker.wait)
            self.addCleanup(broker.kill)
            while b"READY=1" not in ready.recv(4096):
                pass
        return broker

    def listening(self, *arguments):
        """A penstockd that is ready, and the path of its socket."""
        path = self.folder / "penstock.sock"
        broker = self.started("--socket", path, *arguments,
                              stderr=subprocess.PIPE, text=True)
        self.addCleanup(broker.stderr.close)
        return broker, path

    def test_what_is_no_socket_is_not_replaced_by_one(self):
        path = self.folder / "precious"
        path.write_text("precious")
        os.mkfifo(self.folder / "fifo")
        os.symlink("/nowhere", self.folder / "link")
        for name in ("precious", "fifo", "link"):
            run = self.penstockd("--socket", name)
            self.assertEqual(run.returncode, 1, run.stderr)
            self.assertIn(f"'{name}' exists and is not a socket", run.stderr)
            self.assertTrue(os.path.lexists(self.folder / name))
        self.assertEqual(path.read_text(), "precious")

    def test_a_private_broker_without_an_owner_takes_only_its_socket_away(self):
        kept = self.folder / "kept"
        (kept / "state").mkdir(parents=True)
        (kept / "state" / "thesis.tex").write_text("x")
        broker = self.started("--private", "--socket", kept / "s",
                              "--state-dir", kept / "state")
        broker.terminate()
        self.assertEqual(broker.wait(30), 0)
        # The folder is the caller's; the next broker needs the state.
        self.assertEqual(sorted(path.name for path in kept.iterdir()), ["state"])
        self.assertTrue((kept / "state" / "thesis.tex").exists())
        self.assertTrue((kept / "state" / "journal").exists())

    def test_a_socket_goes_with_its_broker_and_is_not_left_by_a_failed_start(self):
        broker, path = self.listening()
        broker.terminate()
        self.assertEqual(broker.wait(30), 0)
        self.assertFalse(path.exists())
        (self.folder / "file").write_text("")
        run = self.penstockd("--socket", path, "--state-dir", "file")
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertFalse(path.exists())

    def test_a_name_forges_no_line_of_the_log(self):
        forged = self.pictures()[3]
        forged.rename(forged.with_name("a\npenstockd: all is well\x1b[2J.jpg"))
        next(forged.parent.glob("a*well*")).write_bytes(b"x" * 100)
        run = self.bench(IMAGES + "on_error: skip\n")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("all is well", run.stderr)
        self.assertNotIn("\npenstockd: all is well", run.stderr)
        self.assertNotIn("\x1b", run.stderr)

    def test_check_refuses_what_the_start_would(self):
        (self.folder / "file").write_text("")
        (self.folder / "functions").mkdir(mode=0o755)
        config = self.folder / "penstockd.yaml"
        for text, message in (
                ("state_dir: missing\n", "state directory missing"),
                ("state_dir: file\n", "name a directory"),
                ("state_dir: functions\ncache_dir: file\n",
                 "penstockd.yaml:2:1: cache_dir: '"),
                ("snapshot_path: file\n", "file' is not a folder"),
                ("socket: file\n",
                 "penstockd.yaml:1:1: socket: 'file' exists and is not a socket"),
                (f"socket: /{'s' * 120}\n", "is longer than 107 bytes"),
                ("data: [{path: /etc},\n  {path: /usr, groups: [nobody-has-it]}]\n",
                 "penstockd.yaml:2:3: data[1]: /usr: no group 'nobody-has-it'"),
                ("python_path: functions\npython: /nowhere/python3\n",
                 "penstockd.yaml:2:1: python: start '/nowhere/python3'"),
                ("python_path: functions\npython: /bin/false\n",
                 "penstockd.yaml:2:1: python: '/bin/false")):
            config.write_text(text)
            run = self.penstockd("--check", "--config", config)
            self.assertEqual(run.returncode, 1, text)
            self.assertIn(message, run.stderr)
        config.write_text("state_dir: functions\npython_path: functions\n")
        run = self.penstockd("--check", "--config", config)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout, f"{config}: valid on this machine\n")

    def test_a_refused_start_changes_nothing_of_the_broker_that_runs(self):
        # On a disk: on tmpfs there is no memory folder.
        state = pathlib.Path(tempfile.mkdtemp(dir=BUILD, prefix="state-"))
        self.addCleanup(shutil.rmtree, state)
        broker = self.started("--socket", "s", "--state-dir", state)
        memory = os.readlink(state / "memory")
        self.addCleanup(shutil.rmtree, memory, ignore_errors=True)
        # No broker takes this for its own, as none of another user would.
        os.chmod(memory, 0o755)
        run = self.penstockd("--socket", "t", "--state-dir", state)
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("is in use by another broker", run.stderr)
        self.assertEqual(os.readlink(state / "memory"), memory)
        broker.terminate()
        self.assertEqual(broker.wait(30), 0)

    def test_a_job_may_be_named_like_an_option(self):
        for words in (["stop", "--", "-job"], ["state", "--", "--now"],
                      ["evict", "--", "-job", "0"]):
            run = self.penstock(*words, "--socket", "nowhere")
            self.assertEqual(run.returncode, 2, run.stderr)
            run = self.penstock(words[0], "--socket", "nowhere", *words[1:])
            self.assertEqual(run.returncode, 1, run.stderr)
            self.assertIn("no broker at 'nowhere'", run.stderr)
        run = self.penstock("status", "--", "./trainer")
        self.assertEqual(run.returncode, 2)
        self.assertIn("takes no command after `--`; `penstock run` does", run.stderr)

    def test_a_number_out_of_range_is_told_its_range(self):
        for words, wanted in (
                (["top", "--count", "-1"], "--count: wanted 1 or more, found '-1'"),
                (["trace", "job", "--seconds", "100"],
                 "--seconds: wanted 0.1 to 60, found '100'"),
                (["run", "--ranks", "x", "--dataset", "d"],
                 "--ranks: wanted 0 to ")):
            run = self.penstock(*words)
            self.assertEqual(run.returncode, 2, run.stderr)
            self.assertIn(wanted, run.stderr)

    def test_a_reader_that_has_seen_enough_is_no_error_to_tell(self):
        out, end = os.pipe()
        os.close(out)
        run = subprocess.run([PENSTOCK, "recipe", "list"], stdout=end,
                             stderr=subprocess.PIPE, text=True, timeout=60)
        os.close(end)
        self.assertEqual((run.returncode, run.stderr), (128 + signal.SIGPIPE, ""))

    def test_wrong_options_of_the_daemon_are_status_2(self):
        for arguments in (["--workers", "0"], ["--workers", "abc"],
                          ["--workers", "4097"], ["--memory-limit", "10X"],
                          ["--nope"]):
            run = self.penstockd("--check", *arguments)
            self.assertEqual(run.returncode, 2, arguments)
            self.assertIn(arguments[0], run.stderr)
            self.assertTrue(run.stderr.startswith("penstockd: "), run.stderr)
            self.assertIn("see `penstockd --help`\n", run.stderr)

    def test_a_limit_of_file_size_is_named(self):
        run = subprocess.run(
            ["sh", "-c", f"ulimit -f 1; exec {BUILD}/broker/penstockd --socket s"],
            env=self.env, capture_output=True, text=True, timeout=60,
            cwd=self.folder)
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("raise the limit of file size", run.stderr)
        self.assertFalse((self.folder / "s").exists())

    def test_job_larger_than_the_memory_limit_is_refused_before_it_starts(self):
        run = self.bench("dataset: x\nsource: {synthetic: {records: 100000, "
                         "features: {x: {dtype: uint8, shape: [1000]}}}}\n"
                         "batch: {size: 50000}\n", "--memory-limit", "64M")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("memory_limit is 64.0 MiB", run.stderr)
        self.assertIn("make batch.size or prefetch or hold smaller", run.stderr)

    def test_socket_that_is_not_there(self):
        run = self.penstock("status", "--socket", str(self.folder / "none"))
        self.assertNotEqual(run.returncode, 0)
        self.assertIn(str(self.folder / "none"), run.stderr)
        for remedy in ("penstock run", "autostart=True", "systemctl start"):
            self.assertIn(remedy, run.stderr)

    def test_socket_that_is_a_file(self):
        (self.folder / "file").write_text("")
        run = self.penstock("status", "--socket", "file")
        self.assertEqual(run.returncode, 1)
        self.assertIn("'file' is not a socket: name the one", run.stderr)

    def test_status_names_the_socket_so_that_it_is_found_from_any_folder(self):
        broker = self.started("--socket", "relative", stderr=subprocess.DEVNULL)
        run = self.penstock("status", "--socket", "relative")
        broker.terminate()
        broker.wait(30)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn(f"socket   {self.folder}/relative\n", run.stdout)

    def test_workers_are_a_number_or_auto(self):
        run = self.penstock("workers", "x")
        self.assertEqual(run.returncode, 2)
        self.assertIn("'x' is not a number from 1 to 4096 or \"auto\"", run.stderr)

    def test_folder_of_a_socket_that_is_not_there(self):
        folder = self.folder / "none"
        for run in (self.penstock("status", "--socket", folder / "socket"),
                    self.penstockd("--socket", folder / "socket")):
            self.assertEqual(run.returncode, 1)
            self.assertIn(f"there is no folder '{folder}'", run.stderr)

    def test_rank_that_fails_is_named_and_ends_the_others(self):
        self.spec("dataset: x\nsource: {range: 4}\nbatch: {size: 2}\n")
        run = self.penstock(
            "run", "--dataset", "spec.yaml", "--ranks", "3", "--", "sh", "-c",
            'test "$PENSTOCK_RANK" = 1 && exit 7; exec sleep 600')
        self.assertEqual(run.returncode, 7)
        self.assertIn("rank 1", run.stderr)

    def test_interrupt_at_any_moment_leaves_nothing_behind(self):
        # Endless, so that only the signal ends it.
        self.spec("dataset: x\nsource: {synthetic: {records: 1000, cost_us: 50,"
                  " features: {x: {dtype: uint8, shape: [1000]}}}}\n"
                  "batch: {size: 10}\nepochs: forever\n")
        generator = random.Random(1)
        for _ in range(12):
            process = subprocess.Popen(
                [PENSTOCK, "bench", "--dataset", "spec.yaml", "--ranks", "2",
                 "--steps", "1000000000"], env=self.env, cwd=self.folder,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                process.wait(generator.random() * 0.4)
                self.fail("it ended by itself")
            except subprocess.TimeoutExpired:
                pass
            process.send_signal(signal.SIGINT)
            self.assertIn(process.wait(30), (130, -signal.SIGINT))
            self.assertEqual(self.left_behind(), [])


if __name__ == "__main__":
    unittest.main()
