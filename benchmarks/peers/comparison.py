"""Medians of the rounds, ours over theirs, beside what is wanted."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers.cases import OURS, TARGETS, Target
from benchmarks.peers.rounds import Results


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
        ours = results.get((OURS, target.case, target.figure))
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
    lines = [
        f"{'what':<58} {'ours':>11} {'theirs':>11} {'unit':<5} {'ratio':>7} {'wanted':>8}  spread"
    ]
    for one in comparisons:
        sign = ">=" if one.target.large else "<="
        verdict = "" if one.is_met else "  MISSED"
        lines.append(
            f"{one.target.name:<58} {one.ours:>11.4g} {one.theirs:>11.4g} {one.target.unit:<5} "
            f"{one.ratio:>6.2f}x {sign}{one.target.wanted:>5.2g}x  {one.spread:>5.2f}{verdict}"
        )
    met = sum(one.is_met for one in comparisons)
    lines.append(f"{met} of {len(comparisons)} met; medians of {rounds_of(comparisons)} rounds")
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
