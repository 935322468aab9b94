#!/usr/bin/env python3
"""Draws BoB's rate beside other programs' as an SVG, from the results that are kept here.

    plot_bob.py [-o tests/benchmark/results/h200/bob.svg]

Ours: results/h200/hopper_bob_*.json. Others: results/h200/other_programs.json. Rates are on the same count, 15 products
over the visible pairs.
"""

import argparse
import json
import pathlib

RESULTS = pathlib.Path(__file__).parent / "results" / "h200"
OURS = "FlashBoB Server"
COLOURS = {OURS: "#1b7837", "FlashBoB (Triton)": "#7fbf7b", "FlashBack (Pallas)": "#af8dc3"}
PRODUCTS = 15
BAR, GAP, LEFT, RIGHT, SCALE = 16, 14, 190, 120, 0.75  # pixels; pixels a TFLOP/s


def tflops(shape, mask, ms):
    """The rate of a square problem."""
    batch, heads, length, dim = shape
    pairs = length * (length + 1) / 2 if mask == "c" else length * length
    return PRODUCTS * 2 * batch * heads * pairs * dim / ms / 1e9


def read():
    """{(shape, mask): {program: ms}}, of shapes that another program was measured at."""
    bars = {}
    for row in json.loads((RESULTS / "other_programs.json").read_text())["rows"]:
        bars.setdefault((tuple(row["shape"]), row["mask"]), {})[row["program"]] = row["ms"]
    for name in ("hopper_bob_ratios.json", "hopper_bob_shapes.json"):
        for row in json.loads((RESULTS / name).read_text())["rows"]:
            key = (tuple(row["shape"]), row["mask"])
            if key in bars and row["kv_heads"] == row["shape"][1]:
                bars[key] = {OURS: row["flashbob"][0]["ms"], **bars[key]}
    return bars


def draw(bars):
    """The SVG's text."""
    lines = []
    y = 56
    for (shape, mask), programs in bars.items():
        middle = y + len(programs) * BAR / 2 + 4
        label = ",".join(map(str, shape)) + (" causal" if mask == "c" else " full")
        lines.append(f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end">{label}</text>')
        for program, ms in programs.items():
            rate = tflops(shape, mask, ms)
            width = rate * SCALE
            lines.append(f'<rect x="{LEFT}" y="{y}" width="{width:.0f}" height="{BAR - 2}" fill="{COLOURS[program]}"/>')
            lines.append(f'<text x="{LEFT + width + 6:.0f}" y="{y + 11}">{ms:.3g} ms, {rate:.0f}</text>')
            y += BAR
        y += GAP
    legend = []
    x = LEFT
    for program, colour in COLOURS.items():
        legend.append(f'<rect x="{x}" y="30" width="12" height="12" fill="{colour}"/>')
        legend.append(f'<text x="{x + 16}" y="40">{program}</text>')
        x += 150
    width = LEFT + round(700 * SCALE) + RIGHT
    title = "Backward over backward on one H200, bf16: time, and TFLOP/s on 15 products (B,H,N,D)"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" font-family="sans-serif" '
            'font-size="11">',
            f'<rect width="{width}" height="{y}" fill="white"/>',
            f'<text x="12" y="18" font-size="13">{title}</text>',
            *legend,
            *lines,
            "</svg>",
            "",
        ]
    )


def main():
    """Reads, draws, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=RESULTS / "bob.svg")
    parser.parse_args().output.write_text(draw(read()))


if __name__ == "__main__":
    main()
