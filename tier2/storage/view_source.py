"""Where readers get the current view from: the owner has it in memory, everybody else reads the root again."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError, StorageError
from tier2.storage.run_view import RunView

_ATTEMPTS_MAX = 8

T = TypeVar("T")


class ViewSource(Protocol):
    """The newest root version that somebody knows of."""

    @property
    def view(self) -> RunView: ...

    async def refresh(self) -> RunView:
        """The view of the root as it is now. Raises StorageNotPrimaryError in an owner that was fenced."""


async def with_view(source: ViewSource, read: Callable[[RunView], Awaitable[T]]) -> T:
    """Read through the current view; begin again on a newer one if an object of it is missing (H8).

    Raises CorruptedDataError if the current root still names what is missing.
    """
    for _ in range(_ATTEMPTS_MAX):
        view = source.view
        try:
            return await read(view)
        except ObjectNotFoundError as error:
            newer = await source.refresh()
            if newer.root.version == view.root.version:
                raise CorruptedDataError(
                    f"an object that the current root names is missing"
                    f" container={view.root.container_id} version={view.root.version}: {error}"
                ) from error
    raise StorageError("the root moved on during every attempt to read below it")
