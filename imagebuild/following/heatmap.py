"""The status as a picture: an SVG, the same bytes for the same status, readable without colours."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from imagebuild.following.status import CONFLICT
from imagebuild.following.statustable import SHORT

if TYPE_CHECKING:
    from imagebuild.following.matrix import Matrix

# Okabe and Ito's palette, which colour-blind people can tell apart; lightened to carry black text.
COLOURS = {
    "applies": "#7fd1ae",
    "already applied": "#9bd3f2",
    "upstreamed": "#7aa6d8",
    "drifted": "#f2c66b",
    "target gone": "#e08a63",
    "partial": "#e5b5d0",
    CONFLICT: "#d9534f",
}
_CELL, _ROW, _TOP, _GAP, _CHARACTER = 84, 26, 34, 14, 7.2
_CENTRED = ' text-anchor="middle" pointer-events="none"'
_STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#111}"
    ".line{font-weight:bold}.own{stroke:#111;stroke-width:2}"
)


def _text(x: float, y: float, words: str, extra: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{extra}>{escape(words)}</text>'


def render(matrix: Matrix) -> str:
    """Return the status as an SVG document."""
    first = matrix.releases[0]
    patches = {row.line: list(row.columns[first].cells) for row in matrix.rows}
    longest = max([len(name) for names in patches.values() for name in names], default=8)
    left = longest * _CHARACTER + 16
    width = left + len(matrix.releases) * _CELL + 8
    body: list[str] = []
    y = float(_TOP)
    for number, release in enumerate(matrix.releases):
        body.append(_text(left + number * _CELL + _CELL / 2, 20, release, _CENTRED))
    for row in matrix.rows:
        body.append(_text(8, y + 17, row.line, ' class="line"'))
        y += _ROW
        for patch in patches[row.line]:
            body.append(_text(8, y + 17, patch))
            for number, release in enumerate(matrix.releases):
                cell = row.columns[release].cells[patch]
                x = left + number * _CELL
                own = ' class="own"' if row.line == f"v{release}" else ""
                body.append(
                    f'<rect x="{x + 1:g}" y="{y + 1:g}" width="{_CELL - 2}" height="{_ROW - 2}" '
                    f'fill="{COLOURS[cell.outcome]}"{own}>'
                    f"<title>{escape(f'{patch} on {release}: {cell.reason}')}</title></rect>"
                )
                body.append(_text(x + _CELL / 2, y + 17, SHORT[cell.outcome], _CENTRED))
            y += _ROW
        y += _GAP
    size = f'width="{width:g}" height="{y:g}" viewBox="0 0 {width:g} {y:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n'
        "<title>What every patch meets in every release</title>\n"
        f"<style>{_STYLE}</style>\n"
        f'<rect width="{width:g}" height="{y:g}" fill="#fff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )
