#!/usr/bin/env python3
"""Promise: the manual pages have what the programs' own help has, man and mandoc show
them without a warning, and bash completes the commands and options. Method: the pages
that the build made, beside the help of the programs it made.

Usage: manual_test.py BUILD
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
PAGES = BUILD / "systemd/man"
PENSTOCK = BUILD / "client/command/penstock"
PENSTOCKD = BUILD / "broker/penstockd"
UTF_8 = {**os.environ, "LC_ALL": "C.UTF-8", "MANROFFSEQ": "", "MANWIDTH": "80",
         "MAN_KEEP_FORMATTING": ""}


def output(*words):
    return subprocess.run(words, capture_output=True, text=True, check=True, env=UTF_8).stdout


def shown(page):
    """As a terminal shows it, each run of white space as one space, and a word that was
    divided as one."""
    text = output("man", "--local-file", "--no-hyphenation", PAGES / page)
    return re.sub(r"\s+", " ", text)


class ManualTest(unittest.TestCase):
    def test_no_formatter_warns(self):
        for page in ("penstock.1", "penstock-spec.5", "penstockd.8"):
            with self.subTest(page=page):
                man = subprocess.run(
                    ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", PAGES / page],
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True,
                    env=UTF_8)
                self.assertEqual(man.stderr, "")
                mandoc = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", PAGES / page],
                                        capture_output=True, text=True, check=False)
                self.assertEqual(mandoc.stdout + mandoc.stderr, "")

    def test_pages_have_every_option_of_the_help(self):
        listed = output(PENSTOCK, "--help").split("Subcommands:\n")[1].split("\n\n")[0]
        commands = re.findall(r"^  (\w+) ", listed, re.M)
        self.assertGreater(len(commands), 15)
        page = shown("penstock.1")
        helps = [output(PENSTOCK, command, "--help") for command in commands]
        helps += [output(PENSTOCK, "recipe", below, "--help")
                  for below in ("list", "show", "check")]
        self.assertNotIn("{false}", "".join(helps) + page)  # as CLI11 writes --no-row
        self.assertIn(" penstock recipe show [OPTION]... NAME [PATH] ", page)
        for command in commands:
            self.assertIn(f" {command} penstock {command} ", page)
        for name in re.findall(r"^  (?:-\w,)?(--[\w-]+)", "".join(helps), re.M):
            self.assertIn(name, page)
        page = shown("penstockd.8")
        for name in re.findall(r"^  (?:-\w,)?(--[\w-]+)", output(PENSTOCKD, "--help"), re.M):
            self.assertIn(name, page)

    def test_pages_have_every_key(self):
        page = shown("penstockd.8")
        keys = re.findall(r"^  (\w+): ", output(PENSTOCK, "help", "config"), re.M)
        self.assertIn("memory_limit_per_user", keys)
        for key in keys:
            self.assertIn(f" {key} ", page)
        messages = re.findall(r"^([a-z-]+) \((\w+), [0-9a-f]{32}\)$",
                              output(PENSTOCK, "help", "messages"), re.M)
        self.assertGreater(len(messages), 50)
        for name, level in messages:
            self.assertIn(f" {name} {level} ", page)
        page = shown("penstock-spec.5")
        names = re.findall(r"^  (\w+): ", output(PENSTOCK, "help", "spec"), re.M)
        self.assertIn("image_folder", names)
        for name in names:
            self.assertIn(f" {name} ", page)
        # One in full.
        flip = output(PENSTOCK, "help", "spec", "flip").split("Keys:")[1].split("Example:")[0]
        for key, value in re.findall(r"^  (\w+): (.*)$", flip, re.M):
            self.assertIn(f" {key} {value}", page)

    def complete(self, *words):
        script = (f". {PAGES}/penstock.bash; COMP_WORDS=({' '.join(words)} ''); "
                  f"COMP_CWORD={len(words) - 1}; _penstock; echo \"${{COMPREPLY[@]}}\"")
        return sorted(output("bash", "-c", script).split())

    def test_bash_completes(self):
        self.assertEqual(self.complete("penstock", "re"), ["recipe", "register"])
        self.assertEqual(self.complete("penstock", "stat"), ["state", "status"])
        self.assertEqual(self.complete("penstock", "--v"), ["--version"])
        self.assertEqual(self.complete("penstock", "run", "--pre"), ["--prefix"])
        self.assertEqual(self.complete("penstock", "help", "c"), ["config"])
        self.assertEqual(self.complete("penstock", "help", "m"), ["messages"])
        self.assertEqual(self.complete("penstock", "recipe", "s"), ["show"])
        self.assertEqual(self.complete("penstock", "recipe", "show", "cifar100"), ["cifar100"])
        self.assertEqual(self.complete("penstock", "recipe", "show", "mnist", "--s"), ["--split"])
        # Files, and the words of another command.
        self.assertEqual(self.complete("penstock", "check", "train"), [])
        self.assertEqual(self.complete("penstock", "run", "--", "ls", "--pre"), [])


if __name__ == "__main__":
    unittest.main()
