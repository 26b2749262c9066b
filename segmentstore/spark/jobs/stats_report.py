"""The report of the `stats` job: one HTML file with its style and its charts inside, and nothing to load. Pure.

Charts are inline SVG: lines over time (`line_chart`) and bars side by side (`bar_chart`). Their colours come from the
page's style (`--c0` to `--c7` and so on), so that a chart is right on light and dark pages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from segmentstore.spark.jobs.stream_statistics import StreamStatistics

SERIES_MAX = 8
_STREAMS_CHARTED_MAX = 24
_SEGMENTS_CHARTED_MAX = 16
_SIZE_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_COMPRESSIONS = {0: "none", 1: "LZ4", 2: "zstd"}
_CHART_WIDTH, _CHART_HEIGHT = 880, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 16, 14, 34
"""Margins of a line chart."""
_BAR_ROW_HEIGHT, _BAR_HEIGHT = 30, 18
_BAR_LABEL_WIDTH = 250
_AXIS_TICKS = 4
_DAY_MS = 86_400_000
_PAGE_STYLE = """
:root{--bg:#fbfbfa;--ink:#1d2327;--dim:#68737b;--line:#dfe3e6;--card:#fff;--c0:#2563a8;--c1:#d97a1f;--c2:#3f8f5b;
--c3:#a8447c;--c4:#7a62c4;--c5:#b8912b;--c6:#2f96a3;--c7:#8c5a3c}
@media(prefers-color-scheme:dark){:root{--bg:#15191c;--ink:#e6eaec;--dim:#95a1a8;--line:#2c3439;--card:#1c2226;
--c0:#6ba4e0;--c1:#eba45b;--c2:#74c08f;--c3:#d985b4;--c4:#a994ea;--c5:#dcbb62;--c6:#6fc7d2;--c7:#c2906f}}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:960px;margin:0 auto;padding:32px 24px 64px}
h1{font-size:26px;margin:0}h2{font-size:18px;margin:0 0 12px}p{margin:0 0 12px}.dim{color:var(--dim)}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:18px 20px;margin-top:20px}
.figures{display:flex;flex-wrap:wrap;gap:12px 36px;margin-top:20px}.figures b{display:block;font-size:24px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}.scroll{overflow-x:auto}
th,td{padding:5px 10px 5px 0;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{color:var(--dim);font-weight:500}
svg{width:100%;height:auto;display:block}svg text{fill:var(--dim);font-size:12px}
.grid{stroke:var(--line)}.line{fill:none;stroke-width:2}.legend{margin:8px 0 0;color:var(--dim)}
.legend span{margin-right:18px;white-space:nowrap}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
"""


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


def statistics_page(
    streams: Sequence[StreamStatistics], *, place: str, made_ms: int, containers: int
) -> str:
    """The whole file. `streams` as they are to be shown, largest first."""
    charted = streams[:SERIES_MAX]
    sections = [
        _section("Streams", _streams_table(streams)),
        _section(
            "Size",
            bar_chart(
                [Bar(s.name, (s.length, s.stored_bytes)) for s in streams[:_STREAMS_CHARTED_MAX]],
                legend=("bytes of the segments", "stored in Tier 2"),
                unit=human_bytes,
            ),
        ),
        _section(
            "Appended over time",
            line_chart([_byte_rates(s) for s in charted], unit=_bytes_per_second, from_zero=True),
            "Bytes per second, by the time at which a block's oldest event was appended.",
        ),
        _section(
            "Events over time",
            line_chart([_event_rates(s) for s in charted], unit=_events_per_second, from_zero=True),
        ),
        _section(
            "Skew over time",
            line_chart(
                [Series(s.name, s.skew_over_time()) for s in charted],
                unit=lambda value: f"{value:.2f}",
                from_zero=False,
            ),
            "Bytes of the busiest segment over those of a mean one among the segments written to; 1 is even.",
        ),
        *[
            _section(f"Segments of {s.name}", _segment_bars(s))
            for s in charted
            if len(s.segments) > 1
        ],
        _section("Chunks", _chunk_bars(streams)),
    ]
    style = _PAGE_STYLE + "".join(
        f".s{n}{{stroke:var(--c{n})}}.bar.s{n},.dot.s{n}{{fill:var(--c{n});stroke:none}}"
        f".legend i.s{n}{{background:var(--c{n})}}"
        for n in range(SERIES_MAX)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Statistics of {escape(place)}</title><style>{style}</style></head><body><main>"
        f"<h1>Streams in Tier 2</h1><p class='dim'>{escape(place)}, {containers} containers,"
        f" as of {_moment(made_ms)}</p>{_figures(streams)}{''.join(sections)}</main></body></html>\n"
    )


def _section(title: str, content: str, remark: str = "") -> str:
    if not content:
        return ""
    said = f'<p class="dim">{escape(remark)}</p>' if remark else ""
    return f"<section><h2>{escape(title)}</h2>{said}{content}</section>"


def _figures(streams: Sequence[StreamStatistics]) -> str:
    length = sum(stream.length for stream in streams)
    stored = sum(stream.stored_bytes for stream in streams)
    figures = (
        (human_bytes(length), "in segments"),
        (human_bytes(stored), "stored"),
        (f"{length / stored:.2f}" if stored else "-", "ratio"),
        (f"{sum(stream.events for stream in streams):,}", "events"),
        (f"{sum(len(stream.segments) for stream in streams):,}", "segments"),
        (f"{sum(stream.chunks for stream in streams):,}", "chunks"),
    )
    shown = "".join(
        f"<div><b>{value}</b><span class='dim'>{what}</span></div>" for value, what in figures
    )
    return f'<div class="figures">{shown}</div>'


def _streams_table(streams: Sequence[StreamStatistics]) -> str:
    heads = ("stream", "segments", "bytes", "stored", "events", "chunks", "skew", "first", "last")
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td>{escape(cell)}</td>"
            for cell in (
                stream.name,
                f"{len(stream.segments):,}",
                human_bytes(stream.length),
                human_bytes(stream.stored_bytes),
                f"{stream.events:,}",
                f"{stream.chunks:,}",
                f"{stream.skew:.2f}",
                _moment(stream.first_ms),
                _moment(stream.last_ms),
            )
        )
        + "</tr>"
        for stream in streams
    )
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _byte_rates(stream: StreamStatistics) -> Series:
    times = stream.times()
    seconds = times.length_ms / 1000
    return Series(stream.name, [(start, size / seconds) for start, size, _ in times.in_order()])


def _event_rates(stream: StreamStatistics) -> Series:
    times = stream.times()
    seconds = times.length_ms / 1000
    if not stream.events:
        return Series(stream.name, [])
    return Series(stream.name, [(start, events / seconds) for start, _, events in times.in_order()])


def _segment_bars(stream: StreamStatistics) -> str:
    largest = sorted(stream.segments, key=lambda segment: -segment.length)[:_SEGMENTS_CHARTED_MAX]
    bars = [
        Bar(
            segment.name.removeprefix(f"{stream.name}/"),
            (segment.length,),
            f", {segment.events:,} events{', sealed' if segment.sealed else ''}",
        )
        for segment in largest
    ]
    return bar_chart(bars, legend=("bytes",), unit=human_bytes)


def _chunk_bars(streams: Sequence[StreamStatistics]) -> str:
    """How many chunks there are of each size, and in which compression blocks are."""
    counts: dict[int, int] = {}
    kinds: dict[int, int] = {}
    for segment in (segment for stream in streams for segment in stream.segments):
        for size in segment.chunk_sizes:
            power = max(10, size.bit_length())
            counts[power] = counts.get(power, 0) + 1
        for kind, blocks in segment.facts.blocks_by_compression.items():
            kinds[kind] = kinds.get(kind, 0) + blocks
    bars = [
        Bar(f"chunks up to {human_bytes(1 << power)}", (counts[power],)) for power in sorted(counts)
    ]
    bars += [
        Bar(f"blocks in {_COMPRESSIONS.get(kind, kind)}", (kinds[kind],)) for kind in sorted(kinds)
    ]
    return bar_chart(bars, legend=("count",), unit=lambda value: f"{value:,.0f}")


def human_bytes(size: float) -> str:
    """Decimal units, three digits or so."""
    for unit in _SIZE_UNITS:
        if abs(size) < 1000 or unit == _SIZE_UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("the last unit takes everything")


def _bytes_per_second(value: float) -> str:
    return f"{human_bytes(value)}/s"


def _events_per_second(value: float) -> str:
    return f"{value:,.0f}/s" if value >= 10 else f"{value:.1f}/s"


def _moment(time_ms: int | None) -> str:
    if time_ms is None:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


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
        return _LEFT + share * (_CHART_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        share = (value - low) / (high - low)
        return _CHART_HEIGHT - _BOTTOM - share * (_CHART_HEIGHT - _TOP - _BOTTOM)

    parts = [_svg_opening(_CHART_WIDTH, _CHART_HEIGHT)]
    for tick in range(_AXIS_TICKS + 1):
        value = low + (high - low) * tick / _AXIS_TICKS
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_CHART_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(unit(value))}</text>'
        )
        time = first + (last - first) * tick // _AXIS_TICKS
        anchor = ("start", "middle", "middle", "middle", "end")[tick]
        if last > first or tick == 2:
            parts.append(
                f'<text x="{x(time):.1f}" y="{_CHART_HEIGHT - 10}" text-anchor="{anchor}">'
                f"{_time_label(time, last - first)}</text>"
            )
    for number, one in enumerate(drawn):
        points = " ".join(f"{x(time):.1f},{y(value):.1f}" for time, value in one.points)
        parts.append(f'<polyline class="line s{number}" points="{points}"/>')
        parts += [
            f'<circle class="dot s{number}" cx="{x(time):.1f}" cy="{y(value):.1f}" r="2.5">'
            f"<title>{escape(one.name)}: {escape(unit(value))}, {_time_label(time, 0)}</title></circle>"
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
    row = _BAR_ROW_HEIGHT + (depth - 1) * _BAR_HEIGHT // 2
    height = row * len(bars) + 8
    parts = [_svg_opening(_CHART_WIDTH, height)]
    room = _CHART_WIDTH - _BAR_LABEL_WIDTH - 150
    for number, bar in enumerate(bars):
        top = number * row + 6
        parts.append(
            f'<text x="{_BAR_LABEL_WIDTH - 10}" y="{top + row / 2:.1f}" text-anchor="end">'
            f"{escape(_short_name(bar.name))}<title>{escape(bar.name)}</title></text>"
        )
        thickness = (row - 8) / depth
        for place, value in enumerate(bar.values):
            width = max(1.0, value / longest * room)
            y = top + place * thickness
            parts.append(
                f'<rect class="bar s{place}" x="{_BAR_LABEL_WIDTH}" y="{y:.1f}" rx="2"'
                f' width="{width:.1f}" height="{thickness - 2:.1f}"/>'
            )
        widest = max(bar.values) / longest * room
        said = ", ".join(unit(value) for value in bar.values) + bar.remark
        parts.append(
            f'<text x="{_BAR_LABEL_WIDTH + widest + 8:.1f}" y="{top + row / 2:.1f}">{escape(said)}</text>'
        )
    parts.append("</svg>")
    return "".join(parts) + (_legend(legend) if len(legend) > 1 else "")


def _svg_opening(width: int, height: int) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'


def _legend(names: Sequence[str]) -> str:
    entries = "".join(
        f'<span><i class="s{number}"></i>{escape(name)}</span>' for number, name in enumerate(names)
    )
    return f'<p class="legend">{entries}</p>'


def _short_name(name: str) -> str:
    return name if len(name) <= 34 else f"{name[:15]}…{name[-18:]}"


def _time_label(time_ms: int, span_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    if not span_ms:
        return moment.strftime("%Y-%m-%d %H:%M UTC")
    return moment.strftime("%H:%M" if span_ms < _DAY_MS else "%Y-%m-%d")
