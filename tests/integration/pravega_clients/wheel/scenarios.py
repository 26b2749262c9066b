"""Named behaviours that the Python wheel counts on. One of them, in a scope of its own, reported as one JSON line:

    python scenarios.py CONTROLLER_URI SCOPE NAME

A process each: a call of the wheel that hangs may hold the interpreter, and only the caller can end that.
"""

# mypy: disable-error-code="import-not-found"

import asyncio
import os
import random
import sys
import time
import traceback
from collections.abc import Callable

import pravega_client as pravega
from group_reading import PATIENCE_SECONDS, next_slice, take, take_all
from report import KeyOrder, line


class Session:
    """One scope of a server."""

    def __init__(self, uri: str, scope: str) -> None:
        self.uri = uri
        self.scope = scope
        self.manager = pravega.StreamManager(uri)
        self.manager.create_scope(scope)

    def stream(self, name: str, segments: int) -> None:
        assert self.manager.create_stream(self.scope, name, segments), f"created {name}"

    def write(self, stream: str, keys: int, start: int, end: int, in_flight: int = 100) -> None:
        writer = self.manager.create_writer(self.scope, stream, in_flight)
        for number in range(start, end):
            for key in range(keys):
                writer.write_event(f"k{key}:{number}", routing_key=f"k{key}")
        writer.flush()

    def group(self, name: str, stream: str, **options: object) -> "pravega.StreamReaderGroup":
        return self.manager.create_reader_group(name, self.scope, stream, **options)

    def read_all(self, group: str, stream: str, count: int) -> list[bytes]:
        reader = self.group(group, stream).create_reader("only")
        return asyncio.run(take_all(reader, count))


def scopes_and_streams(session: Session) -> None:
    manager, extra = session.manager, session.scope + "extra"
    assert manager.create_scope(extra)
    assert not manager.create_scope(extra), "created twice"
    assert {extra, session.scope} <= set(manager.list_scope())
    assert manager.delete_scope(extra)
    assert extra not in set(manager.list_scope())
    names = {f"s{number:03}" for number in range(40)}
    for name in sorted(names):
        session.stream(name, 1)
    listed = [
        each for each in manager.list_stream(session.scope) if not split_name(each).startswith("_")
    ]
    assert {split_name(each) for each in listed} == names, listed
    assert len(listed) == len(names), "each once"


def split_name(listed: object) -> str:
    """list_stream gives the names as they are, or with their scope."""
    return str(listed).rpartition("/")[2]


def tags_and_policies(session: Session) -> None:
    manager, policy = session.manager, pravega.StreamScalingPolicy
    none = pravega.StreamRetentionPolicy.none()
    fixed = policy.fixed_scaling_policy(2)
    assert manager.create_stream_with_policy(session.scope, "s", fixed, none, ["red", "round"])
    assert set(manager.get_stream_tags(session.scope, "s")) == {"red", "round"}
    rate = policy.auto_scaling_policy_by_event_rate(10, 2, 2)
    sized = pravega.StreamRetentionPolicy.by_size(1 << 30)
    assert manager.update_stream_with_policy(session.scope, "s", rate, sized, ["blue"])
    assert set(manager.get_stream_tags(session.scope, "s")) == {"blue"}
    session.write("s", 4, 0, 5)
    KeyOrder().add_all(session.read_all("g", "s", 20)).check(20)


def events_on_segments(session: Session) -> None:
    session.stream("s", 3)
    session.write("s", 30, 0, 100, in_flight=1000)
    KeyOrder().add_all(session.read_all("g", "s", 3000)).check(3000)


def default_writer(session: Session) -> None:
    session.stream("s", 2)
    session.write("s", 4, 0, 25, in_flight=0)
    KeyOrder().add_all(session.read_all("g", "s", 100)).check(100)


def sizes(session: Session) -> None:
    session.stream("s", 1)
    writer = session.manager.create_writer(session.scope, "s")
    source = random.Random(7)
    events = [source.randbytes(size) for size in (1, 100, 4096, 100_000, 1 << 20, 2, 8_000_000, 3)]
    for event in events:
        writer.write_event_bytes(event, routing_key="one key")
    writer.flush()
    assert session.read_all("g", "s", len(events)) == events


def nine_megabytes(session: Session) -> None:
    session.stream("s", 2)
    writer = session.manager.create_writer(session.scope, "s")
    source = random.Random(9)
    events = [b"before", source.randbytes(9_000_000), b"after"]
    for event in events:
        writer.write_event_bytes(event, routing_key="one key")
    writer.flush()
    assert session.read_all("g", "s", len(events)) == events


def beginnings(session: Session) -> None:
    session.stream("s", 2)
    session.write("s", 6, 0, 10)
    head = session.group("head", "s")
    first = head.create_reader("r")
    assert len(asyncio.run(take_all(first, 60))) == 60
    cut = head.get_streamcut()
    tail = session.group("tail", "s", read_from_tail=True)
    session.write("s", 6, 10, 15)
    for group in (session.group("cut", "s", stream_cut=cut), tail):
        events = asyncio.run(take_all(group.create_reader("r"), 30))
        assert all(int(event.partition(b":")[2]) >= 10 for event in events), events[:3]
    session.manager.delete_reader_group("head", session.scope)
    KeyOrder().add_all(session.read_all("again", "s", 90)).check(90)


