"""Watches that operations of one segment are accepted in the order of their submission, whatever their kind (H35).

Each submission gives a future, and those of accepted operations complete in the order of acceptance. So when an
operation has succeeded, nothing that was submitted to its segment before it succeeds any more: it is done, or it is
refused or given up, which may be told later (a refusal waits for a proof that this is the owner).

Two things may be earlier than what was submitted before them, and are not judged themselves: a truncation and a
deletion, while others of the segment still wait to be accepted (they free space). What was refused in the call that
submitted it never had a place in the order.

A look at callbacks of futures, which run in the order in which the futures were completed. Those of a shuffled loop do
not: there the futures say themselves which of them was over first.
"""

from asyncio import Future
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from containers.log.operation_processor import OperationProcessor
from containers.metadata.segment_metadata import SegmentMetadata
from tests.sim.attempts import ModelBreachError
from tests.sim.loop import OrderedFuture

_IN_ORDER = ("append", "seal", "merge", "merge_first", "update_attributes", "map", "barrier")
_MAY_CHANGE_NOTHING = ("barrier", "seal", "truncate")
"""What succeeds without an operation waits, like a refusal, for a proof that this is the owner."""
_MAY_OVERTAKE = ("truncate", "delete")


@dataclass(slots=True, eq=False)
class _Submission:
    verb: str
    future: "Future[int]"
    is_judged: bool
    overtaken_by: str = ""
    """The verb that succeeded although it was submitted later."""


class SubmissionOrder:
    """What was submitted to each segment and is not over."""

    def __init__(self) -> None:
        self._open: dict[SegmentMetadata, list[_Submission]] = {}
        self.in_order: dict[str, int] = {}
        """How many operations were seen to be in order behind others, by verb."""

    def submitted(
        self, segment: SegmentMetadata, verb: str, done: "Future[int]", *, is_judged: bool
    ) -> None:
        """Right behind the call."""
        if done.done():
            if is_judged and not done.cancelled() and done.exception() is None:
                before = self._open.get(segment, [])
                # Those that are done were done earlier, though their callbacks are still to come.
                self._note(verb, [each for each in before if not each.future.done()])
            return
        submission = _Submission(verb, done, is_judged)
        self._open.setdefault(segment, []).append(submission)
        done.add_done_callback(lambda future: self._over(segment, submission, future))

    def _over(self, segment: SegmentMetadata, submission: _Submission, done: "Future[int]") -> None:
        submissions = self._open[segment]
        place = submissions.index(submission)
        del submissions[place]
        succeeded = not done.cancelled() and done.exception() is None
        changed = succeeded and submission.verb not in _MAY_CHANGE_NOTHING
        if changed and submission.overtaken_by:
            raise ModelBreachError(
                f"{submission.overtaken_by} of {segment!r} overtook what came first: {submission.verb}"
            )
        if not submissions:
            del self._open[segment]
        if submission.is_judged and succeeded:
            before = submissions[:place]
            self._note(
                submission.verb,
                [each for each in before if not _was_over_before(each.future, done)],
            )
            if submissions:
                self.in_order[submission.verb] = self.in_order.get(submission.verb, 0) + 1

    @staticmethod
    def _note(verb: str, before: list[_Submission]) -> None:
        for each in before:
            each.overtaken_by = each.overtaken_by or verb


def _was_over_before(earlier: "Future[int]", later: "Future[int]") -> bool:
    return (
        isinstance(earlier, OrderedFuture)
        and isinstance(later, OrderedFuture)
        and 0 < earlier.end < later.end
    )


@contextmanager
def submissions_watched() -> Iterator[SubmissionOrder]:
    """Every operation processor of this process is watched meanwhile."""
    order = SubmissionOrder()
    with pytest.MonkeyPatch.context() as patch:
        for verb in _IN_ORDER:
            patch.setattr(OperationProcessor, verb, _watched(order, verb, may_overtake=False))
        for verb in _MAY_OVERTAKE:
            patch.setattr(OperationProcessor, verb, _watched(order, verb, may_overtake=True))
        yield order


def _watched(order: SubmissionOrder, verb: str, *, may_overtake: bool) -> Any:  # a method
    honest = getattr(OperationProcessor, verb)

    def submit(
        self: OperationProcessor, segment: SegmentMetadata | None, *rest: Any, **named: Any
    ) -> "Future[int]":
        others_wait = segment is not None and segment.waiting_requests > 0
        done: Future[int] = honest(self, segment, *rest, **named)
        if segment is not None:
            is_judged = not (may_overtake and others_wait)
            order.submitted(segment, verb, done, is_judged=is_judged)
        return done

    return submit
