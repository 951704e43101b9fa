"""Draws what bench/peers.py measured: samples/s per peer and number of
consumers, one panel per workload, as an SVG that needs no library and no font.

The background is part of the picture, so that it is legible on a dark page
too. Run by bench/peers.py.
"""

from html import escape

COLORS = ["#b9d3ee", "#7fb0df", "#3f86c6", "#1b4f8a"]  # few consumers to many
OURS = ["#f6c99a", "#f0a35a", "#e07b1f", "#a9530a"]
INK, FAINT, PAPER = "#1c2530", "#d5dbe3", "#ffffff"
BAR, GAP, ROW_GAP = 8, 1, 10
NAMES, PANEL, MARGIN, TOP = 190, 330, 24, 96
TITLES = {
    "divided": "divided: each sample to one consumer",
    "shared": "shared: every consumer takes every sample",
}


def round_step(top):
    """A round number of which three to six reach top."""
    step = 10 ** len(str(int(max(top, 1))))
    for divisor in (2, 4, 5, 10, 20, 25, 40, 50, 100):
        if top / (step / divisor) >= 3:
            return step / divisor
    return step


def panel(rows, titles, counts, left, row_height, parts):
    top_rate = max((row["samples_per_s"] for row in rows.values()), default=1)
    scale = PANEL / (top_rate * 1.12)
    bottom = TOP + len(titles) * row_height
    step = round_step(top_rate)
    tick = 0.0
    while tick * scale <= PANEL:
        x = left + tick * scale
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" '
                     f'y2="{bottom}" stroke="{FAINT}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" '
                     f'text-anchor="middle">{tick:,.0f}</text>')
        tick += step
    parts.append(f'<text x="{left + PANEL / 2}" y="{bottom + 34}" '
                 'text-anchor="middle">samples/s, all consumers together'
                 '</text>')
    for number, name in enumerate(titles):
        y = TOP + number * row_height
        found = [(i, rows[name, count]) for i, count in enumerate(counts)
                 if (name, count) in rows]
        if not found:
            parts.append(f'<text x="{left + 4}" y="{y + row_height / 2:.1f}" '
                         f'fill="#6b7785">not offered or not available</text>')
        for i, row in found:
            colors = OURS if name == "penstock" else COLORS
            color = colors[min(i + 4 - min(len(counts), 4), 3)]
            width = row["samples_per_s"] * scale
            at = y + i * (BAR + GAP)
            parts.append(f'<rect x="{left}" y="{at}" width="{width:.1f}" '
                         f'height="{BAR}" fill="{color}"><title>'
                         f'{escape(row["title"])}, {row["consumers"]} '
                         f'consumers: {row["samples_per_s"]:,.0f} samples/s'
                         '</title></rect>')
            spread = row.get("samples_per_s_spread", 0) * scale
            parts.append(f'<line x1="{left + width - spread:.1f}" '
                         f'x2="{left + width + spread:.1f}" y1="{at + BAR / 2}"'
                         f' y2="{at + BAR / 2}" stroke="{INK}"/>')
            if i == len(counts) - 1:
                parts.append(f'<text x="{left + width + spread + 4:.1f}" '
                             f'y="{at + BAR}" font-size="10">'
                             f'{row["samples_per_s"]:,.0f}</text>')


def draw(result):
    """SVG text of the JSON of bench/peers.py."""
    rows = {workload: {(row["peer"], row["consumers"]): row
                       for row in result["rows"]
                       if row["workload"] == workload}
            for workload in TITLES}
    workloads = [workload for workload in TITLES if rows[workload]]
    counts = sorted({row["consumers"] for row in result["rows"]})
    titles = {name: peer["title"] for name, peer in result["peers"].items()}
    row_height = len(counts) * (BAR + GAP) + ROW_GAP
    width = MARGIN * 2 + NAMES + len(workloads) * (PANEL + MARGIN)
    height = TOP + len(titles) * row_height + 74
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
        f'<text x="{MARGIN}" y="30" font-size="17" font-weight="bold">'
        'Photographs to batches: Penstock and what people use instead</text>',
    ]
    parts.append(f'<text x="{MARGIN}" y="52">consumers:</text>')
    for i, count in enumerate(counts):
        x = MARGIN + 76 + i * 58
        shade = min(i + 4 - min(len(counts), 4), 3)
        parts.append(f'<rect x="{x}" y="43" width="10" height="10" '
                     f'fill="{OURS[shade]}"/><rect x="{x + 11}" y="43" '
                     f'width="10" height="10" fill="{COLORS[shade]}"/>'
                     f'<text x="{x + 26}" y="52">{count}</text>')
    for number, name in enumerate(titles):
        y = TOP + number * row_height + (row_height - ROW_GAP) / 2 + 4
        weight = ' font-weight="bold"' if name == "penstock" else ""
        parts.append(f'<text x="{MARGIN + NAMES - 10}" y="{y:.1f}" '
                     f'text-anchor="end"{weight}>{escape(titles[name])}'
                     '</text>')
    for number, workload in enumerate(workloads):
        left = MARGIN + NAMES + number * (PANEL + MARGIN)
        parts.append(f'<text x="{left}" y="{TOP - 14}" font-weight="bold">'
                     f'{TITLES[workload]}</text>')
        panel(rows[workload], titles, counts, left, row_height, parts)
    parts.append(
        f'<text x="{MARGIN}" y="{height - 14}" font-size="10" fill="#4b5764">'
        f'{escape(result["machine"])}; CPU only; {escape(result["data"])}; '
        f'batch {result["batch"]}, {result["dtype"]}; mean of '
        f'{result["interleaved_runs"]} interleaved runs, lines: standard '
        f'deviation; {result["date"]}'
        '</text>')
    parts.append("</svg>\n")
    return "\n".join(parts)
