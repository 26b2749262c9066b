"""An object store that one process has, for other processes of the machine: a server over it, and a store that asks it.

What a process locks for itself, such as volumes, is used by several this way. They speak over a stream socket; who may
connect to it is decided by the directory that the socket is in.

A request and its answer have one form:

    header length   u32, big endian
    body length     u64, big endian
    header          a JSON object, UTF-8
    body            the content of an object, or nothing

    request         verb, and of key, tag, start, length, prefix what the verb needs
    answer          ok: true, and of tag, size what the verb gives
                    ok: false, error (the name of a class of `segmentstore/contracts/errors.py`), message, state

Behind the header of a request with a body the server says go_on: true when it has room for that, and then the body is
sent. While a change is being made, its client hears a sign of life at intervals, in front of the answer: a header with
at_work: true, and no body.

A listing has as many answers as it has pages, each with more: whether another one follows. The body of a page is a JSON
array of [key, size].

Invariants:

- A connection carries one request at a time; one whose exchange was not finished is never used again.
- A change may take any time while the server says that it is at work: only its silence is limited. What reads is
  limited as a whole, since a user waits for it.
- The bodies of all requests hold `bodies_bytes_max` together, or one that is longer alone; each is received when there
  is room, in the order of their headers. A client that does not send what it has room for loses its connection.
- A request is done whole or not at all: its body is here before the store is asked. It is held only while its client
  waits: one that gives up comes again with the next body, and the disk may stand still meanwhile.
- What may be repeated (reads, listings, deletions, puts of immutable objects) is sent a second time, over a new
  connection, if the first one breaks. A conditional put is never repeated (B4).
- A body of many pieces is sent by the piece, as the other side takes them: neither the transport nor a turn of the loop
  has all of it.
- A listing comes by the page: neither end holds all of it, and both let their loop go on behind each page.
- Of what reads, of what changes and of listings at most `connections_max` each are under way for a store that asks,
  each with a connection to itself; more wait. A reader never waits for uploads, and what is asked between two objects
  of a listing needs no place that listings have.
- Both ends are the same program: there is no version.
"""

import asyncio
import json
import logging
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectLockedError,
    ObjectNotFoundError,
    SegmentStoreError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, ObjectStore, VersionedObject
from segmentstore.runtime.shared_room import Room, SharedRoom
from segmentstore.runtime.task_set import TaskSet
from tier2.object_stores.object_key import check_key, check_prefix, check_range

logger = logging.getLogger(__name__)

Field = str | int | bool

_LENGTHS: Final = struct.Struct(">IQ")
_HEADER_BYTES_MAX: Final = 1 << 20
_BODY_BYTES_MAX: Final = 1 << 30
"""No chunk and no manifest comes near; a longer one is no request of ours."""
_STREAM_BYTES: Final = 1 << 20
_LISTING_PAGE_OBJECTS: Final = 1_000
_READING_VERBS: Final = frozenset(("get", "get_range", "size"))
_AT_WORK: Final = "at_work"
_GO_ON: Final = "go_on"
_ERRORS: Final = {
    kind.__name__: kind
    for kind in (
        CorruptedDataError,
        InvalidRequestError,
        ObjectChangedError,
        ObjectExistsError,
        ObjectLockedError,
        ObjectNotFoundError,
        StorageError,
        StorageFullError,
    )
}


@dataclass(frozen=True, slots=True)
class Message:
    """A request, or an answer."""

    header: Mapping[str, Field]
    body: bytes = b""

    def text(self, name: str) -> str:
        value = self.header[name]
        assert isinstance(value, str), f"no text {name=} {value=}"
        return value

    def number(self, name: str) -> int:
        value = self.header[name]
        assert isinstance(value, int), f"no number {name=} {value=}"
        return value


