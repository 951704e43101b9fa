#!/usr/bin/env python3
"""Promise: `penstock top` shows jobs, ranks, workers, disk, memory and its keys in 80
by 24, fits in any size, and leaves the terminal as it was at every end; in a pipe it
prints lines. Method: a broker with a job of two ranks; top in tmux, whose screen is
read. Exit status 77: there is no tmux.

  top_terminal_test.py BUILD_DIR
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

from running_broker import BrokerTest

SKIP = 77
BUILD = pathlib.Path(sys.argv.pop(1)).resolve()


class Terminal:
    """A shell in tmux."""

    def __init__(self, broker, columns=80, rows=24):
        self.broker = broker
        self.socket = broker.folder / f"tmux-{time.monotonic_ns()}"
        # A shell that waits at its prompt, with job control.
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y",
                  str(rows), "env PS1='ready> ' bash --norc --noprofile -i")
        self.tmux("set-option", "-g", "window-size", "manual")
        self.tmux("set-option", "-g", "status", "off")
        self.resize(columns, rows)
        self.wait("ready>$")

    def tmux(self, *arguments):
        done = subprocess.run(
            ["tmux", "-S", self.socket, *arguments], capture_output=True, text=True,
            check=False, timeout=30,
            env=dict(os.environ, PENSTOCK_SOCKET=str(self.broker.socket),
                     LC_ALL="C.UTF-8"))
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def resize(self, columns, rows):
        self.tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def type(self, *keys):
        self.tmux("send-keys", *keys)

    def screen(self):
        return self.tmux("capture-pane", "-p")

    def wait(self, pattern, seconds=30):
        give_up = time.monotonic() + seconds
        while not re.search(pattern, self.screen().rstrip()):
            if time.monotonic() > give_up:
                raise AssertionError(f"no {pattern!r} in:\n{self.screen()}")
            time.sleep(0.05)
        return self.screen()

    def top(self, *options):
        self.type(" ".join([str(self.broker.penstock), "top", "--interval", "0.2",
                            *options]), "Enter")
        return self.wait(r"samples/s|SAMPLES/S")

    def top_pid(self):
        pane = self.tmux("list-panes", "-F", "#{pane_pid}").strip()
        return int(subprocess.run(["pgrep", "-P", pane, "penstock"], check=True,
                                  capture_output=True, text=True).stdout)

    def expect_restored(self, case, status):
        """The shell's screen and modes are back, and what it typed is there."""
        case.assertIn("top --interval", self.wait(r"ready>$"))
        self.resize(80, 24)
        self.type("echo status $?; stty -a", "Enter")
        screen = self.wait(r"status \d+[\s\S]*ready>$")
        case.assertIn(f"status {status}\n", screen)
        for mode in ("icanon", "echo", "isig"):
            case.assertRegex(screen, rf"(?<![-\w]){mode}\b")
        case.assertEqual(self.tmux("display", "-p", "#{cursor_flag}#{wrap_flag}"
                                   "#{alternate_on}").strip(), "110")
        self.type("clear", "Enter")
        self.wait(r"^ready>$")

    def close(self):
        self.tmux("kill-server")


