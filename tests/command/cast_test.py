#!/usr/bin/env python3
"""Promise: the moving picture of the README is well formed, small, without scripts, and
at most a minute long; it shows what a terminal would. Method: cast.py's terminal and
picture of made-up output, and the picture in the tree; records nothing.

  cast_test.py BUILD_DIR
"""

import pathlib
import re
import sys
import unittest
import xml.etree.ElementTree

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "client/command"))

import cast  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def rows_of(*writes):
    terminal = cast.Terminal()
    for data in writes:
        terminal.write(data)
    return terminal.rows


def visible_at(picture, second):
    """The texts of a picture at a second, as its keyframes say."""
    root = xml.etree.ElementTree.fromstring(picture)
    style = root.find(SVG + "style").text
    total = float(re.search(r"animation:k0 ([0-9.]+)s", style)[1])
    at = 100 * second / total
    spans = {name: (float(begin), float(end or 101)) for name, begin, end in re.findall(
        r"@keyframes (k\d+)\{0%\{visibility:hidden\}([0-9.]+)%\{visibility:visible\}"
        r"(?:([0-9.]+)%\{visibility:hidden\})?\}", style)}
    found = []
    for text in root.iter(SVG + "text"):
        begin, end = spans[text.get("class").split()[1]]
        if begin <= at < end:
            found.append((float(text.get("y")), text.text))
    return [text for _, text in sorted(found)]


class TerminalTest(unittest.TestCase):
    def test_a_progress_bar_is_redrawn_in_its_row_and_erased(self):
        bar = b"\rstorage [#...] 25%\x1b[K"
        self.assertEqual(rows_of(b"a\r\n", bar), ("a", "storage [#...] 25%"))
        self.assertEqual(rows_of(b"a\r\n", bar, b"\rdone\x1b[K\r\n"), ("a", "done", ""))

    def test_sequences_and_characters_may_come_in_pieces(self):
        self.assertEqual(rows_of(b"ab\x1b", b"[", b"0m", "█".encode()[:1], "█".encode()[1:]),
                         ("ab█",))

    def test_long_rows_wrap_and_old_rows_scroll_away(self):
        self.assertEqual(rows_of(b"x" * (cast.COLUMNS + 1)), ("x" * cast.COLUMNS, "x"))
        shown = rows_of(*(b"%d\r\n" % i for i in range(40)))
        self.assertEqual(shown[-2:], ("39", ""))
        self.assertEqual(len(shown), cast.ROWS)

    def test_what_it_cannot_show_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "cannot show"):
            rows_of(b"\x1b[2J")


class PictureTest(unittest.TestCase):
    @staticmethod
    def made():
        made = cast.Cast()
        made.type("penstock check <train.yaml>")
        made.play([(0.1, b"50 %"), (30, b"\r\x1b[Kfine & done\r\n")], 2)
        made.wait(3)
        return made

    def test_texts_come_and_go_in_the_time_that_the_picture_has(self):
        made = self.made()
        picture = cast.svg(made)
        self.assertLess(made.now, 8)  # 30 s of output are 2 s
        self.assertEqual(visible_at(picture, made.now - 0.1),
                         ["$ penstock check <train.yaml>", "fine & done"])
        self.assertEqual(visible_at(picture, made.now - 4),
                         ["$ penstock check <train.yaml>", "50 %"])
        self.assertEqual(visible_at(picture, 0.05), ["$"])

    def test_a_minute_is_the_most(self):
        made = self.made()
        made.wait(60)
        with self.assertRaisesRegex(ValueError, "at most 60"):
            cast.svg(made)

    def test_the_picture_in_the_tree(self):
        picture = (TOP / "client/command/cast.svg").read_text(encoding="utf-8")
        self.assertLess(len(picture), cast.BYTES_MAX)
        self.assertNotRegex(picture, r"<script|javascript:|href=\"http")
        texts = "\n".join(visible_at(picture, 0.999 * float(
            re.search(r"animation:k0 ([0-9.]+)s", picture)[1])))
        self.assertIn("$ penstock explain train.yaml", texts)
        self.assertIn("< bottleneck", texts)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
