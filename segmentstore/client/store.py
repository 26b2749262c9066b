"""The way in: one object for a store, from which scopes, streams, segments, groups and tables are made.

```python
async with connect("tcp://127.0.0.1:9090") as store:
    await store.scope("plant").create()
    stream = store.stream("plant/readings")
    await stream.create(StreamConfig(ScalingPolicy.fixed(2)))
    async with stream.writer() as writer:
        await writer.write(b"21.5", key="sensor-7")
```
"""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from random import Random
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from segmentstore.client.byte_segment import ByteSegment
from segmentstore.client.connection import ConnectionPool, ServerAddress, Sign
from segmentstore.client.controller import ControllerClient, StreamName
from segmentstore.client.controller_channel import ControllerChannel
from segmentstore.client.reader_group import ReaderGroup
from segmentstore.client.segment_calls import (
    DelegationTokens,
    FixedLocator,
    RememberingLocator,
    SegmentCalls,
    SegmentLocator,
)
from segmentstore.client.settings import ClientSettings, Tls
from segmentstore.client.stream import Stream
from segmentstore.client.table import Table
from segmentstore.codec.stream_names import READER_GROUP_PREFIX, is_user_name
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.entropy import system_random


class Scope:
    """The name space of streams, tables and reader groups. Cheap to make; nothing to close."""

    def __init__(self, name: str, *, controller: ControllerClient) -> None:
        self.name = name
        self._controller = controller

    async def create(self) -> None:
        """Raises AlreadyExistsError, InvalidRequestError for the name."""
        await self._controller.create_scope(self.name)

    async def delete(self) -> None:
        """Raises NotFoundError, NotEmptyError."""
        await self._controller.delete_scope(self.name)

    async def streams(self, *, tag: str | None = None) -> Sequence[str]:
        """Names of the streams that users made, in order. Raises NotFoundError."""
        found = await self._controller.list_streams(self.name, tag=tag)
        return sorted(name for name in found if is_user_name(name))

    async def tables(self) -> Sequence[str]:
        """Names of the key-value tables, in order. Raises NotFoundError."""
        return sorted(await self._controller.list_tables(self.name))

    async def reader_groups(self) -> Sequence[str]:
        """Names of the reader groups, in order. Raises NotFoundError."""
        found = await self._controller.list_streams(self.name)
        return sorted(
            name.removeprefix(READER_GROUP_PREFIX)
            for name in found
            if name.startswith(READER_GROUP_PREFIX)
        )


class Store:
    """Made by `connect`; everything made from it works until the end of its `async with`."""

    def __init__(self, *, controller: ControllerClient, calls: SegmentCalls) -> None:
        """`calls` are for the store's own short requests; writers and readers have connections of their own."""
        self._controller = controller
        self._calls = calls

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._controller.close)
            stack.push_async_callback(self._calls.close)

    @property
    def controller(self) -> ControllerClient:
        """The controller's own calls, below streams and tables. It is closed with the store."""
        return self._controller

    async def scopes(self) -> Sequence[str]:
        """Names of all scopes, in order."""
        return sorted(await self._controller.list_scopes())

    def scope(self, name: str) -> Scope:
        return Scope(name, controller=self._controller)

    def stream(self, name: str) -> Stream:
        """`scope/stream`. Raises InvalidRequestError."""
        return Stream(StreamName.parse(name), controller=self._controller, calls=self._calls)

    def segment(self, name: str) -> ByteSegment:
        """One segment by its qualified name, `scope/stream/0.#epoch.0`."""
        return ByteSegment(name, self._calls)

    def reader_group(self, name: str) -> ReaderGroup:
        """`scope/group`. Raises InvalidRequestError."""
        group = StreamName.parse(name, what="reader group")
        return ReaderGroup(
            group.scope, group.stream, controller=self._controller, calls=self._calls
        )

    def table(self, name: str) -> Table:
        """`scope/table`. Raises InvalidRequestError."""
        table = StreamName.parse(name, what="table")
        return Table(table.scope, table.stream, controller=self._controller, calls=self._calls)


