"""The installed package is complete: programs, types, and a module that needs no library
of ours and exports nothing of its insides."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys

import penstock
from penstock import _core

FOLDER = pathlib.Path(penstock.__file__).parent
SOURCES = pathlib.Path(__file__).resolve().parents[2] / "client" / "python"


def test_the_module_needs_no_library_of_ours_or_abseil():
    needed = subprocess.run(["ldd", _core.__file__], check=True, text=True,
                            capture_output=True).stdout
    assert "libc.so" in needed
    for name in ("absl", "penstock", "libpython"):
        assert name not in needed, needed


def test_the_module_gives_nothing_of_its_insides_to_others():
    symbols = subprocess.run(["nm", "-D", "--defined-only", _core.__file__],
                             check=True, text=True, capture_output=True).stdout
    names = [line.split()[-1] for line in symbols.splitlines()]
    assert names == ["PyInit__core"]


def test_types_are_there_for_checkers():
    assert (FOLDER / "py.typed").exists()
    stub = (FOLDER / "_core.pyi").read_text()
    for name in ("class Reader", "class Batch", "class Producer"):
        assert name in stub


def test_its_types_hold(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-incremental",
         "--config-file", SOURCES / "pyproject.toml", "-p", "penstock"],
        cwd=tmp_path, text=True, capture_output=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_it_needs_nothing_newer_than_python_3_9():
    vermin = pathlib.Path(sys.executable).parent / "vermin"
    result = subprocess.run(
        [vermin, "--no-tips", "--eval-annotations", "--violations", "-t=3.9-",
         SOURCES / "penstock", SOURCES / "examples"],
        text=True, capture_output=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_its_licence_comes_with_it():
    distribution = importlib.metadata.distribution("penstock")
    assert distribution.metadata["License-Expression"] == "Apache-2.0"
    licence, = (file for file in distribution.files if file.name == "LICENSE")
    assert licence.read_text() == (SOURCES.parent.parent / "LICENSE").read_text()


def test_the_programs_come_with_it():
    for name in ("penstock", "penstockd"):
        result = subprocess.run([FOLDER / "bin" / name, "--version"], text=True,
                                capture_output=True)
        assert result.returncode == 0, result.stderr
        assert os.access(FOLDER / "bin" / name, os.X_OK)
