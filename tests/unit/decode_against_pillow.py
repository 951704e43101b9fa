"""Promise: decode_image gives the pixels of Pillow's Image.open(...).convert("RGB") and
convert("L") for PNG, WebP, TIFF, BMP, PGM and PPM, bit for bit, the values of a mask that its array has,
also resized by NEAREST, and the pixels of ImageOps.exif_transpose with
orientation: apply. Method: pictures of every kind that the formats have, made here (what
Pillow cannot write, by the writers below) and the pictures of Debian's mate-backgrounds
go through resize_probe and through Pillow; every value is compared.

    decode_against_pillow.py PROBE
    decode_against_pillow.py --write-golden   # after a change of golden_files

The second makes files of tests/fuzz/corpus/decode, of every kind but small, and
tests/unit/decode_golden.txt with the checksums of Pillow's pixels, which
picture_decoder_test compares with ours where there is no Pillow.

Fails, and does not skip, without python3-pil, python3-numpy or mate-backgrounds
(packages.txt lists them).
"""

import argparse
import io
import itertools
import pathlib
import struct
import sys
import tempfile
import zlib

import numpy
from PIL import Image, ImageOps

from resize_against_pillow import PICTURES, Comparison, Probe

SIZES = [(1, 1), (2, 3), (5, 1), (9, 13), (67, 41)]  # width, height
NEAREST_SIZES = [(1, 1), (7, 12), (50, 49), (300, 3)]
PNG_KINDS = [  # colour type, bits
    *((0, bits) for bits in (1, 2, 4, 8, 16)), (2, 8), (2, 16),
    *((3, bits) for bits in (1, 2, 4, 8)), (4, 8), (4, 16), (6, 8), (6, 16),
]
PNG_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4),
         (1, 0, 2, 2), (0, 1, 1, 2)]  # x, y, step of x, step of y


