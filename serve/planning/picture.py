"""Plans as a picture: what lies on the card for each type of KV cache, as an SVG."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from serve.planning.plan import CONTEXT_BYTES
from serve.planning.table import gib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serve.planning.plan import Plan

# Okabe and Ito's palette, which colour-blind people can tell apart; lightened to carry black text.
_PARTS = (
    ("weights", "#7aa6d8"),
    ("states", "#f2c66b"),
    ("tokens", "#7fd1ae"),
    ("graphs", "#e5b5d0"),
    ("CUDA", "#c8c8c8"),
)
_LEFT, _WIDTH, _ROW, _TOP = 90, 640, 34, 64
_STYLE = "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#111}"


def _sizes(plan: Plan) -> list[int]:
    pool = plan.pool
    states = min(plan.asked.sequences * pool.sequence_state_bytes, plan.pin) if pool else 0
    return [plan.weights, states, plan.pin - states, plan.asked.graphs, CONTEXT_BYTES]


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:g}" y="{y:g}">{escape(words)}</text>'


def render(plans: Sequence[Plan]) -> str:
    """Return an SVG of plans that differ in their KV cache's type; the same bytes each time."""
    first = plans[0]
    most = max(first.card.memory, *(plan.need for plan in plans))
    scale = _WIDTH / most
    body = [_text(8, 20, f"{first.model} on {first.card.name}, {first.asked.context:,} tokens")]
    x = float(_LEFT)
    for name, colour in _PARTS:
        body.append(f'<rect x="{x:g}" y="32" width="12" height="12" fill="{colour}"/>')
        body.append(_text(x + 16, 42, name))
        x += 100
    for number, plan in enumerate(plans):
        y = _TOP + number * _ROW
        body.append(_text(8, y + 18, plan.asked.caching.kv))
        at = float(_LEFT)
        for (name, colour), part in zip(_PARTS, _sizes(plan), strict=True):
            body.append(
                f'<rect x="{at:.1f}" y="{y}" width="{part * scale:.1f}" height="26" '
                f'fill="{colour}"><title>{name}: {gib(part)}</title></rect>'
            )
            at += part * scale
        tokens = f"{plan.pool.tokens:,} tokens" if plan.pool else "no pool"
        body.append(_text(_LEFT + _WIDTH + 12, y + 18, tokens))
    edge = _LEFT + first.card.memory * scale
    bottom = _TOP + len(plans) * _ROW
    body.append(
        f'<line x1="{edge:.1f}" y1="{_TOP - 8}" x2="{edge:.1f}" y2="{bottom}" '
        'stroke="#b00" stroke-width="2" stroke-dasharray="5 3"/>'
    )
    body.append(_text(edge - 120, bottom + 16, f"card: {gib(first.card.memory)}"))
    size = f'width="{_LEFT + _WIDTH + 150}" height="{bottom + 28}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n'
        "<title>What lies on the card, by the type of the KV cache</title>\n"
        f"<style>{_STYLE}</style>\n"
        '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )
