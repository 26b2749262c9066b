"""Medians of the rounds, ours over theirs, beside what is wanted: as a table, as rows of the history, as a picture.

The picture is SVG, a bar for each comparison on a logarithmic scale. Bars that go right are in our favour, whether more
or less is better; the mark is the target.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.peers.cases import TARGETS, Target
from benchmarks.peers.runs import Results


@dataclass(frozen=True)
class Comparison:
    """One target and how it came out."""

    target: Target
    ours: float
    theirs: float
    rounds: int
    spread: float
    """Largest over smallest of our rounds: how much of a ratio the machine may have made."""

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.theirs else 0.0

    @property
    def is_met(self) -> bool:
        return self.target.is_met(self.ratio)


def compare(results: Results) -> list[Comparison]:
    """Of every target that has figures on both sides."""
    found: list[Comparison] = []
    for target in TARGETS:
        ours = results.get((target.ours, target.case, target.figure))
        theirs = results.get((target.peer, target.peer_case or target.case, target.figure))
        if not ours or not theirs:
            continue
        found.append(
            Comparison(
                target,
                statistics.median(ours),
                statistics.median(theirs),
                min(len(ours), len(theirs)),
                max(ours) / min(ours) if min(ours) > 0 else 0.0,
            )
        )
    return found


def table(comparisons: Sequence[Comparison]) -> str:
    wide = max((len(one.target.name) for one in comparisons), default=0)
    lines = [
        f"{'what':<{wide}} {'ours':>11} {'theirs':>11} {'unit':<5} {'ratio':>7} {'wanted':>8}  spread"
    ]
    for one in comparisons:
        sign = ">=" if one.target.large else "<="
        goal = one.target.wanted
        wanted = f"{sign}{goal:>5.2g}x" if goal is not None else " " * 8
        verdict = "" if one.is_met else "  MISSED"
        lines.append(
            f"{one.target.name:<{wide}} {one.ours:>11.4g} {one.theirs:>11.4g} {one.target.unit:<5} "
            f"{one.ratio:>6.2f}x {wanted}  {one.spread:>5.2f}{verdict}"
        )
    wanted_ones = [one for one in comparisons if one.target.wanted is not None]
    met = sum(one.is_met for one in wanted_ones)
    lines.append(f"{met} of {len(wanted_ones)} met; medians of {rounds_of(comparisons)} rounds")
    return "\n".join(lines)


def rounds_of(comparisons: Sequence[Comparison]) -> int:
    return min((one.rounds for one in comparisons), default=0)


def history_rows(comparisons: Sequence[Comparison]) -> list[dict[str, object]]:
    """As every benchmark keeps its rows: `limit` is the peer's figure."""
    return [
        {
            "name": one.target.name,
            "value": one.ours,
            "unit": one.target.unit,
            "limit": one.theirs,
            "ratio": one.ratio,
            "wanted": one.target.wanted,
            "rounds": one.rounds,
        }
        for one in comparisons
    ]


_LABELS, _BARS, _NUMBERS, _LINE = 400, 480, 190, 22
_DECADES_LEFT, _DECADES_RIGHT = 1.0, 2.0
_SCALE = _BARS / (_DECADES_LEFT + _DECADES_RIGHT)
_GRID = (0.1, 0.5, 1, 2, 5, 10, 50, 100)
_MET, _MISSED, _INK, _PALE = "#2a7f62", "#c0562f", "#222222", "#d8d8d8"


def advantage(one: Comparison) -> float:
    """How many times better we are."""
    if one.ratio <= 0:
        return 1.0
    return one.ratio if one.target.large else 1 / one.ratio


def position(times: float) -> float:
    decades = max(-_DECADES_LEFT, min(_DECADES_RIGHT, math.log10(times)))
    return _LABELS + (decades + _DECADES_LEFT) * _SCALE


def draw(comparisons: Sequence[Comparison], *, caption: str) -> str:
    """The text of the picture."""
    height = _LINE * (len(comparisons) + 3)
    width = _LABELS + _BARS + _NUMBERS
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'font-family="sans-serif" font-size="12" fill="{_INK}">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
        (
            f'<text x="8" y="16" font-size="14">{escape(caption)}, medians of {rounds_of(comparisons)}'
            " rounds: times better</text>"
        ),
    ]
    for times in _GRID:
        x = position(times)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_LINE * 1.8:.0f}" y2="{height - 4}" '
            f'stroke="{_INK if times == 1 else _PALE}"/>'
            f'<text x="{x:.1f}" y="{_LINE * 1.6:.0f}" text-anchor="middle">{times:g}</text>'
        )
    for number, one in enumerate(comparisons):
        parts += _bar(one, _LINE * (number + 2))
    return "\n".join([*parts, "</svg>", ""])


def _bar(one: Comparison, top: float) -> list[str]:
    times = advantage(one)
    start, end = sorted((position(1), position(times)))
    goal = one.target.wanted or 1.0
    mark = position(goal if one.target.large else 1 / goal)
    text = top + _LINE * 0.7
    return [
        f'<text x="{_LABELS - 8}" y="{text:.1f}" text-anchor="end">{escape(one.target.name)}</text>',
        (
            f'<rect x="{start:.1f}" y="{top + 4:.1f}" width="{max(1.0, end - start):.1f}" '
            f'height="{_LINE - 8}" fill="{_MET if one.is_met else _MISSED}"/>'
        ),
        (
            f'<line x1="{mark:.1f}" x2="{mark:.1f}" y1="{top + 1:.1f}" y2="{top + _LINE - 1:.1f}" '
            f'stroke="{_INK}" stroke-width="2"/>'
        ),
        (
            f'<text x="{_LABELS + _BARS + 8}" y="{text:.1f}">'
            f"{one.ours:.4g} of {one.theirs:.4g} {escape(one.target.unit)}</text>"
        ),
    ]