class ObjectStoreServer:
    """Answers from a store: start(), then close(). The store is its caller's."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        sign_seconds: float = 10.0,
        bodies_bytes_max: int = 256 << 20,
        body_seconds_max: float = 60.0,
    ) -> None:
        """`sign_seconds`: between two signs of life to a client whose change is being made.

        `bodies_bytes_max`: of all requests together; `body_seconds_max`: for one body to come, once there is room.
        """
        self._store = store
        self._sign_seconds = sign_seconds
        self._room = SharedRoom(bodies_bytes_max)
        self._body_seconds_max = body_seconds_max
        self._server: asyncio.Server | None = None
        self._connections = TaskSet(on_failure=self._broke)

    async def start(self, listening: socket.socket) -> None:
        """Take connections from a socket that listens already. Raises OSError."""
        assert self._server is None, "the server is started already"
        self._server = await asyncio.start_unix_server(
            self._connected, sock=listening, limit=_STREAM_BYTES
        )

    async def close(self) -> None:
        """No new requests; connections end, and with them what waits for an answer. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            await self._connections.close()

    def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self._server is None:
            writer.close()
            return
        self._connections.start(self._serve(reader, writer), name="objects")

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            with suppress(OSError, EOFError):
                while True:
                    header, body_length = await _receive_head(reader)
                    if header["verb"] == "list":
                        await self._answer_listing(Message(header), writer)
                    elif header["verb"] in _READING_VERBS:
                        await _send(writer, await self._answer(Message(header)))
                    else:
                        with self._signs_of_life(writer):
                            answer = await (
                                self._answer_with_body(header, body_length, reader, writer)
                                if body_length
                                else self._answer(Message(header))
                            )
                        await _send(writer, answer)
        finally:
            writer.close()

    async def _answer(self, request: Message) -> Message:
        try:
            return await self._do(request)
        except SegmentStoreError as error:
            return _refusal_of(error)

    async def _answer_with_body(
        self,
        header: Mapping[str, Field],
        body_length: int,
        reader: StreamReader,
        writer: StreamWriter,
    ) -> Message:
        """Raises OSError or EOFError when the connection has ended, or its body does not come."""
        room: Room | None = None
        try:
            async with _while_there(reader):
                room = await self._room.take(min(body_length, self._room.bytes_max))
            await _send(writer, Message({_GO_ON: True}))
            async with asyncio.timeout(self._body_seconds_max):
                request = Message(header, await reader.readexactly(body_length))
            # What the store has begun it may do all the same (B4).
            async with _while_there(reader):
                return await self._answer(request)
        finally:
            if room is not None:
                room.give_back()

    @contextmanager
    def _signs_of_life(self, writer: StreamWriter) -> Iterator[None]:
        """At intervals, until the block ends."""

        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def tell() -> None:
            connection = writer.transport
            # A client that reads nothing gets no more of them.
            if not (connection.is_closing() or connection.get_write_buffer_size()):
                writer.write(_packed({_AT_WORK: True}))
            wait()

        def wait() -> None:
            nonlocal timer
            timer = loop.call_later(self._sign_seconds, self._connections.guarded(tell))

        wait()
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()

    async def _answer_listing(self, request: Message, writer: StreamWriter) -> None:
        page: list[tuple[str, int]] = []
        try:
            async with aclosing(self._store.list(request.text("prefix"))) as listing:
                async for each in listing:
                    if len(page) == _LISTING_PAGE_OBJECTS:
                        await _send(writer, _page(page, more=True))
                        page = []
                        await asyncio.sleep(0)
                    page.append((each.key, each.size))
        except SegmentStoreError as error:
            await _send(writer, _refusal_of(error))
        else:
            await _send(writer, _page(page, more=False))

    async def _do(self, request: Message) -> Message:
        store = self._store
        match request.text("verb"):
            case "put":
                await store.put(request.text("key"), [memoryview(request.body)])
            case "put_if_absent":
                tag = await store.put_if_absent(request.text("key"), memoryview(request.body))
                return Message({"ok": True, "tag": tag})
            case "put_if_match":
                tag = await store.put_if_match(
                    request.text("key"), memoryview(request.body), request.text("tag")
                )
                return Message({"ok": True, "tag": tag})
            case "get":
                found = await store.get(request.text("key"))
                return Message({"ok": True, "tag": found.tag}, found.content)
            case "get_range":
                content = await store.get_range(
                    request.text("key"), request.number("start"), request.number("length")
                )
                return Message({"ok": True}, content)
            case "size":
                return Message({"ok": True, "size": await store.size(request.text("key"))})
            case "delete":
                await store.delete(request.text("key"))
            case verb:
                raise InvalidRequestError(f"there is no such verb {verb=}")
        return Message({"ok": True})

    def _broke(self, failure: BaseException) -> None:
        logger.error("a connection for objects broke by a fault of ours", exc_info=failure)


