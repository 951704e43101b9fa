#!/usr/bin/python3
"""Makes cast.svg, the moving picture of the README: quickstart's training, `penstock
view` and `penstock explain`, in at most a minute that repeats itself.

Each command runs in a pseudo-terminal, and the picture shows what it printed. Only time
is changed: a command that takes longer than the picture has for it runs faster there.
The page of `view` is that of a browser. The picture is animated by CSS, without scripts,
so it moves wherever a page shows it as an image.

    ./quickstart                                   # or another build: --build
    client/command/cast.py --out client/command/cast.svg

Needs Debian's chromium, python3-pil, mate-backgrounds and what quickstart needs. Takes a
minute of two cores; on a busy machine the figures are those of a busy machine.
"""

import argparse
import base64
import codecs
import dataclasses
import html
import io
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

import fcntl

TOP = pathlib.Path(__file__).resolve().parents[2]
COLUMNS, ROWS = 104, 27
SECONDS_MAX = 60
COMMAND_SECONDS_MAX = 240
# Changes closer together are one: progress bars are redrawn ten times a second.
TICK_S = 0.2
BYTES_MAX = 300_000

TRAIN = """\
dataset: photographs
source: {image_folder: {path: photographs}}
shuffle: {seed: 42}
map:
  - decode_image: {size: 224, crop: {random_resized: {}}}
  - flip: {horizontal: 0.5}
  - normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
batch: {size: 64}
epochs: forever
"""


class Terminal:
    """What a terminal shows of the bytes that it gets: text, line ends, carriage returns
    and the end of a line erased. Another sequence is an error rather than a wrong
    picture."""

    SEQUENCE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")

    def __init__(self):
        self._rows, self._column = [""], 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    @property
    def rows(self):
        return tuple(row.rstrip() for row in self._rows)

    def write(self, data):
        text = self._rest + self._decode(data)
        self._rest = ""
        while text:
            if text[0] == "\x1b":
                sequence = self.SEQUENCE.match(text)
                if sequence is None and len(text) < 16:
                    self._rest = text
                    return
                if sequence is None or sequence[2] not in "Km" or sequence[1] not in ("", "0"):
                    raise ValueError(f"this terminal cannot show {text[:16]!r}")
                if sequence[2] == "K":
                    self._rows[-1] = self._rows[-1][:self._column]
                text = text[sequence.end():]
                continue
            self._put(text[0])
            text = text[1:]

    def clear(self):
        self._rows, self._column = [""], 0

    def _put(self, character):
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._rows = [*self._rows, ""][-ROWS:]
        elif character.isprintable():
            if self._column == COLUMNS:
                self._put("\n")
                self._column = 0
            row = self._rows[-1].ljust(self._column)
            self._rows[-1] = row[:self._column] + character + row[self._column + 1:]
            self._column += 1


@dataclasses.dataclass
class Page:
    """A picture over the terminal, which moves from its top to its bottom."""

    jpeg: bytes
    size: tuple
    begin_s: float
    end_s: float


class Cast:
    """The rows of a terminal over time."""

    def __init__(self):
        self.frames = [(0.0, ())]  # (from when, rows)
        self.pages = []
        self.now = 0.0
        self._terminal = Terminal()

    def wait(self, seconds):
        self.now += seconds

    def clear(self):
        self._terminal.clear()

    def type(self, line, prompt="$ "):
        """A person types a line, a word at a time."""
        self._show(prompt.encode())
        for word in re.findall(r"\S+\s*", line):
            self.wait(0.12)
            self._show(word.encode())
        self.wait(0.4)
        self._show(b"\r\n")

    def say(self, comment):
        self.type(comment, "# ")

    def _show(self, data):
        self._terminal.write(data)
        rows = self._terminal.rows
        if self.frames[-1][0] >= self.now:
            self.frames.pop()
        self.frames.append((self.now, rows))

    def play(self, events, seconds):
        """Shows what a command printed, [(when, bytes)], in at most so many seconds."""
        took = events[-1][0] if events else 0
        faster = max(1.0, took / seconds)
        begin, shown = self.now, -TICK_S
        for i, (when, data) in enumerate(events):
            when /= faster
            self._terminal.write(data)
            following = events[i + 1][0] / faster if i + 1 < len(events) else None
            if following is None or (following - shown >= TICK_S and following > when):
                shown = when
                self.now = begin + when
                self._show(b"")
        self.now = begin + took / faster

    def show(self, jpeg, size, seconds):
        self.pages.append(Page(jpeg, size, self.now, self.now + seconds))
        self.now += seconds


