"""What made a container end, as far as it decides what becomes of it: corruption, another owner, or the rest."""

import traceback
from pathlib import PurePath

from segmentstore.contracts.errors import (
    ContainerStoppedError,
    ErrorKind,
    SegmentStoreError,
    ServiceHaltError,
)


def is_corrupt(cause: BaseException) -> bool:
    """Whether corruption is among the causes of a failure: in a group, or behind `raise ... from`."""
    waiting: list[BaseException | None] = [cause]
    seen: list[BaseException] = []
    while waiting:
        error = waiting.pop()
        if error is None or any(error is known for known in seen):
            continue
        seen.append(error)
        if isinstance(error, SegmentStoreError) and error.kind is ErrorKind.CORRUPT:
            return True
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
        waiting.append(error.__cause__)
    return False


def is_fenced(cause: BaseException) -> bool:
    """Whether a container stopped because another owner has its log or its manifest."""
    root = root_of(cause)
    return isinstance(root, SegmentStoreError) and root.kind is ErrorKind.FENCED


def lasting_failure(cause: BaseException) -> str:
    """The cause and the place of a failure that time does not mend, such as a value that cannot be stored.

    "" for one that may pass: a disk or a network that fails, memory or files that run out, another owner.
    """
    root = root_of(cause)
    if isinstance(root, OSError | MemoryError) or not isinstance(root, Exception):
        return ""
    if isinstance(root, SegmentStoreError) and not isinstance(root, ServiceHaltError):
        may_pass = root.kind in (ErrorKind.UNAVAILABLE, ErrorKind.FULL, ErrorKind.FENCED)
        if may_pass:
            return ""
    frames = traceback.extract_tb(root.__traceback__)
    place = f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    kind = type(root)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{name} in {place}"


def root_of(error: BaseException) -> BaseException:
    """What made a container stop, behind the error that tells of the stop."""
    seen: list[BaseException] = []
    while not any(error is known for known in seen):
        seen.append(error)
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif isinstance(error, ContainerStoppedError) and error.__cause__ is not None:
            error = error.__cause__
    return error