class Top(BrokerTest):
    BUILD = BUILD

    def terminal(self, **size):
        terminal = Terminal(self.broker, **size)
        self.addCleanup(terminal.close)
        return terminal

    def test_all_is_on_one_screen(self):
        terminal = self.terminal()
        terminal.top()
        screen = terminal.wait(r"\n\s+1\s+\d+\s+\d[\d,.]*\s+[\d.]+ ms")
        lines = screen.rstrip("\n").split("\n")
        self.assertEqual(len(lines), 24)
        self.assertLessEqual(max(map(len, lines)), 80)
        self.assertRegex(lines[0], r"^penstockd \S+ \(pid \d+\), up .* \d\d:\d\d:\d\d$")
        self.assertRegex(lines[1], r"^workers +\d+: [\d.]+ make rows, ")
        self.assertRegex(lines[2], r"^disk +.*/s, \d+.* reads/s")
        self.assertRegex(lines[3], r"^memory +.* promised, .* resident$")
        self.assertRegex(screen, r"\ntrain +split +\d+ +2 +[\d,]+ +0/9 +[\d,]+/250,000 +running")
        self.assertIn("bottleneck", screen)
        self.assertRegex(screen, r"RANK +PID +BATCHES/S +A BATCH +WAITS +READY +HELD +LAG")
        self.assertTrue(lines[-1].startswith("q quit  j/k scroll  space pause"))
        terminal.type("q")
        terminal.expect_restored(self, 0)

    def test_keys(self):
        terminal = self.terminal(rows=9)
        terminal.top()
        self.assertIn("more lines", terminal.wait("BATCHES/S|more lines"))
        terminal.type("PPage", "Down", "j", "NPage", "NPage")
        terminal.wait(r"attached\n")
        terminal.type("g")
        terminal.wait("SAMPLES/S")
        terminal.type("+")
        terminal.wait("every 0.2 s")
        terminal.type("-")
        terminal.wait("every 0.4 s")
        terminal.type("Space")
        terminal.wait("PAUSED")
        terminal.type("Space", "r")
        terminal.wait(r"^(?![\s\S]*(PAUSED|BATCHES/S))")
        terminal.type("r", "x", "Escape", "F5", "é")
        terminal.wait("BATCHES/S|more lines")
        terminal.type("C-c")
        terminal.expect_restored(self, 130)

    def test_any_size(self):
        terminal = self.terminal()
        terminal.top()
        for columns, rows in ((200, 60), (40, 10), (20, 3), (10, 2), (1, 1), (132, 5),
                              (80, 24)):
            with self.subTest(columns=columns, rows=rows):
                terminal.resize(columns, rows)
                if rows > 5 and columns >= 40:
                    terminal.wait("SAMPLES/S" if columns > 50 else "JOB")
                    self.assertTrue(terminal.screen().startswith("penstockd"))
                elif columns >= 10:
                    terminal.wait("^penstockd|^q quit")
                else:
                    terminal.wait("^.$")
        terminal.wait("SAMPLES/S")
        terminal.type("q")
        terminal.expect_restored(self, 0)

    def test_signals_leave_the_terminal_as_it_was(self):
        terminal = self.terminal()
        for name in ("TERM", "HUP", "SEGV", "ABRT"):
            with self.subTest(name):
                number = getattr(signal, "SIG" + name)
                terminal.top()
                os.kill(terminal.top_pid(), number)
                terminal.expect_restored(self, 128 + number)

    def test_stopped_and_continued(self):
        terminal = self.terminal()
        terminal.top()
        terminal.type("C-z")
        screen = terminal.wait(r"Stopped[\s\S]*ready>$")
        self.assertNotIn("SAMPLES/S", screen)
        terminal.type("fg", "Enter")
        terminal.wait("SAMPLES/S")
        terminal.type("q")
        self.assertIn("fg", terminal.wait("ready>$"))

    def test_a_broker_that_is_gone_may_come_back(self):
        terminal = self.terminal()
        terminal.top()
        self.broker.daemon.kill()
        self.broker.daemon.wait()
        terminal.wait("no answer: ")
        self.broker.start()
        terminal.wait(r"workers +\d+: ", 30)
        terminal.type("q")
        terminal.expect_restored(self, 0)

    def test_a_pipe_gets_lines(self):
        shown = self.broker.ask("top", "--count", "2", "--interval", "0.3")
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        lines = shown.stdout.splitlines()
        self.assertEqual(len(lines), 2)
        for line in lines:
            self.assertRegex(line, r"^\d\d:\d\d:\d\d train: [\d,.]+ samples/s, epoch 0/9, "
                                   r"step [\d,]+/250,000, \S")
        self.assertNotIn("\x1b", shown.stdout)
        dead = subprocess.run([self.broker.penstock, "top", "--socket", "/none"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(dead.returncode, 1)
        self.assertIn("/none", dead.stderr)
        # A reader that ends.
        piped = subprocess.run(
            f"{self.broker.penstock} top --interval 0.2 --socket {self.broker.socket}"
            " | head -n 1", shell=True, capture_output=True, text=True, timeout=30,
            check=False)
        self.assertEqual(len(piped.stdout.splitlines()), 1)


if __name__ == "__main__":
    if not shutil.which("tmux"):
        print("skipped: Debian's package tmux is not installed")
        sys.exit(SKIP)
    unittest.main()
