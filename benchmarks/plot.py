"""Line plots as plain SVG, on logarithmic axes, without a plotting library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 400, 70, 40, 190, 50
COLOURS: Final = ("#4053d3", "#ddb310", "#b51d14", "#00beff", "#fb49b0", "#00b25d")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot and its points."""

    name: str
    points: Sequence[tuple[float, float]]


def write_plot(path: Path, title: str, x_name: str, lines: Sequence[Line]) -> None:
    """Draw lines over decades of both axes."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points if y > 0]
    x0, x1 = math.log10(min(xs)), math.log10(max(xs))
    y0, y1 = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x0) / ((x1 - x0) or 1)
        up = (math.log10(max(y, 10.0**y0)) - y0) / ((y1 - y0) or 1)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for decade in range(y0, y1 + 1):
        _, y = at(xs[0], 10.0**decade)
        out += [
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**decade:g}</text>',
        ]
    for x in sorted(set(xs)):
        left, _ = at(x, 10.0**y0)
        out.append(f'<text x="{left:.1f}" y="{HEIGHT - 28}" text-anchor="middle">{x:,.0f}</text>')
    middle = (WIDTH + LEFT - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_name)}</text>')
    for line, colour in zip(lines, COLOURS, strict=False):
        spots = [at(x, y) for x, y in line.points]
        path_of = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        out.append(f'<polyline points="{path_of}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots]
        name_at = TOP + 20 * lines.index(line)
        out += [
            f'<rect x="{WIDTH - RIGHT + 12}" y="{name_at - 2}" width="18" height="4" fill="{colour}"/>',
            f'<text x="{WIDTH - RIGHT + 36}" y="{name_at + 4}">{escape(line.name)}</text>',
        ]
    path.write_text("\n".join([*out, "</svg>\n"]))