def random_samples(draw, width, height, samples, bits):
    """Some flat, some noise, with both ends of the range."""
    values = draw.integers(0, 1 << bits, (height, width, samples))
    values[: height // 2] //= 3
    if bits == 16 and draw.integers(2):
        values //= 200  # where Pillow does not clip
    values.flat[0] = (1 << bits) - 1
    return values


def packed(values, bits, order=">"):
    """Rows of [h, w, samples] as bytes."""
    height = values.shape[0]
    rows = values.reshape(height, -1)
    if bits == 16:
        return [row.astype(order + "u2").tobytes() for row in rows]
    if bits == 8:
        return [row.astype(numpy.uint8).tobytes() for row in rows]
    planes = (rows[:, :, None] >> numpy.arange(bits - 1, -1, -1)) & 1
    return [numpy.packbits(row.astype(numpy.uint8)).tobytes()
            for row in planes.reshape(height, -1)]


# ---- PNG ---------------------------------------------------------------------


def chunk(kind, data):
    return (struct.pack(">I", len(data)) + kind + data +
            struct.pack(">I", zlib.crc32(kind + data)))


def filtered(rows, step, draw):
    """Each row with a filter of its own."""
    before = bytes(len(rows[0])) if rows else b""
    out = b""
    for row in rows:
        kind = int(draw.integers(5))
        line = bytearray()
        for i, value in enumerate(row):
            a = row[i - step] if i >= step else 0
            b = before[i]
            c = before[i - step] if i >= step else 0
            p = a + b - c
            paeth = min((a, b, c), key=lambda near: abs(p - near))
            line.append((value - (0, a, b, (a + b) // 2, paeth)[kind]) & 255)
        out += bytes([kind]) + bytes(line)
        before = row
    return out


def write_png(values, color, bits, draw, interlaced=False, palette=None,
              extra=(), late=()):
    height, width, samples = values.shape
    passes = ADAM7 if interlaced else [(0, 0, 1, 1)]
    data = b""
    for x, y, step_x, step_y in passes:
        part = values[y::step_y, x::step_x]
        if part.size:
            data += filtered(packed(part, bits), max(1, samples * bits // 8), draw)
    data = zlib.compress(data)
    cut = len(data) // 2
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(
        ">IIBBBBB", width, height, bits, color, 0, 0, int(interlaced)))
    if palette is not None:
        out += chunk(b"PLTE", palette)
    out += b"".join(chunk(*each) for each in extra)
    out += chunk(b"IDAT", data[:cut]) + chunk(b"IDAT", data[cut:])
    return out + b"".join(chunk(*each) for each in late) + chunk(b"IEND", b"")


def png_files(draw):
    for (color, bits), interlaced, (width, height) in itertools.product(
            PNG_KINDS, (False, True), SIZES):
        values = random_samples(draw, width, height, PNG_SAMPLES[color], bits)
        name = f"colour_{color}_bits_{bits}_{width}x{height}_{interlaced}.png"
        extra = [(b"gAMA", struct.pack(">I", 100000))]
        palette = None
        if color == 3:
            colors = 1 << bits
            palette = draw.integers(0, 256, 3 * colors).astype(
                numpy.uint8).tobytes()
            extra.append((b"tRNS", bytes([0, 128])))
        elif color in (0, 2):
            extra.append((b"tRNS", bytes(2 * PNG_SAMPLES[color])))
        yield name, write_png(values, color, bits, draw, interlaced, palette,
                              extra)


# ---- TIFF --------------------------------------------------------------------


def write_tiff(values, photometric, bits, order="<", tile=None, rows_per_strip=7,
               separate=False, deflate=False, extra_samples=(), palette=None,
               fill_order=1, big=False, orientation=None):
    """The picture [h, w, samples] as a TIFF."""
    height, width, samples = values.shape
    planes = ([values[:, :, i: i + 1] for i in range(samples)]
              if separate else [values])
    pieces = []
    for plane in planes:
        if tile is None:
            blocks = [plane[y: y + rows_per_strip]
                      for y in range(0, height, rows_per_strip)]
        else:
            down, across = -height % tile, -width % tile
            padded = numpy.pad(plane, ((0, down), (0, across), (0, 0)))
            blocks = [padded[y: y + tile, x: x + tile]
                      for y in range(0, height, tile)
                      for x in range(0, width, tile)]
        for block in blocks:
            piece = b"".join(packed(block, bits, order))
            if deflate:
                piece = zlib.compress(piece)
            if fill_order == 2:
                piece = bytes(int(f"{byte:08b}"[::-1], 2) for byte in piece)
            pieces.append(piece)
    word = "Q" if big else "I"
    body = bytearray(16 if big else 8)
    offsets = []
    for piece in pieces:
        offsets.append(len(body))
        body += piece + b"\0" * (len(piece) % 2)
    short, long_ = ("H", 3), ("I", 4)
    tags = {256: (long_, [width]), 257: (long_, [height]),
            258: (short, [bits] * samples), 259: (short, [8 if deflate else 1]),
            262: (short, [photometric]), 266: (short, [fill_order]),
            277: (short, [samples]), 284: (short, [2 if separate else 1])}
    where, count = (324, 325) if tile else (273, 279)
    tags[where] = (long_, offsets)
    tags[count] = (long_, [len(piece) for piece in pieces])
    if tile:
        tags[322] = tags[323] = (short, [tile])
    else:
        tags[278] = (long_, [rows_per_strip])
    if extra_samples:
        tags[338] = (short, list(extra_samples))
    if palette is not None:
        tags[320] = (short, palette)
    if orientation is not None:
        tags[274] = (short, [orientation])
    entries = b""
    for tag, ((letter, kind), numbers) in sorted(tags.items()):
        data = struct.pack(f"{order}{len(numbers)}{letter}", *numbers)
        if len(data) > struct.calcsize(order + word):
            at = len(body)
            body += data + b"\0" * (len(data) % 2)
            data = struct.pack(order + word, at)
        entries += struct.pack(f"{order}HH{word}", tag, kind, len(numbers))
        entries += data.ljust(struct.calcsize(order + word), b"\0")
    directory = len(body)
    body += struct.pack(order + ("Q" if big else "H"), len(tags)) + entries
    body += struct.pack(order + word, 0)
    mark = b"II" if order == "<" else b"MM"
    header = mark + (struct.pack(order + "HHHQ", 43, 8, 0, directory) if big else
                     struct.pack(order + "HI", 42, directory))
    body[: len(header)] = header
    return bytes(body)


def tiff_kinds(draw):
    """Photometric interpretation, bits, samples and the tags they need."""
    for bits in (1, 2, 4, 8):
        yield 0, bits, 1, {}
        yield 1, bits, 1, {}
        colors = 3 << bits
        yield 3, bits, 1, {"palette": [
            int(value) for value in draw.integers(0, 65536, colors)]}
        yield 1, bits, 1, {"fill_order": 2}
    yield 1, 16, 1, {}
    yield 0, 16, 1, {}
    yield 1, 8, 2, {"extra_samples": (2,)}
    yield 2, 8, 3, {}
    yield 2, 16, 3, {}
    for bits in (8, 16):
        yield 2, bits, 4, {}
        for extra in (0, 1, 2):
            yield 2, bits, 4, {"extra_samples": (extra,)}
    yield 2, 8, 5, {"extra_samples": (1, 0)}
    yield 5, 8, 4, {}
    yield 5, 8, 5, {"extra_samples": (0,)}
    yield 5, 16, 4, {}


def tiff_files(draw):
    for number, (photometric, bits, samples, tags) in enumerate(tiff_kinds(draw)):
        for order, tile, deflate, size in itertools.product(
                "<>", (None, 16), (False, True), SIZES[2:]):
            if order == ">" and (bits, samples) == (16, 1) and photometric == 0:
                continue  # not Pillow's
            if order == ">" and bits == 16 and photometric == 5:
                continue
            if order == ">" and tags.get("fill_order") == 2 and bits == 16:
                continue
            if tile and not deflate:
                continue  # Pillow's raw decoder takes no tiles at the edge
            values = random_samples(draw, *size, samples, bits)
            yield (f"tiff_{number}_{photometric}_{bits}_{samples}_"
                   f"{ord(order)}_{tile}_{deflate}_{size[0]}.tif",
                   write_tiff(values, photometric, bits, order, tile,
                              deflate=deflate, **tags))
            # Pillow takes separate planes of these only.
            if samples in (3, 4) and deflate and photometric == 2 and tags:
                yield (f"separate_{number}_{bits}_{ord(order)}_{tile}_"
                       f"{size[0]}.tif",
                       write_tiff(values, photometric, bits, order, tile,
                                  separate=True, deflate=True, **tags))
    values = random_samples(draw, 50, 30, 3, 8)
    yield "separate_raw.tif", write_tiff(values, 2, 8, separate=True)
    yield "big.tif", write_tiff(values, 2, 8, big=True)


# ---- BMP, PGM, PPM -----------------------------------------------------------


def write_bmp(values, bits, palette=b"", masks=(), core=False, top_down=False,
              header=40):
    """Indices [h, w, 1] of up to 8 bits, else numbers [h, w, 1] of the pixels."""
    height, width, _ = values.shape
    if bits <= 8:
        rows = packed(values, bits)
    else:
        rows = [b"".join(int(pixel).to_bytes(bits // 8, "little")
                         for pixel in row[:, 0]) for row in values]
    rows = [row + b"\0" * (-len(row) % 4) for row in rows]
    pixels = b"".join(rows if top_down else rows[::-1])
    fields = b"".join(mask.to_bytes(4, "little") for mask in masks)
    if core:
        head = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        head = struct.pack("<IiiHHIIiiII", header, width, -height if top_down else height,
                           1, bits, 3 if masks else 0, len(pixels), 2835, 2835,
                           len(palette) // 4, 0)
        if header > 40:
            head += fields.ljust(header - 40, b"\0")
            fields = b""
    offset = 14 + len(head) + len(fields) + len(palette)
    return (b"BM" + struct.pack("<IHHI", offset + len(pixels), 0, 0, offset) + head +
            fields + palette + pixels)


def bmp_kinds(draw):
    """Bits and the options they need."""
    for bits in (1, 4, 8):
        colors = draw.integers(0, 256, (1 << bits, 4)).astype(numpy.uint8)
        yield bits, {"palette": colors.tobytes()}
        yield bits, {"palette": colors[:, :3].tobytes(), "core": True}
    gray = numpy.repeat(numpy.arange(256, dtype=numpy.uint8), 4)
    yield 8, {"palette": gray.tobytes(), "top_down": True}
    for bits in (16, 24, 32):
        yield bits, {}
        yield bits, {"top_down": True}
    yield 16, {"masks": (0xf800, 0x7e0, 0x1f)}
    yield 32, {"masks": (0xff000000, 0xff0000, 0xff00)}
    yield 32, {"masks": (0xff, 0xff00, 0xff0000, 0xff000000), "header": 124}


def bmp_files(draw, sizes):
    for (bits, options), (width, height) in itertools.product(
            list(bmp_kinds(draw)), sizes):
        values = draw.integers(0, 1 << bits, (height, width, 1))
        name = "_".join([f"bmp_of_{bits}_bits", *options]).replace("_palette", "")
        if "masks" in options:
            name += f"_{options['masks'][0]:x}"
        yield f"{name}_{width}x{height}", write_bmp(values, bits, **options)


def write_pnm(values, maximum, text=False, comment=False):
    height, width, samples = values.shape
    magic = {1: "52", 3: "63"}[samples][text]
    mark = '# made here\n' if comment else ''
    head = f"P{magic}\n{mark}{width} {height}\n{maximum}\n"
    if text:
        lines = (" ".join(map(str, row.reshape(-1))) for row in values)
        return (head + "\n".join(lines) + "\n").encode()
    kind = ">u2" if maximum > 255 else numpy.uint8
    return head.encode() + values.astype(kind).tobytes()


def pnm_files(draw, sizes, maxima=(1, 7, 100, 255, 256, 1000, 65535)):
    for samples, maximum, text, (width, height) in itertools.product(
            (1, 3), maxima, (False, True), sizes):
        values = draw.integers(0, maximum + 1, (height, width, samples))
        values.flat[-1] = 1  # of one digit: without it none is left
        yield (f"{'pgm' if samples == 1 else 'ppm'}_to_{maximum}{'_text' * text}"
               f"_{width}x{height}",
               write_pnm(values, maximum, text, comment=maximum == 100))


def saved(image, **options):
    file = io.BytesIO()
    image.save(file, **options)
    return file.getvalue()


def saved_files(photograph):
    """What Pillow and its libraries write of a photograph."""
    rgb = photograph.convert("RGB")
    alpha = rgb.convert("L").rotate(180)
    rgba = rgb.copy()
    rgba.putalpha(alpha)
    images = {
        "1": rgb.convert("1"), "L": rgb.convert("L"), "P": rgb.quantize(200),
        "LA": Image.merge("LA", (rgb.convert("L"), alpha)), "RGB": rgb,
        "RGBA": rgba, "CMYK": rgb.convert("CMYK"), "YCbCr": rgb.convert("YCbCr"),
        "I;16": Image.fromarray(numpy.asarray(rgb.convert("L"), numpy.uint16) * 3),
    }
    for mode in ("1", "L", "P", "LA", "RGB", "RGBA", "I;16"):
        yield f"saved_{mode}.png", saved(images[mode], format="PNG")
    for mode in ("L", "P", "RGB", "RGBA"):
        for quality, lossless in ((10, False), (90, False), (80, True)):
            yield f"saved_{mode}_{quality}.webp", saved(
                images[mode], format="WEBP", quality=quality, lossless=lossless)
    yield "exact.webp", saved(rgba, format="WEBP", lossless=True, exact=True)
    yield "animation.webp", saved(
        rgba, format="WEBP", save_all=True, append_images=[rgba.rotate(90)],
        background=(9, 8, 7, 255))
    for mode, method in itertools.product(
            ("1", "L", "P", "LA", "RGB", "RGBA", "CMYK", "I;16"),
            ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")):
        if method == "jpeg" and mode not in ("L", "RGB", "CMYK"):
            continue
        yield f"saved_{mode}_{method}.tif", saved(images[mode], format="TIFF",
                                                  compression=method)
    for mode, method in itertools.product(
            ("YCbCr",), ("jpeg", "tiff_lzw", "tiff_adobe_deflate")):
        yield f"saved_{mode}_{method}.tif", saved(images[mode], format="TIFF",
                                                  compression=method)
    for method in ("group3", "group4", "tiff_ccitt"):
        yield f"saved_{method}.tif", saved(images["1"], format="TIFF",
                                           compression=method)
    for predictor in (1, 2):
        yield f"predictor_{predictor}.tif", saved(
            rgb, format="TIFF", compression="tiff_lzw",
            tiffinfo={317: predictor})


def compare(probe, folder, name, data, comparison):
    path, raw = folder / name.replace(";", "_"), folder / "decoded"
    path.write_bytes(data)
    image = Image.open(path)
    try:
        image.load()
    except OSError:  # Pillow 11 on libtiff 4.7 takes no separate planes
        assert name.startswith("separate_"), name
        return
    for mode in ("RGB", "L"):
        # CMYK has no way to gray but by RGB.
        pillows = image.convert("RGB") if image.mode == "CMYK" else image
        pillows = numpy.asarray(pillows.convert(mode))
        pillows = pillows.reshape(image.height, image.width, -1)
        answer = probe.ask("decode", path, pillows.shape[2], raw)
        assert answer == "ok", f"{name}: {answer}"
        ours = numpy.fromfile(raw, numpy.uint8).reshape(pillows.shape)
        comparison.add(f"{name} as {mode}", ours, pillows)
    compare_values(probe, path, raw, image, name, comparison)
    path.unlink()


def compare_values(probe, path, raw, image, name, comparison):
    """The values of a mask, whole and by NEAREST, are those of Pillow's array."""
    if name.startswith("colour_4_bits_16"):
        return  # Pillow takes the high byte
    answer = probe.ask("decode", path, 2, raw)
    if image.mode in ("RGB", "RGBA", "CMYK", "YCbCr", "RGBX"):
        assert answer.startswith("a picture of colours"), f"{name}: {answer}"
        return
    assert answer == "ok", f"{name}: {answer}"
    if image.mode == "LA":  # its alpha is dropped
        image = image.getchannel(0)
    ours = numpy.fromfile(raw, numpy.uint16).astype(numpy.int64)
    comparison.add(f"{name}, values", ours.reshape(image.height, image.width),
                   numpy.asarray(image).astype(numpy.int64))
    if image.mode == "I;16":  # Pillow's NEAREST of it alone rounds otherwise
        image = image.convert("I")
    for width, height in NEAREST_SIZES:
        answer = probe.ask("mask", path, height, width, raw)
        assert answer == "ok", f"{name}: {answer}"
        pillows = image.resize((width, height), Image.NEAREST)
        comparison.add(f"{name}, nearest {width} x {height}",
                       numpy.fromfile(raw, numpy.int32).reshape(height, width),
                       numpy.asarray(pillows).astype(numpy.int64))


# ---- golden files ------------------------------------------------------------

TESTS = pathlib.Path(__file__).parent.parent


def golden_files(draw):
    for (color, bits), interlaced in itertools.product(PNG_KINDS, (False, True)):
        values = random_samples(draw, 13, 9, PNG_SAMPLES[color], bits)
        palette = None
        if color == 3:
            palette = draw.integers(0, 256, 3 << bits).astype(
                numpy.uint8).tobytes()
        yield (f"png_colour_{color}_of_{bits}_bits" + "_interlaced" * interlaced,
               write_png(values, color, bits, draw, interlaced, palette))
    names = {0: "white_is_zero", 1: "gray", 2: "rgb", 3: "palette", 5: "cmyk"}
    for number, (photometric, bits, samples, tags) in enumerate(tiff_kinds(draw)):
        values = random_samples(draw, 20, 9, samples, bits)
        kind = "".join(f"_{tag}_{tags[tag][0]}" if tag == "extra_samples" else
                       f"_{tag}" for tag in tags if tag != "palette")
        yield (f"tiff_{names[photometric]}_{samples}_of_{bits}_bits{kind}",
               write_tiff(values, photometric, bits, "<>"[photometric == 2],
                          16 if number % 3 == 0 else None,
                          deflate=number % 3 == 0, **tags))
    values = random_samples(draw, 20, 9, 3, 8)
    yield "tiff_separate", write_tiff(values, 2, 8, separate=True)
    yield "tiff_separate_tiles", write_tiff(
        random_samples(draw, 20, 9, 3, 16), 2, 16, tile=16, deflate=True,
        separate=True, extra_samples=())
    yield "tiff_big", write_tiff(values, 2, 8, big=True)
    small = Image.fromarray(numpy.asarray(
        random_samples(draw, 24, 17, 3, 8), numpy.uint8))
    for method in ("tiff_lzw", "packbits", "jpeg", "group3", "group4"):
        image = small.convert("1") if method.startswith("group") else small
        yield f"tiff_by_{method.replace('tiff_', '')}", saved(
            image, format="TIFF", compression=method)
    for method in ("jpeg", "tiff_lzw"):
        yield f"tiff_ycbcr_by_{method.replace('tiff_', '')}", saved(
            small.convert("YCbCr"), format="TIFF", compression=method)
    alpha = small.convert("L").rotate(180)
    rgba = small.copy()
    rgba.putalpha(alpha)
    for name, image in (("rgb", small), ("rgba", rgba)):
        yield f"webp_{name}", saved(image, format="WEBP", quality=50)
        yield f"webp_{name}_lossless", saved(image, format="WEBP", lossless=True)
    yield "webp_animation", saved(rgba, format="WEBP", save_all=True,
                                  append_images=[rgba.rotate(90)])
    yield "webp_orientation_8", saved(small, format="WEBP", exif=exif(8))
    yield "png_orientation_5_zlib_text", write_png(
        numpy.asarray(small), 2, 8, draw,
        extra=[(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(5000)))],
        late=[(b"eXIf", exif(5, ">"))])
    yield from bmp_files(draw, [(32, 3)])  # without padding, which may be cut off
    yield from pnm_files(draw, [(5, 3)], maxima=(100, 255, 1000))


def write_golden():
    lines = []
    for name, data in golden_files(numpy.random.default_rng(1)):
        (TESTS / "fuzz/corpus/decode" / name).write_bytes(data)
        image = Image.open(io.BytesIO(data))
        if image.mode == "CMYK":
            image = image.convert("RGB")
        checksums = [f"{zlib.crc32(image.convert(mode).tobytes()):08x}"
                     for mode in ("RGB", "L")]
        lines.append(f"{name} {image.height} {image.width} " + " ".join(checksums))
    (TESTS / "unit/decode_golden.txt").write_text("\n".join(lines) + "\n")


# ---- orientation -------------------------------------------------------------


def exif(orientation, order="<"):
    mark = b"II" if order == "<" else b"MM"
    return (mark + struct.pack(order + "HIH", 42, 8, 2) +
            struct.pack(order + "HHIHH", 274, 3, 1, orientation, 0) +
            struct.pack(order + "HHII", 282, 4, 1, 72) +
            struct.pack(order + "I", 0))


def oriented_files(photograph, draw):
    rgb = photograph.convert("RGB")
    values = numpy.asarray(rgb)
    for orientation, order in itertools.product(range(10), "<>"):
        block = exif(orientation, order)
        name = f"{orientation}_{ord(order)}"
        for progressive in (False, True):
            yield f"{name}_{progressive}.jpg", saved(
                rgb, format="JPEG", exif=b"Exif\0\0" + block,
                progressive=progressive)
        yield f"{name}.webp", saved(rgb, format="WEBP", exif=block)
        yield f"{name}_early.png", write_png(values, 2, 8, draw,
                                             extra=[(b"eXIf", block)])
        yield f"{name}_late.png", write_png(values, 2, 8, draw, interlaced=True,
                                            late=[(b"eXIf", block)])
        if 1 <= orientation <= 8:
            # Pillow 9.4 knows no big-endian BigTIFF.
            for big in {False, order == "<"}:
                yield f"{name}_{big}.tif", write_tiff(
                    values, 2, 8, order, big=big, orientation=orientation)
    yield "none.jpg", saved(rgb, format="JPEG")
    yield "damaged.webp", saved(rgb, format="WEBP", exif=exif(6)[:12])


def compare_upright(probe, folder, name, data, comparison):
    path, raw = folder / name, folder / "decoded"
    path.write_bytes(data)
    image = Image.open(path)
    image.load()
    if image.format != "TIFF":  # which Pillow turns when it loads it
        image = ImageOps.exif_transpose(image)
    for mode, exact in itertools.product(("RGB", "L"), (1, 0)):
        if name.endswith(".jpg") and (mode == "L" or not exact):
            continue  # gray of a JPEG is its Y; only exact is exact
        pillows = numpy.asarray(image.convert(mode))
        pillows = pillows.reshape(image.height, image.width, -1)
        answer = probe.ask("upright", path, *pillows.shape, exact, raw)
        assert answer == "ok", f"{name}: {answer}"
        ours = numpy.fromfile(raw, numpy.uint8).reshape(pillows.shape)
        comparison.add(f"{name} as {mode}, exact {exact}", ours, pillows)
    path.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("probe", nargs="?", help="the built resize_probe")
    parser.add_argument("--write-golden", action="store_true")
    arguments = parser.parse_args()
    if arguments.write_golden:
        write_golden()
        return 0
    draw = numpy.random.default_rng(7)
    folder_of_pictures = pathlib.Path(PICTURES)
    photograph = Image.open(folder_of_pictures / "nature/FreshFlower.jpg")
    photograph = photograph.convert("RGB").resize((331, 207))
    passed = []
    probe = Probe(arguments.probe)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for what, files in (
                ("PNG", png_files(draw)), ("TIFF", tiff_files(draw)),
                ("BMP", bmp_files(draw, SIZES)), ("PGM, PPM", pnm_files(draw, SIZES)),
                ("saved by Pillow", saved_files(photograph)),
                ("mate-backgrounds",
                 ((path.name, path.read_bytes())
                  for path in sorted(folder_of_pictures.rglob("*.png"))))):
            comparison = Comparison(allowed=0)
            for name, data in files:
                compare(probe, folder, name, data, comparison)
            passed.append(comparison.report(what))
        comparison = Comparison(allowed=0)
        small = photograph.resize((61, 37))
        for name, data in oriented_files(small, draw):
            compare_upright(probe, folder, name, data, comparison)
        passed.append(comparison.report("orientation"))
    probe.close()
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