def takeover(session: Session) -> None:
    session.stream("s", 1)
    session.write("s", 3, 0, 20)
    group, order = session.group("g", "s"), KeyOrder()

    async def read_some(name: str) -> int:
        """One slice of which a part is read, and the rest left to the next reader."""
        reader = group.create_reader(name)
        taken = await next_slice(reader, PATIENCE_SECONDS)
        count = 0
        for event in taken:
            order.add(bytes(event.data()))
            count += 1
            if count == 10:
                break
        reader.release_segment(taken)
        reader.reader_offline()
        return count

    assert asyncio.run(read_some("first")) == 10
    order.add_all(asyncio.run(take_all(group.create_reader("second"), 50)))
    order.check(60)


def byte_stream(session: Session) -> None:
    session.stream("b", 1)
    stream = session.manager.create_byte_stream(session.scope, "b")
    assert stream.write(b"0123456789" * 10) == 100
    stream.flush()
    assert (stream.current_head_offset(), stream.current_tail_offset()) == (0, 100)
    buffer = bytearray(10)
    stream.seek(35, 0)
    assert stream.readinto(buffer) == 10
    assert (bytes(buffer), stream.tell()) == (b"5678901234", 45)
    stream.truncate(20)
    assert stream.current_head_offset() == 20
    content = random.Random(3).randbytes(5_000_000)
    for start in range(0, len(content), 60_000):
        piece = content[start : start + 60_000]
        assert stream.write(piece) == len(piece)
    stream.flush()
    assert stream.current_tail_offset() == 100 + len(content)
    stream.seek(100, 0)
    given = bytearray()
    buffer = bytearray(1 << 16)
    while len(given) < len(content):
        count = stream.readinto(buffer)
        assert count > 0, f"ended after {len(given)}"
        given += buffer[:count]
    assert bytes(given) == content


def transactions(session: Session) -> None:
    session.stream("s", 2)
    writer = session.manager.create_transaction_writer(session.scope, "s", 1)
    for step in range(3):
        transaction = writer.begin_txn()
        for number in range(step * 5, step * 5 + 5):
            for key in range(4):
                transaction.write_event(f"k{key}:{number}", routing_key=f"k{key}")
        assert transaction.is_open()
        # Known again by its id, as another process would.
        same = writer.get_txn(transaction.get_txn_id())
        assert same.is_open()
        transaction.commit()
        wait_until_closed(transaction)
        dropped = writer.begin_txn()
        dropped.write_event("k0:999", routing_key="k0")
        dropped.abort()
        wait_until_closed(dropped)
        try:
            dropped.commit()
        except Exception:  # noqa: BLE001 - the wheel has several
            pass
        else:
            raise AssertionError("a commit after the abort")
    KeyOrder().add_all(session.read_all("g", "s", 60)).check(60)


def wait_until_closed(transaction: "pravega.StreamTransaction") -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while transaction.is_open():
        assert time.monotonic() < deadline, "still open"
        time.sleep(0.05)


def seal_and_delete(session: Session) -> None:
    for life in range(2):
        session.stream("s", 2)
        session.write("s", 4, 0, 3 + life)
        assert session.manager.seal_stream(session.scope, "s")
        KeyOrder().add_all(session.read_all(f"g{life}", "s", 12 + 4 * life)).check(12 + 4 * life)
        assert session.manager.delete_stream(session.scope, "s")
    assert "s" not in {split_name(each) for each in session.manager.list_stream(session.scope)}


def tail_reading(session: Session) -> None:
    session.stream("s", 1)
    reader = session.group("g", "s").create_reader("r")
    writer = session.manager.create_writer(session.scope, "s")

    async def follow() -> None:
        for number in range(20):
            writer.write_event(f"k:{number}", routing_key="k")
            writer.flush()
            assert await take(reader, 1) == [f"k:{number}".encode()]
        reader.reader_offline()

    asyncio.run(follow())


SCENARIOS: dict[str, Callable[[Session], None]] = {
    "scopes_and_streams_are_made_listed_and_deleted": scopes_and_streams,
    "tags_and_policies_are_kept_and_changed": tags_and_policies,
    "events_over_several_segments_keep_each_keys_order": events_on_segments,
    "a_writer_with_default_settings_waits_for_each_event": default_writer,
    "events_of_one_byte_to_eight_megabytes_are_whole": sizes,
    "events_of_nine_megabytes_are_whole": nine_megabytes,
    "a_group_begins_at_head_tail_or_a_cut": beginnings,
    "a_reader_goes_on_where_another_stopped": takeover,
    "a_byte_stream_is_written_sought_and_truncated": byte_stream,
    "transactions_are_committed_or_aborted_whole": transactions,
    "a_sealed_stream_is_read_to_its_end_and_deleted": seal_and_delete,
    "a_reader_at_the_tail_is_woken": tail_reading,
}


def main() -> None:
    uri, scope, name = sys.argv[1:]
    failure = ""
    started = time.monotonic()
    try:
        SCENARIOS[name](Session(uri, scope))
    except BaseException:  # noqa: BLE001 - the wheel's panics are not Exceptions
        failure = traceback.format_exc()
    line(
        scenario=name,
        passed=not failure,
        seconds=time.monotonic() - started,
        failure=failure[-3000:],
    )
    # The wheel's own threads would keep an ordinary exit waiting.
    os._exit(0)


if __name__ == "__main__":
    main()
