"""Invariants of the tree that a person would forget: every test is registered, every
source listed, every file in its README. Method: reads the tree it lies in; needs no
build.

    python3 tests/tidy_test.py
"""

import ast
import os
import pathlib
import re
import unittest

TOP = pathlib.Path(__file__).resolve().parent.parent

FOLDERS = ("broker", "common", "client", "tests", "bench", "systemd")
# Folders whose README has to name every source file.
EXPLAINED = ("broker", "common", "client")
SOURCE_SUFFIXES = (".c", ".cc", ".h", ".hpp", ".py")
# Names that do not describe the content.
EMPTY_WORDS = ("util", "utils", "helper", "helpers", "misc", "manager", "handler")


def files():
    """Every file of the tree as a path relative to its top; no build output, which
    may be whole roots of another Debian."""
    found = []
    for folder, folders, names in os.walk(TOP):
        if pathlib.Path(folder) == TOP:
            folders[:] = [each for each in folders
                          if each != ".git" and not each.startswith("build")]
        folders[:] = [each for each in folders if each != "__pycache__"]
        found += [(pathlib.Path(folder) / name).relative_to(TOP) for name in names]
    return sorted(path for path in found if path.parts[0] != ".git")


FILES = files()


def text(path):
    """The file's text, or "" where it is binary (pictures, fuzzing corpora)."""
    try:
        return (TOP / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def nearest(path, name):
    """The text of file name in path's folder or the nearest one above it."""
    for folder in path.parents:
        if (TOP / folder / name).exists() and folder != pathlib.Path("."):
            return text(folder / name)
    return ""


def head_comment_lines(source):
    """Number of lines of the file's first comment, without an interpreter line."""
    lines = source.splitlines()
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    if lines and lines[0].startswith('"""'):
        return source.split('"""')[1].count("\n")
    count = 0
    while count < len(lines) and re.match(r"//|#(?!include|ifndef|pragma)", lines[count]):
        count += 1
    return count


def headings(page):
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def undocumented_functions(header, marker):
    """Functions of a C header, by the marker they begin with, that no comment
    stands right above."""
    lines = header.splitlines()
    return [f"{line}" for before, line in zip(lines, lines[1:])
            if line.startswith(marker) and not before.rstrip().endswith("*/")]


def undocumented_names(package):
    """Public classes, functions and methods of a Python package's files without
    a docstring, and that no class of the file that they derive from documents."""
    missing = []
    for path in sorted((TOP / package).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = {}  # by class, with those that it derives from
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                documented[node.name] = {
                    each.name for each in node.body
                    if isinstance(each, ast.FunctionDef) and ast.get_docstring(each)}
                for base in node.bases:
                    documented[node.name] |= documented.get(ast.unparse(base), set())
        nodes = [(node, "") for node in tree.body]
        while nodes:
            node, prefix = nodes.pop()
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                continue
            if node.name.startswith("_"):
                continue
            overload = any("overload" in ast.unparse(each)
                           for each in node.decorator_list)
            inherited = node.name in documented.get(prefix.rstrip("."), ())
            if not ast.get_docstring(node) and not overload and not inherited:
                missing.append(f"{path.name}: {prefix}{node.name}")
            if isinstance(node, ast.ClassDef):
                nodes += [(each, f"{node.name}.") for each in node.body]
    return missing


class TidyTest(unittest.TestCase):
    def assert_none(self, findings, what):
        if findings:
            self.fail(f"{what}:\n  " + "\n  ".join(map(str, findings)))

    def test_every_public_name_is_documented(self):
        self.assert_none(
            undocumented_functions(text("client/penstock.h"), "PENSTOCK_API")
            + undocumented_names("client/python/penstock"),
            "says nothing of itself to users")

    def test_every_test_is_registered(self):
        self.assert_none(
            [
                path
                for path in FILES
                if path.parts[0] == "tests"
                and re.search(r"_test\.(cc|py|sh)$", path.name)
                and not re.search(rf"\b{path.stem}\b", nearest(path, "CMakeLists.txt"))
            ],
            "not in the CMakeLists.txt of its room",
        )

    def test_every_test_is_in_the_readme(self):
        readme = text("tests/README.md")
        named = set(re.findall(r"`((?:\w+/)+\w+)(?:\.\w+)?`", readme))
        tests = {
            str(path.relative_to("tests").with_suffix("")).removesuffix("_test")
            for path in FILES
            if path.parts[0] == "tests" and len(path.parts) > 2
            and re.search(r"(_test\.(cc|py|sh)|^test_\w+\.py|_fuzz\.cc)$", path.name)
        }
        self.assertGreater(len(tests), 100)
        self.assert_none(sorted(tests - {re.sub("_test$", "", each) for each in named}),
                         "in no table of tests/README.md")
        rooms = {test.split("/")[0] for test in tests}
        self.assert_none(
            [
                name
                for name in sorted(named)
                if name.split("/")[0] in rooms and not list((TOP / "tests").glob(f"{name}*"))
            ],
            "a test that is not there, in tests/README.md",
        )

    def test_every_source_is_built(self):
        def listed(path):
            # As a file, or as the argument of penstock_test(NAME ...).
            for folder in path.parents:
                lists = folder / "CMakeLists.txt"
                if (TOP / lists).exists():
                    name = str(path.relative_to(folder))
                    file = rf"(?<![\w/.]){re.escape(name)}(?!\w)"
                    program = rf"\bpenstock_\w+\(\s*{re.escape(name[: -len(path.suffix)])}\b"
                    if re.search(f"{file}|{program}", text(lists)):
                        return True
            return False

        self.assert_none(
            [path for path in FILES if path.suffix in (".cc", ".c") and not listed(path)],
            "in no CMakeLists.txt of its folder or one above",
        )

    def test_every_folder_has_a_readme(self):
        self.assert_none(
            [
                folder
                for folder in FOLDERS
                if not (TOP / folder / "README.md").exists()
            ],
            "no README.md in",
        )

    def test_every_link_leads_somewhere(self):
        links = [
            (page, link)
            for page in FILES
            if page.suffix == ".md"
            for link in re.findall(r"\]\(([^)\s]+)\)", text(page))
            if not re.match(r"[a-z]+:", link)
        ]
        self.assertGreater(len(links), 100)

        def leads(page, link):
            path, _, heading = link.partition("#")
            target = (TOP / page.parent / path).resolve() if path else TOP / page
            return target.exists() and (not heading or heading in headings(text(target)))

        self.assert_none([f"{page}: {link}" for page, link in links if not leads(page, link)],
                         "a link to nothing")

    def test_every_source_is_in_the_readme(self):
        # plan.h, plan.cc or plan.{h,cc}: one mention stands for the pair. Kinds that
        # their room's kinds.h lists are told of by the tables made of declarations.
        def is_kind(path):
            kinds = path.parent / "kinds.h"
            return (TOP / kinds).exists() and f'"{path.with_suffix(".h")}"' in text(kinds)

        self.assert_none(
            [
                path
                for path in FILES
                if path.parts[0] in EXPLAINED
                and path.suffix in SOURCE_SUFFIXES
                and not is_kind(path)
                and not re.search(
                    rf"(?<![\w]){re.escape(path.stem)}\.(?:{{|{path.suffix[1:]}\b|h\b|cc\b)",
                    nearest(path, "README.md"),
                )
            ],
            "not in the README.md of its folder",
        )

    def test_rooms_include_only_rooms_below(self):
        # The tables of the two READMEs give the order; files beside rooms are on top.
        floors = {"common": 0}
        for part in ("broker", "client"):
            rooms = re.findall(r"^\| \[(\w+)/\]", text(f"{part}/README.md"), re.M)
            floors |= {f"{part}/{room}": len(rooms) - i for i, room in enumerate(rooms)}
            floors[part] = len(rooms) + 1
        arrows = [
            (path, included)
            for path in FILES
            if str(path.parent) in floors and path.suffix in (".h", ".cc")
            for included in re.findall(r'^#include "((?:broker|common|client)/.*)"',
                                       text(path), re.M)
            if path.parent != pathlib.PurePath(included).parent
            # The ABI of plugins, which both sides compile.
            and included != "client/penstock_plugin.h"
        ]
        self.assertGreater(len(arrows), 100)

        def points_down(path, included):
            room = str(pathlib.PurePath(included).parent)
            same_part = room == "common" or path.parts[0] == room.split("/")[0]
            return same_part and floors[str(path.parent)] > floors.get(room, len(floors))

        self.assert_none(
            [f"{path} includes {included}" for path, included in arrows
             if not points_down(path, included)],
            "an arrow that points up",
        )

    def test_every_message_of_the_log_is_written(self):
        # One that is not declared does not compile.
        declared = re.findall(r'^    \{"([a-z-]+)", "[0-9a-f]{32}"',
                              text("broker/base/messages.h"), re.M)
        self.assertGreater(len(declared), 50)
        code = "".join(text(path) for path in FILES
                       if path.parts[0] == "broker" and path.suffix == ".cc")
        written = re.findall(r'(?:\bLog<|MessageNamed\()\s*"([a-z-]+)"', code)
        self.assert_none(sorted(set(declared) - set(written)), "a message nobody writes")

    def test_every_room_says_the_same_five_things(self):
        parts = ["Here", "Callers and callees", "Threads", "Bounds", "Decisions"]
        for readme in [*TOP.glob("broker/*/README.md"), *TOP.glob("client/*/README.md")]:
            if readme.parent.name in ("command", "examples", "launchers", "python"):
                continue
            lines = readme.read_text(encoding="utf-8").splitlines()
            with self.subTest(room=readme.parent.name):
                self.assertEqual([line[3:] for line in lines if line.startswith("## ")], parts)
                self.assertLessEqual(len(lines), 120, "over two screens")

    def test_every_page_of_the_reference_fits_a_screen(self):
        self.assert_none(
            [
                page
                for page in FILES
                if page.parts[0] == "common" and page.suffix == ".md"
                and len(text(page).splitlines()) > 75
            ],
            "over a screen: split it by subject, and name the page in its README.md",
        )

    def test_every_fuzz_input_is_named_for_what_is_in_it(self):
        # libFuzzer names its findings by a hash, in the first folder it is given.
        self.assert_none(
            [
                path
                for path in TOP.glob("tests/fuzz/corpus/*/*")
                if re.fullmatch(r"[0-9a-f]{40}", path.name)
            ],
            "named by a hash",
        )

    def test_every_benchmark_says_what_it_measures(self):
        self.assert_none(
            [
                path
                for path in FILES
                if path.parts[0] == "bench"
                and path.suffix in (".cc", ".py", ".sh")
                and head_comment_lines(text(path)) < 3
            ],
            "no head comment (question, method, command)",
        )

    def test_results_are_readable(self):
        # What a cell has no room for stands below its table.
        self.assert_none(
            [
                f"line {number}: {cell.strip()}"
                for number, line in enumerate(text("bench/README.md").splitlines(), 1)
                if line.startswith("|")
                for cell in line.strip("|").split("|")
                if len(cell.split()) > 25
            ],
            "a cell of over 25 words in bench/README.md",
        )

    def test_names_say_what_is_inside(self):
        findings = []
        empty_class = re.compile(
            r"\b(?:class|struct)\s+(\w*(?:%s))\b"
            % "|".join(word.capitalize() for word in EMPTY_WORDS)
        )
        for path in FILES:
            words = re.split(r"[/_.-]", str(path).lower())
            findings += [path] if set(words) & set(EMPTY_WORDS) else []
            if path.suffix in SOURCE_SUFFIXES:
                findings += [f"{path}: {name}" for name in empty_class.findall(text(path))]
        self.assert_none(findings, "name it for what it does")

    def test_every_python_test_is_run(self):
        run = (TOP / "tests/python/run").read_text()
        listed = set(re.findall(r"[{,](\w+)(?=[,}])", run))
        self.assert_none(
            [path.name for path in sorted((TOP / "tests/python").glob("test_*.py"))
             if path.stem.removeprefix("test_") not in listed],
            "tests/python/run does not name it",
        )

    def test_comments_name_their_subject(self):
        self.assert_none(
            [f"{path}: {line.strip()}"
             for path in FILES
             if path.suffix in SOURCE_SUFFIXES
             for line in re.findall(r"^\s*(?://|#|\*) Of .*$", text(path), re.MULTILINE)],
            "begins with Of: say what the comment is about first",
        )

    def test_the_package_has_every_function_of_the_library(self):
        declared = set(re.findall(r"^PENSTOCK_API\b[^;(]*?\b(penstock_\w+)\(",
                                  text("client/penstock.h"), re.MULTILINE))
        listed = set(re.findall(r"^ (penstock_\w+)@",
                                text("systemd/debian/libpenstock0.symbols"),
                                re.MULTILINE))
        self.assertGreater(len(declared), 20)
        self.assertEqual(declared, listed)

    def test_every_linked_library_has_a_licence_that_fits(self):
        # LGPL: of a library that is a file of its own. GPL is left to programs.
        fits = {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "IJG",
                "LGPL-2.1", "LGPL-2.1+", "MIT", "Zlib", "bzip2-1.0.6", "libpng-2.0", "libtiff"}
        linked = re.search(r"^# libraries\n(.*?)^#", text("packages.txt"), re.M | re.S)[1].split()
        self.assertGreater(len(linked), 20)
        rows = re.search(r"^## Dependencies\n(.*)", text("CONTRIBUTING.md"), re.M | re.S)[1]
        licences = {package: row.split("|")[-2] for row in re.findall(r"^\|.*", rows, re.M)
                    for package in re.findall(r"[\w.+-]+", row.split("|")[1])}
        for package in linked:
            with self.subTest(package=package):
                for each in re.split("[,;]", licences.get(package, "not in CONTRIBUTING.md")):
                    self.assertTrue(fits & set(each.strip().split(" or ")), each)

    def test_the_licence_is_the_same_everywhere(self):
        self.assertEqual(text("LICENSE"), text("client/python/LICENSE"))
        self.assertIn("Apache License\n                           Version 2.0", text("LICENSE"))
        self.assertIn('license = "Apache-2.0"', text("client/python/pyproject.toml"))
        self.assertIn("\nLicense: Apache-2.0\n", text("systemd/debian/copyright"))

    def test_no_path_of_this_machine(self):
        # The checkout, and its siblings. Folders that every machine has
        # may be named.
        shared = ("/", "/root", "/home", "/tmp", "/var/tmp")
        own = [str(path) for path in (TOP, TOP.parent) if str(path) not in shared]
        if own == ["/penstock"]:
            self.skipTest("in tests/debian_13's root paths in an installation look alike")
        pattern = re.compile(r"(?<![\w.])(?:%s)/" % "|".join(map(re.escape, own)))
        self.assert_none(
            [
                f"{path}:{number}: {line.strip()}"
                for path in FILES
                for number, line in enumerate(text(path).splitlines(), 1)
                if pattern.search(line)
            ],
            "absolute path of this machine",
        )


if __name__ == "__main__":
    unittest.main()
