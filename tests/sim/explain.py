"""Explaining bytes: every byte of a segment must belong to an append that someone made, once, whole and in order.

The bytes of a payload name their append, so the content of a segment can be read without being told its layout.
A merged source shows up as its appends inside the target; it must be there in one piece.
"""

from dataclasses import dataclass, field

from segmentstore.contracts.identifiers import AttributeKey
from tests.sim.attempts import Append, Merge, ModelBreachError, Outcome, payload_number
from tests.sim.incarnation import Incarnation
from tests.sim.model import Model


@dataclass(slots=True)
class Explanation:
    """What was found in one segment, merged sources left out."""

    appends: list[Append] = field(default_factory=list)
    merges: list[Merge] = field(default_factory=list)
    events: dict[AttributeKey, list[int]] = field(default_factory=dict)
    """By writer, the numbers of its events in order of offset."""


class Explainer:
    """Explains any number of segments of one moment: no append may be found twice in all of them."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._found: dict[int, str] = {}

    def explain(
        self,
        life: Incarnation,
        start: int,
        content: bytes | memoryview,
        *,
        partial: bool = False,
    ) -> Explanation:
        """`content` is all of the segment from `start` on; teaches the incarnation what it finds.

        With `partial` it may end early, but only between appends. If the segment is truncated,
        explaining begins at the first append whose place is known.
        """
        view = memoryview(content)
        length = start + len(view)
        explanation = Explanation()
        at = _first_known_place(life, start, length)
        while at < length:
            append = self._append_at(life, view[at - start :], at)
            if append.incarnation is life:
                self._take(life, append, at, view[at - start :])
                explanation.appends.append(append)
                if append.writer is not None:
                    explanation.events.setdefault(append.writer, []).append(append.event)
                at += len(append.data)
            else:
                merge = self._take_merge(life, append, at, view[at - start :])
                explanation.merges.append(merge)
                at += merge.length
        _check_order(life, explanation.appends)
        _check_events(life, explanation.events, whole=start == 0)
        if not partial:
            self._check_nothing_is_missing(life, start, length)
            _check_merges(life, explanation.merges, start)
        return explanation

    def _append_at(self, life: Incarnation, view: memoryview, at: int) -> Append:
        number = payload_number(view)
        append = self._model.appends.get(number) if number is not None else None
        if append is None:
            raise ModelBreachError(f"{life}: nobody wrote the bytes at {at}: {bytes(view[:12])!r}")
        if append.outcome is Outcome.REFUSED:
            raise ModelBreachError(f"{life}: a refused append is there, at {at}: {append}")
        return append

    def _take(self, life: Incarnation, append: Append, at: int, view: memoryview) -> None:
        end = at + len(append.data)
        if view[: len(append.data)] != append.data:
            raise ModelBreachError(f"{life}: an append is damaged or torn at {at}: {append}")
        if append.end is not None and append.end != end:
            raise ModelBreachError(f"{life}: an append is at {at}, not at its place: {append}")
        if append.number in self._found:
            where = self._found[append.number]
            raise ModelBreachError(f"{life}: an append is at {at} and again at {where}: {append}")
        self._found[append.number] = f"{life}:{at}"
        append.end = end

    def _take_merge(self, life: Incarnation, inner: Append, at: int, view: memoryview) -> Merge:
        merge = _merge_that_brought(life, inner.incarnation)
        if merge is None or merge.outcome is Outcome.REFUSED:
            raise ModelBreachError(f"{life}: bytes of another segment at {at}: {inner}")
        end = at + merge.length
        if merge.end is not None and merge.end != end:
            raise ModelBreachError(f"{life}: merged bytes are at {at}, not at their place: {merge}")
        if len(view) < merge.length:
            raise ModelBreachError(f"{life}: merged bytes are torn at {at}: {merge}")
        self.explain(merge.source, 0, view[: merge.length])
        merge.end = end
        return merge

    def _check_nothing_is_missing(self, life: Incarnation, start: int, length: int) -> None:
        for append in life.appends:
            if append.outcome is not Outcome.ACKED or append.end is None or not append.data:
                continue
            if append.end > length:
                raise ModelBreachError(
                    f"{life}: an acked append is lost, length={length}: {append}"
                )
            if append.end - len(append.data) >= start and append.number not in self._found:
                raise ModelBreachError(f"{life}: an acked append is missing: {append}")


def _first_known_place(life: Incarnation, start: int, length: int) -> int:
    if start == 0:
        return 0
    places = [append.end - len(append.data) for append in life.appends if append.end is not None]
    places += [append.end for append in life.appends if append.end is not None]
    for merge in life.merges_in:
        if merge.end is not None:
            places += [merge.end - merge.length, merge.end]
    return min((place for place in places if place >= start), default=length)


def _merge_that_brought(life: Incarnation, stranger: Incarnation) -> Merge | None:
    """The merge into `life` whose source holds bytes of `stranger`, directly or by merges of its own."""
    for merge in stranger.merges_out:
        if merge.outcome is Outcome.REFUSED:
            continue
        if merge.target is life:
            return merge
        found = _merge_that_brought(life, merge.target)
        if found is not None:
            return found
    return None


def _check_order(life: Incarnation, appends: list[Append]) -> None:
    """Appends of one connection are in order, and none is missing before another of the same connection."""
    last: dict[int, int] = {}
    for append in appends:
        before = last.get(append.connection, 0)
        if append.number < before:
            raise ModelBreachError(f"{life}: appends of one connection changed order at {append}")
        last[append.connection] = append.number
    first = {append.connection: append.number for append in reversed(appends)}
    present = {append.number for append in appends}
    for append in life.appends:
        low, high = first.get(append.connection, 0), last.get(append.connection, 0)
        # A condition may have failed although the refusal never reached its client.
        conditional = append.offset is not None or append.writer is not None
        may_miss = append.outcome is Outcome.REFUSED or not append.data or conditional
        if low < append.number < high and append.number not in present and not may_miss:
            raise ModelBreachError(f"{life}: an append is missing before later ones: {append}")


def _check_events(life: Incarnation, events: dict[AttributeKey, list[int]], *, whole: bool) -> None:
    """Per writer, event numbers have no gap and no repeat."""
    for writer, numbers in events.items():
        expected = list(range(1 if whole else numbers[0], numbers[-1] + 1))
        if numbers != expected:
            raise ModelBreachError(f"{life}: events of writer {writer.hex()} are {numbers}")


def _check_merges(life: Incarnation, found: list[Merge], start: int) -> None:
    for merge in life.merges_in:
        due = merge.length > 0 and merge.outcome is Outcome.ACKED
        readable = start == 0 if merge.end is None else merge.end - merge.length >= start
        if due and readable and merge not in found:
            raise ModelBreachError(f"{life}: merged bytes are missing: {merge}")
        if found.count(merge) > 1:
            raise ModelBreachError(f"{life}: merged twice: {merge}")