def record(command, environment, cwd):
    """Runs a command of the shell in a pseudo-terminal: [(seconds, bytes)] of what it
    printed. An exit status other than 0 ends this program."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(cwd)
        os.execvpe("bash", ["bash", "-c", command], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    begin, events = time.monotonic(), []
    try:
        while True:
            left = begin + COMMAND_SECONDS_MAX - time.monotonic()
            if left <= 0 or not select.select([terminal], [], [], left)[0]:
                os.kill(child, signal.SIGTERM)
                sys.exit(f"{command}: takes more than {COMMAND_SECONDS_MAX} s")
            data = os.read(terminal, 1 << 16)
            if not data:
                break
            events.append((time.monotonic() - begin, data))
    except OSError:  # EIO: the last process has closed it
        pass
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        sys.exit(f"{command}: exit status {status}\n"
                 + b"".join(data for _, data in events).decode(errors="replace"))
    return events


def page_picture(page, folder):
    """The page in a browser, as a JPEG: its bytes and size."""
    from PIL import Image  # Debian's; the rest of this file is tested without
    png = folder / "page.png"
    subprocess.run(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu",
                    "--hide-scrollbars", "--window-size=900,1330",
                    "--blink-settings=preferredColorScheme=0",  # dark, as the terminal
                    f"--user-data-dir={folder / 'chromium'}", f"--screenshot={png}", page],
                   check=True, capture_output=True, timeout=90)
    out = io.BytesIO()
    picture = Image.open(png).convert("RGB")
    picture.save(out, "JPEG", quality=45, optimize=True, progressive=True)
    return out.getvalue(), picture.size


# ---- the picture

WIDTH_OF, HEIGHT_OF, MARGIN, BAR = 8.4, 19, 16, 30
STYLE = """\
svg{background:#161b22;border-radius:8px}
text{font:14px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;fill:#d5dbe3;\
white-space:pre}
.p{fill:#7ee787}.c{fill:#8b98a8}
.a{visibility:hidden}.e{visibility:visible}
"""


def spans(cast):
    """[(row, text, from, to)]: for how long each row of the terminal shows a text."""
    found, since = [], {}
    for when, rows in [*cast.frames, (cast.now, ())]:
        for number in range(ROWS):
            text = rows[number] if number < len(rows) else ""
            former = since.get(number)
            if former is not None and former[0] != text:
                found.append((number, *former, when))
                del since[number]
            if text and number not in since:
                since[number] = (text, when)
    return [span for span in found if span[3] > span[2]]


def svg(cast):
    """The whole cast as one animated picture."""
    total = cast.now
    if total > SECONDS_MAX:
        raise ValueError(f"{total:.0f} s, at most {SECONDS_MAX}")
    width = round(COLUMNS * WIDTH_OF) + 2 * MARGIN
    height = ROWS * HEIGHT_OF + 2 * MARGIN + BAR
    rules, classes = [], {}

    def shown(begin, end):
        """The classes of what is visible from begin to end."""
        key = (round(begin, 2), round(end, 2))
        if key not in classes:
            name = classes[key] = f"k{len(classes)}"
            from_, to = (f"{100 * each / total:.2f}%" for each in key)
            rules.append(
                f"@keyframes {name}{{0%{{visibility:hidden}}{from_}{{visibility:visible}}"
                + ("" if end >= total else f"{to}{{visibility:hidden}}")
                + f"}}.{name}{{animation:{name} {total:.1f}s step-end infinite}}")
        # Where nothing moves, the end is what is seen.
        return f"a {classes[key]}" + (" e" if end >= total else "")

    body = []
    for row, text, begin, end in spans(cast):
        kind = {"$": " p", "#": " c"}.get(text[0] if text[:2] in ("$ ", "# ") else "", "")
        left = len(text) - len(text.lstrip())
        text = text.strip()
        body.append(
            f'<text class="{shown(begin, end)}{kind}" x="{MARGIN + left * WIDTH_OF:.1f}" '
            f'y="{BAR + MARGIN + HEIGHT_OF * row + 14}" textLength="{len(text) * WIDTH_OF:.1f}" '
            f'lengthAdjust="spacingAndGlyphs">{html.escape(text, quote=False)}</text>')
    for i, page in enumerate(cast.pages):
        scale = width / page.size[0]
        over = max(0, page.size[1] * scale - (height - BAR))
        begin, end = (100 * each / total for each in (page.begin_s, page.end_s))
        rest = (end - begin) * 0.25
        rules.append(
            f"@keyframes m{i}{{0%,{begin + rest:.2f}%{{transform:none}}"
            f"{end - rest:.2f}%,100%{{transform:translateY({-over:.0f}px)}}}}"
            f".m{i}{{animation:m{i} {total:.1f}s linear infinite}}")
        body.append(
            f'<svg class="{shown(page.begin_s, page.end_s)}" y="{BAR}" width="{width}" '
            f'height="{height - BAR}"><image class="m{i}" width="{width}" '
            f'height="{page.size[1] * scale:.0f}" href="data:image/jpeg;base64,'
            f'{base64.b64encode(page.jpeg).decode()}"/></svg>')
    dots = "".join(f'<circle cx="{20 + 20 * i}" cy="16" r="6" fill="#3d4652"/>'
                   for i in range(3))
    picture = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
               f'width="{width}" height="{height}"><style>{STYLE}{"".join(rules)}'
               "@media(prefers-reduced-motion:reduce){*{animation:none!important}}</style>"
               f'<rect width="100%" height="100%" rx="8" fill="#161b22"/>{dots}'
               + "\n".join(body) + "</svg>\n")
    if len(picture) > BYTES_MAX:
        raise ValueError(f"{len(picture)} bytes, at most {BYTES_MAX}")
    return picture


def perform(build, folder):
    """Runs the commands; the cast of them."""
    programs = [build / "client/command", build / "client/examples", build / "broker"]
    environment = {
        **os.environ, "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),
        "TERM": "xterm", "LC_ALL": "C.UTF-8",
        # quickstart says why.
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_btl": "^tcp", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    environment.pop("PENSTOCK_SOCKET", None)
    subprocess.run(["/usr/bin/python3", TOP / "bench/make_photographs.py", "--count", "240",
                    "--out", folder / "photographs"], check=True, stdout=subprocess.DEVNULL)
    (folder / "train.yaml").write_text(TRAIN)
    examples = folder / "client/examples"
    examples.mkdir(parents=True)
    (examples / "fashion_mnist").symlink_to(TOP / "client/examples/fashion_mnist")

    def run(line):
        return record(line, environment, folder)

    cast = Cast()
    cast.say("./quickstart builds Penstock, then trains on Fashion-MNIST with 4 MPI ranks:")
    train = ("penstock run --dataset client/examples/fashion_mnist/train.yaml --ranks 0 -- "
             "mpirun -n 4 fashion_mnist")
    cast.type(train)
    cast.play(run(train), 9)
    cast.wait(4)

    cast.clear()
    cast.say("Your own data are a spec of a few lines:")
    cast.type("cat train.yaml")
    cast.play(run("cat train.yaml"), 1)
    cast.wait(4)
    cast.type("penstock check train.yaml")
    cast.play(run("penstock check train.yaml"), 1)
    cast.wait(3.5)

    cast.clear()
    cast.say("While ranks take batches, `view` shows who waits for whom, and the last batch:")
    job = "penstock bench --dataset train.yaml --ranks 4 --steps 1000000"
    cast.type(job + " &")
    with subprocess.Popen(job.split(), env=environment, cwd=folder, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as ranks:
        try:
            time.sleep(3)
            view = "penstock view --out report.html --seconds 10"
            cast.type(view)
            cast.play(run(view), 1.5)
        finally:
            ranks.terminate()
    cast.wait(0.5)
    cast.show(*page_picture(folder / "report.html", folder), 9)

    cast.clear()
    cast.say("What limits, and what would help first:")
    cast.type("penstock explain train.yaml")
    cast.play(run("penstock explain train.yaml"), 6)
    cast.wait(8)
    return cast


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--build", type=pathlib.Path, default=TOP / "build/quickstart")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("cast.svg"))
    options = parser.parse_args()
    if not (options.build / "client/command/penstock").exists():
        parser.error(f"no penstock in {options.build}: run ./quickstart first, or say --build")
    if shutil.which("chromium") is None:
        parser.error("no chromium: apt-get install chromium")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="penstock-cast-"))
    try:
        cast = perform(options.build.resolve(), folder)
    finally:
        shutil.rmtree(folder)
    picture = svg(cast)
    options.out.write_text(picture, encoding="utf-8")
    print(f"{options.out}: {cast.now:.0f} s, {len(picture):,} bytes")


if __name__ == "__main__":
    main()
