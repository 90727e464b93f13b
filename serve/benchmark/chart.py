"""Results as pictures: one SVG, a panel for each quantity, both axes logarithmic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serve.benchmark.published import Rate, Row
    from serve.benchmark.results import Point, Results

# Okabe and Ito's palette, which colour-blind people can tell apart.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 380, 240, 64, 60, 56
_STYLE = "text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#111}"
_LEAST = 256
"""The depth at which a point without context is drawn."""
PANELS = (
    ("prefill", "prefill, tokens/s"),
    ("decode", "decode of all requests, tokens/s"),
    ("decode_request", "decode of one request, tokens/s"),
    ("peak", "best second, tokens/s"),
    ("first_token_ms", "first token, ms"),
)


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    length: float

    def at(self, value: float) -> float:
        span = math.log(self.high / self.low)
        return self.start + self.length * math.log(max(value, self.low) / self.low) / span


def _decades(values: Sequence[float]) -> tuple[float, float]:
    positive = [value for value in values if value > 0] or [1.0, 10.0]
    low = 10 ** math.floor(math.log10(min(positive)))
    high = 10 ** math.ceil(math.log10(max(positive)))
    return low, high if high > low else low * 10


def _theirs(rows: Sequence[Row], field: str) -> list[tuple[Row, Rate]]:
    names = {"prefill": "prefill", "decode": "decode"}
    if field not in names:
        return []
    return [(row, rate) for row in rows for rate in getattr(row, names[field])]


def _text(x: float, y: float, words: str, extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escape(words)}</text>'


def _panel(
    points: Sequence[Point], rows: Sequence[Row], field: str, title: str, x0: float, y0: float
) -> list[str]:
    theirs = _theirs(rows, field)
    values = [getattr(p, field) for p in points] + [rate.rate for _, rate in theirs]
    depths = [max(p.depth, _LEAST) for p in points] + [r.depth or _LEAST for _, r in theirs]
    low, high = _decades(values)
    x = _Scale(_LEAST / 1.5, max(*depths, _LEAST * 4) * 1.5, x0, _WIDTH)
    y = _Scale(low, high, y0 + _HEIGHT, -_HEIGHT)
    body = [
        f'<rect x="{x0}" y="{y0}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#999"/>',
        _text(x0, y0 - 8, title),
    ]
    step = low
    while step <= high * 1.001:
        body.append(
            f'<line x1="{x0}" x2="{x0 + _WIDTH}" y1="{y.at(step):.1f}" y2="{y.at(step):.1f}" '
            'stroke="#ddd"/>'
        )
        body.append(_text(x0 - 6, y.at(step) + 4, f"{step:g}", ' text-anchor="end"'))
        step *= 10
    for depth in sorted(set(depths)):
        label = "0" if depth == _LEAST else f"{depth / 1024:g}K"
        body.append(_text(x.at(depth), y0 + _HEIGHT + 14, label, ' text-anchor="middle"'))
    for number, concurrency in enumerate(sorted({p.concurrency for p in points})):
        colour = _COLOURS[number % len(_COLOURS)]
        line = sorted((p for p in points if p.concurrency == concurrency), key=lambda p: p.depth)
        at = [(x.at(max(p.depth, _LEAST)), y.at(getattr(p, field))) for p in line]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in at)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        body += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}">'
            f"<title>{getattr(p, field):g} at {p.depth:,}, {concurrency} requests</title></circle>"
            for (a, b), p in zip(at, line, strict=True)
        ]
    for row, rate in theirs:
        a, b = x.at(rate.depth or _LEAST), y.at(rate.rate)
        told = f"theirs: {row.stack}, {rate.concurrency} requests: {rate.rate:g}"
        body.append(
            f'<path d="M{a - 5:.1f} {b:.1f}L{a:.1f} {b - 5:.1f}L{a + 5:.1f} {b:.1f}'
            f'L{a:.1f} {b + 5:.1f}Z" fill="#fff" stroke="#111"><title>{escape(told)}</title></path>'
        )
    return body


def render(results: Results, rows: Sequence[Row]) -> str:
    """Return the SVG; the same bytes for the same results."""
    inputs = results.inputs
    head = f"{inputs.profile} on {inputs.device}, {results.made:%Y-%m-%d}, {results.tool}"
    body = [_text(8, 18, head)]
    x = 8.0
    for number, concurrency in enumerate(sorted({p.concurrency for p in results.points})):
        colour = _COLOURS[number % len(_COLOURS)]
        body.append(f'<circle cx="{x + 6:.1f}" cy="32" r="4" fill="{colour}"/>')
        body.append(_text(x + 16, 36, f"{concurrency} requests"))
        x += 110
    if rows:
        body.append(f'<path d="M{x + 1} 32l5 -5l5 5l-5 5Z" fill="#fff" stroke="#111"/>')
        body.append(_text(x + 16, 36, "published by others, not measured here"))
    for number, (field, title) in enumerate(PANELS):
        column, line = number % 2, number // 2
        x0 = _LEFT + column * (_WIDTH + _LEFT + 12)
        y0 = _TOP + 12 + line * (_HEIGHT + _GAP)
        body += _panel(results.points, rows, field, title, x0, y0)
    width = 2 * (_WIDTH + _LEFT) + 28
    height = _TOP + 3 * (_HEIGHT + _GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>{escape(head)}</title>\n<style>{_STYLE}</style>\n"
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )
