"""Charts as inline SVG, for reports that are one file: lines over time, bars side by side, nothing to load.

Colours come from the page's own style (`--c0` to `--c7` and so on), so that a chart is right on light and dark pages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

SERIES_MAX = 8
_WIDTH, _HEIGHT = 880, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 16, 14, 34
_ROW, _BAR = 30, 18
_LABEL_WIDTH = 250
_TICKS = 4
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Series:
    """One line: times (Unix milliseconds) and values."""

    name: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a bar chart: parts of one length, each beside the other."""

    name: str
    values: Sequence[float]
    remark: str = ""


def line_chart(series: Sequence[Series], *, unit: Callable[[float], str], from_zero: bool) -> str:
    """Lines over time with a legend; the empty text for no points. `unit` writes a value for people."""
    drawn = [one for one in series if one.points][:SERIES_MAX]
    if not drawn:
        return ""
    times = [time for one in drawn for time, _ in one.points]
    values = [value for one in drawn for _, value in one.points]
    first, last = min(times), max(times)
    low = 0.0 if from_zero else min(values)
    high = max(values)
    high = high if high > low else low + 1

    def x(time: int) -> float:
        share = (time - first) / (last - first) if last > first else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        share = (value - low) / (high - low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_opening(_WIDTH, _HEIGHT)]
    for tick in range(_TICKS + 1):
        value = low + (high - low) * tick / _TICKS
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(unit(value))}</text>'
        )
        time = first + (last - first) * tick // _TICKS
        anchor = ("start", "middle", "middle", "middle", "end")[tick]
        if last > first or tick == 2:
            parts.append(
                f'<text x="{x(time):.1f}" y="{_HEIGHT - 10}" text-anchor="{anchor}">'
                f"{_time(time, last - first)}</text>"
            )
    for number, one in enumerate(drawn):
        points = " ".join(f"{x(time):.1f},{y(value):.1f}" for time, value in one.points)
        parts.append(f'<polyline class="line s{number}" points="{points}"/>')
        parts += [
            f'<circle class="dot s{number}" cx="{x(time):.1f}" cy="{y(value):.1f}" r="2.5">'
            f"<title>{escape(one.name)}: {escape(unit(value))}, {_time(time, 0)}</title></circle>"
            for time, value in one.points
        ]
    parts.append("</svg>")
    return "".join(parts) + _legend([one.name for one in drawn])


def bar_chart(bars: Sequence[Bar], *, legend: Sequence[str], unit: Callable[[float], str]) -> str:
    """Horizontal bars, the values of a row above each other; the empty text for no bars."""
    if not bars:
        return ""
    longest = max(max(bar.values) for bar in bars) or 1
    depth = max(len(bar.values) for bar in bars)
    row = _ROW + (depth - 1) * _BAR // 2
    height = row * len(bars) + 8
    parts = [_opening(_WIDTH, height)]
    room = _WIDTH - _LABEL_WIDTH - 150
    for number, bar in enumerate(bars):
        top = number * row + 6
        parts.append(
            f'<text x="{_LABEL_WIDTH - 10}" y="{top + row / 2:.1f}" text-anchor="end">'
            f"{escape(_short(bar.name))}<title>{escape(bar.name)}</title></text>"
        )
        thickness = (row - 8) / depth
        for place, value in enumerate(bar.values):
            width = max(1.0, value / longest * room)
            y = top + place * thickness
            parts.append(
                f'<rect class="bar s{place}" x="{_LABEL_WIDTH}" y="{y:.1f}" rx="2"'
                f' width="{width:.1f}" height="{thickness - 2:.1f}"/>'
            )
        widest = max(bar.values) / longest * room
        said = ", ".join(unit(value) for value in bar.values) + bar.remark
        parts.append(
            f'<text x="{_LABEL_WIDTH + widest + 8:.1f}" y="{top + row / 2:.1f}">{escape(said)}</text>'
        )
    parts.append("</svg>")
    return "".join(parts) + (_legend(legend) if len(legend) > 1 else "")


def _opening(width: int, height: int) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'


def _legend(names: Sequence[str]) -> str:
    entries = "".join(
        f'<span><i class="s{number}"></i>{escape(name)}</span>' for number, name in enumerate(names)
    )
    return f'<p class="legend">{entries}</p>'


def _short(name: str) -> str:
    return name if len(name) <= 34 else f"{name[:15]}…{name[-18:]}"


def _time(time_ms: int, span_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    if not span_ms:
        return moment.strftime("%Y-%m-%d %H:%M UTC")
    return moment.strftime("%H:%M" if span_ms < _DAY_MS else "%Y-%m-%d")