def connect(
    controller: str,
    *,
    settings: ClientSettings | None = None,
    segment_store: str | None = None,
    random: Random | None = None,
    tls: Tls | None = None,
    authorization: Callable[[], str] | None = None,
    before_first_call: Callable[[], Coroutine[None, None, None]] | None = None,
) -> Store:
    """A store by the address of its controller, `tcp://HOST:PORT` or `tls://HOST:PORT`, or of several controllers of
    which any will do, `tcp://HOST:PORT,HOST:PORT`. Connections are made when they are needed, and are of the same kind
    to segment stores; `tls` says which certificates will do.

    `authorization` gives what the controller wants to see with every call ("Basic ...", "Bearer ..."); with it,
    segment stores are shown the tokens that the controller gives out. With `segment_store` (an address as well) every
    segment is looked for there instead of where the controller says. `random` makes ids and pauses; it is the system's
    if left out. `before_first_call` is awaited once, before the controller is asked anything: what it raises the first
    call raises. Raises InvalidRequestError for an address, and for certificates of one that has no use for them.
    """
    settings = settings or ClientSettings()
    random = random or system_random()
    client = ControllerClient(
        connect_controller(
            controller,
            settings=settings,
            random=random,
            tls=tls,
            authorization=authorization,
            before_first_call=before_first_call,
        )
    )
    locator: SegmentLocator = (
        RememberingLocator(client)
        if segment_store is None
        else FixedLocator(_endpoint(segment_store))
    )
    sign: Sign | None = None
    if authorization is not None:
        locator = tokens = DelegationTokens(client, locator)
        sign = tokens.sign
    pool = ConnectionPool(settings, tls=_tls(segment_store or controller, tls), sign=sign)
    calls = SegmentCalls(locator=locator, pool=pool, settings=settings, random=random)
    return Store(controller=client, calls=calls)


def connect_controller(
    controller: str,
    *,
    settings: ClientSettings,
    random: Random | None = None,
    tls: Tls | None = None,
    authorization: Callable[[], str] | None = None,
    before_first_call: Callable[[], Coroutine[None, None, None]] | None = None,
) -> ControllerChannel:
    """The controller alone, for calls that no store makes; the arguments are those of `connect`."""
    return ControllerChannel(
        [str(each) for each in controller_addresses(controller)],
        settings=settings,
        random=random or system_random(),
        tls=_tls(controller, tls),
        authorization=authorization,
        before_first_call=before_first_call,
    )


def _tls(address: str, tls: Tls | None) -> Tls | None:
    if address.startswith("tls://"):
        return tls or Tls()
    if tls is not None:
        raise InvalidRequestError(f"certificates are for tls:// addresses given={address!r}")
    return None


def controller_addresses(addresses: str) -> list[ServerAddress]:
    """Each of several, as connect() takes them; all of one kind, which the first names. Raises InvalidRequestError."""
    first, *others = addresses.split(",")
    scheme = first.partition("//")[0] if "//" in first else "tcp:"
    return [_endpoint(first), *(_endpoint(_of_scheme(scheme, each)) for each in others)]


def _of_scheme(scheme: str, address: str) -> str:
    named, separator, _ = address.partition("//")
    if separator and named != scheme:
        raise InvalidRequestError(
            f"addresses of one store begin alike expected={scheme}// given={address!r}"
        )
    return address if separator else f"{scheme}//{address}"


def _endpoint(address: str) -> ServerAddress:
    try:
        parts = urlsplit(address if "//" in address else f"tcp://{address}")
        if parts.scheme not in ("tcp", "tls") or not parts.hostname or not parts.port:
            raise ValueError
        return ServerAddress(parts.hostname, parts.port)
    except ValueError as error:
        raise InvalidRequestError(
            f"an address looks like tcp://127.0.0.1:9090 given={address!r}"
        ) from error