class SharedObjectStore:
    """An ObjectStore that asks the server behind a socket. Nothing is connected before the first call."""

    def __init__(
        self, path: str, *, connections_max: int = 16, silence_seconds_max: float = 60.0
    ) -> None:
        """`path`: of the socket. `silence_seconds_max`: a server that says nothing for so long does not answer."""
        self._path = path
        self._silence_seconds_max = silence_seconds_max
        self._free: list[tuple[StreamReader, StreamWriter]] = []
        self._reads = asyncio.Semaphore(connections_max)
        self._changes = asyncio.Semaphore(connections_max)
        self._listings = asyncio.Semaphore(connections_max)
        self._closed = False

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        check_key(key)
        await self._ask({"verb": "put", "key": key}, content)

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        check_key(key)
        header: dict[str, Field] = {"verb": "put_if_absent", "key": key}
        return (await self._ask(header, [content], attempts=1)).text("tag")

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        check_key(key)
        header: dict[str, Field] = {"verb": "put_if_match", "key": key, "tag": tag}
        return (await self._ask(header, [content], attempts=1)).text("tag")

    async def get(self, key: str) -> VersionedObject:
        check_key(key)
        answer = await self._ask({"verb": "get", "key": key})
        return VersionedObject(content=answer.body, tag=answer.text("tag"))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        check_range(start, length)
        header: dict[str, Field] = {
            "verb": "get_range",
            "key": key,
            "start": start,
            "length": length,
        }
        return (await self._ask(header)).body

    async def size(self, key: str) -> int:
        check_key(key)
        return (await self._ask({"verb": "size", "key": key})).number("size")

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._ask({"verb": "delete", "key": key})

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        check_prefix(prefix)
        last = ""
        for left in (1, 0):
            try:
                async with aclosing(self._pages(prefix)) as pages:
                    async for page in pages:
                        for key, size in page:
                            if key > last:
                                last = key
                                yield ObjectInfo(key=key, size=size)
                return
            except (OSError, EOFError) as error:
                if not left:
                    raise _gone(error) from error

    async def _pages(self, prefix: str) -> AsyncGenerator[Sequence[tuple[str, int]], None]:
        """Over a connection of their own. Raises OSError or EOFError if it breaks, StorageError."""
        if self._closed:
            raise _closed()
        async with self._listings:
            connection: tuple[StreamReader, StreamWriter] | None = None
            more = True
            try:
                while more:
                    try:
                        async with asyncio.timeout(self._silence_seconds_max):
                            if connection is None:
                                connection = await self._connected()
                                await _send(
                                    connection[1], Message({"verb": "list", "prefix": prefix})
                                )
                            answer = _accepted(await _receive(connection[0]))
                    except TimeoutError as error:
                        raise _silent() from error
                    more = bool(answer.header["more"])
                    yield json.loads(answer.body)
                    await asyncio.sleep(0)  # several pages may have come already
            finally:
                if connection is not None:
                    connection[1].transport.abort()

    async def close(self) -> None:
        """Idempotent."""
        self._closed = True
        for _, writer in self._free:
            writer.close()
        self._free.clear()

    async def _ask(
        self, header: Mapping[str, Field], content: Sequence[BufferView] = (), *, attempts: int = 2
    ) -> Message:
        """The answer, if it is no refusal. Raises StorageError."""
        if self._closed:
            raise _closed()
        async with self._reads if header["verb"] in _READING_VERBS else self._changes:
            for left in reversed(range(attempts)):
                try:
                    async with asyncio.timeout(self._silence_seconds_max) as limit:
                        answer = await self._exchange(
                            header, content, is_new=left < attempts - 1, limit=limit
                        )
                    break
                except TimeoutError as error:
                    raise _silent() from error
                except (OSError, EOFError) as error:
                    if left:
                        continue
                    raise _gone(error) from error
        return _accepted(answer)

    async def _connected(self) -> tuple[StreamReader, StreamWriter]:
        return await asyncio.open_unix_connection(self._path, limit=_STREAM_BYTES)

    async def _exchange(
        self,
        header: Mapping[str, Field],
        content: Sequence[BufferView],
        *,
        is_new: bool,
        limit: asyncio.Timeout,
    ) -> Message:
        """`is_new`: over a new connection; what the others were connected to has ended. `limit`: of silence."""
        if is_new:
            for _, writer in self._free:
                writer.close()
            self._free.clear()
        if self._free:
            reader, writer = self._free.pop()
        else:
            reader, writer = await self._connected()
        try:
            body_length = sum(memoryview(each).nbytes for each in content)
            writer.write(_packed(header, body_length))
            if body_length:
                allowed = await self._heard(reader, limit)
                if _GO_ON not in allowed.header:
                    raise ConnectionError("an answer in front of the body")
                await _send_body(writer, content)
            answer = await self._heard(reader, limit)
        except BaseException:
            writer.transport.abort()
            raise
        if self._closed:
            writer.close()
        else:
            self._free.append((reader, writer))
        return answer

    async def _heard(self, reader: StreamReader, limit: asyncio.Timeout) -> Message:
        """The next message that is no sign of life; each begins the time of silence anew."""
        while True:
            message = await _receive(reader)
            limit.reschedule(asyncio.get_running_loop().time() + self._silence_seconds_max)
            if _AT_WORK not in message.header:
                return message


