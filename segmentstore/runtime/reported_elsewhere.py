"""For futures whose failure is somebody else's to report, or of which nobody is left who would look."""

from asyncio import Future
from typing import TypeVar

_Result = TypeVar("_Result")


def reported_elsewhere(future: "Future[_Result]") -> None:
    """A done callback that takes the exception, so that the loop does not report it again."""
    if not future.cancelled():
        future.exception()