@asynccontextmanager
async def _while_there(reader: StreamReader) -> AsyncGenerator[None, None]:
    """The block ends with the connection, by the cancellation of its task."""
    task = asyncio.current_task()
    assert task is not None, "runs outside a task"
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(_cancel_at_end(reader, task))
        yield
        watching.cancel()


async def _cancel_at_end(reader: StreamReader, task: "asyncio.Task[None]") -> None:
    """Of the connection: a client sends nothing before it is answered."""
    with suppress(OSError):
        await reader.read(1)
    task.cancel()


def _page(objects: Sequence[tuple[str, int]], *, more: bool) -> Message:
    body = json.dumps(objects, separators=(",", ":")).encode()
    return Message({"ok": True, "more": more}, body)


def _accepted(answer: Message) -> Message:
    """The same, if it is no refusal. Raises what was refused with."""
    if answer.header["ok"]:
        return answer
    name, message = answer.text("error"), answer.text("message")
    if name == StorageUnavailableError.__name__:
        raise StorageUnavailableError(message, state=answer.text("state"))
    raise _ERRORS.get(name, StorageError)(message)


def _closed() -> StorageUnavailableError:
    return StorageUnavailableError("Tier 2 is closed", state="closed")


def _silent() -> StorageUnavailableError:
    return StorageUnavailableError(
        "the process that has Tier 2 does not answer", state="unavailable"
    )


def _gone(error: BaseException) -> StorageUnavailableError:
    return StorageUnavailableError(
        f"the process that has Tier 2 is gone: {error}", state="unavailable"
    )


def _refusal_of(error: SegmentStoreError) -> Message:
    if isinstance(error, StorageUnavailableError):
        return _refusal(StorageUnavailableError, str(error), state=error.state)
    kind = next((each for each in type(error).__mro__ if each.__name__ in _ERRORS), None)
    return _refusal(kind or StorageError, str(error))


def _refusal(kind: type[BaseException], message: str, *, state: str = "") -> Message:
    return Message({"ok": False, "error": kind.__name__, "message": message, "state": state})


async def _send(writer: StreamWriter, message: Message) -> None:
    """Raises OSError when the connection has ended."""
    _require_open(writer)
    writer.write(_packed(message.header, len(message.body)))
    await _send_body(writer, [message.body])


async def _send_body(writer: StreamWriter, body: Sequence[BufferView]) -> None:
    """Piece by piece: a chunk has very many bytes, and the transport holds those that the other side has not taken."""
    for each in body:
        # A transport may keep what it is given until it is sent, and the caller's buffer is another's by then.
        if memoryview(each).nbytes:
            _require_open(writer)
            writer.write(bytes(each))
            await writer.drain()
    await writer.drain()


def _require_open(writer: StreamWriter) -> None:
    """Not every loop takes what is written to a connection that has ended. Raises ConnectionResetError."""
    if writer.transport.is_closing():
        raise ConnectionResetError("the connection has ended")


def _packed(fields: Mapping[str, Field], body_length: int = 0) -> bytes:
    """What stands in front of a body."""
    header = json.dumps(fields, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(header), body_length) + header


async def _receive(reader: StreamReader) -> Message:
    """Raises OSError or EOFError when the connection has ended."""
    header, body_length = await _receive_head(reader)
    return Message(header, await reader.readexactly(body_length) if body_length else b"")


async def _receive_head(reader: StreamReader) -> tuple[Mapping[str, Field], int]:
    """The header, and the length of the body behind it. Raises as _receive()."""
    lengths = await reader.readexactly(_LENGTHS.size)
    header_length, body_length = _LENGTHS.unpack(lengths)
    if header_length > _HEADER_BYTES_MAX or body_length > _BODY_BYTES_MAX:
        raise ConnectionError(f"no message of ours header={header_length} body={body_length}")
    return json.loads(await reader.readexactly(header_length)), body_length
