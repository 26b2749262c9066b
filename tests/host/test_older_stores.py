"""Goal: what a store has of every kind is there, byte by byte, when a later version of the program opens it.

Method: stores of one container that older versions made, by the clients of this tree, and that were killed: the half
named `old` was flushed to Tier 2, the half named `hot` was in the log alone. Zeros are left out (journals and reserves
ahead of need). `store_2026_11_21` is of the first day (253cb157: an index of the volumes without checksums, manifests
of version 1), `store_2026_11_28` has topics (f732e6d4). They are opened as they are and looked at, then again behind a
flush and a clean end. Never made anew: a store of a newer version goes beside them.
"""

import asyncio
import json
import tarfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path

import pytest

from segmentstore.cli.http_client import HttpClient
from segmentstore.cli.server_process import ServerProcess
from segmentstore.client import StartAt, Store, connect
from segmentstore.client.topics import GroupOffset, connected_topics
from segmentstore.codec.record_batch import Record
from tests.held_ports import bound_sockets, ports_of

pytestmark = pytest.mark.integration

GOLDEN = Path(__file__).parents[1] / "golden"
COUNTER = "aaaaaaaa-0000-0000-0000-000000000001"
"""The id of an attribute."""


def answer_of(server: ServerProcess, path: str) -> tuple[int, bytes, Mapping[str, str]]:
    try:
        with urllib.request.urlopen(server.address + path, timeout=60) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read(), dict(refusal.headers)


def check_segments(server: ServerProcess) -> None:
    for half in ("old", "hot"):

        def segment(name: str, half: str = half) -> tuple[int, bytes, bool]:
            path = f"/v1/segments/{half}%2F{name}"
            told = json.loads(answer_of(server, f"{path}/info")[1])
            status, content, _ = answer_of(server, f"{path}/read?offset={told['start_offset']}")
            assert status == 200
            assert told["length"] == told["start_offset"] + len(content)
            return told["start_offset"], content, told["sealed"]

        later = half == "old"  # changed again behind the flush
        plain = f"{half} plain ".encode() * 20 + b" and more" * later
        assert segment("plain") == (0, plain, False)
        cut = 44 if later else 33
        assert segment("cut") == (cut, (f"{half} cut ".encode() * 20)[cut:], False)
        assert segment("sealed") == (0, f"{half} sealed ".encode() * 20, True)
        assert segment("again") == (0, b"another one", False)
        assert segment("target") == (0, f"{half} target ".encode() * 20 + b"merged", False)
        assert answer_of(server, f"/v1/segments/{half}%2Fgone/info")[0] == 404
        transaction = urllib.parse.quote(f"{half}/target#transaction.{1:032}", safe="")
        assert answer_of(server, f"/v1/segments/{transaction}/info")[0] == 404
        attributes = json.loads(answer_of(server, f"/v1/segments/{half}%2Fplain/attributes")[1])
        assert f'"{COUNTER}": {8 if later else 7}' in json.dumps(attributes)


def check_http_streams(server: ServerProcess) -> None:
    for half in ("old", "hot"):
        _, room, headers = answer_of(server, f"/v1/stream/{half}-room")
        assert json.loads(room) == [{"n": 1}, {"n": 2}]
        assert headers["Content-Type"] == "application/json"
        _, fork, _ = answer_of(server, f"/v1/stream/{half}-fork")
        assert json.loads(fork) == [{"n": 1}, {"n": 2}, {"n": 3}]
        _, text, headers = answer_of(server, f"/v1/stream/{half}-text")
        assert (text, headers["Stream-Closed"]) == (b"ab", "true")
        repeated = urllib.request.Request(
            f"{server.address}/v1/stream/{half}-room",
            data=b'{"n": 3}',
            method="POST",
            headers={"Content-Type": "text/plain"},
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(repeated, timeout=60)
        refused.value.close()
        assert refused.value.code == 409


async def check_streams_and_tables(store: Store) -> None:
    assert await store.scopes() == ["shop"]
    assert await store.scope("shop").streams() == ["hot", "old"]
    assert await store.scope("shop").tables() == ["hot-table", "old-table"]
    for half in ("old", "hot"):
        stream = store.stream(f"shop/{half}")
        assert len(await stream.segments()) == 2
        async with stream.read(await stream.head(), stop_at=await stream.tail()) as events:
            found = [event.data async for event in events]
        assert sorted(found) == [b"committed", *[b"event %d" % number for number in range(9)]]
        # In order for each key, across the scaling.
        for key in range(3):
            its = [b"event %d" % number for number in range(key, 9, 3)]
            assert [event for event in found if event in its] == its
        table = store.table(f"shop/{half}-table")
        async with aclosing(table.entries()) as entries:
            rows = {entry.key: entry.value async for entry in entries}
        assert rows == {b"key0": b"value 0", b"key1": b"again", b"key3": b"value 3"}
    assert await store.scope("shop").reader_groups() == ["group"]
    assert sum((await store.reader_group("shop/group").stream_cut()).offsets.values()) > 0


async def check_topics(kafka: str) -> None:
    async with connected_topics(kafka) as topics:
        assert await topics.partition_counts() == {"hot-topic": 2, "old-topic": 2}
        for half in ("old", "hot"):
            assert (await topics.config(f"{half}-topic"))["retention.ms"] == "-1"
            for partition in range(2):
                offset = 0
                records: list[Record] = []
                while offset < 4:  # two batches, of two codecs
                    found = await topics.fetch(f"{half}-topic", partition, offset=offset)
                    records += found.records
                    offset = found.next_offset
                assert [
                    (record.offset, record.key, record.value, record.timestamp_ms, record.headers)
                    for record in records
                ] == [
                    (
                        at,
                        b"k%d" % number,
                        b"value %d" % number if number else None,
                        1_790_000_000_000 + number,
                        (("h", b"%d" % number),),
                    )
                    for at, number in enumerate([partition, partition + 2] * 2)
                ]
            assert await topics.group_offsets(f"{half}-group") == [
                GroupOffset(f"{half}-topic", 1, 3, "meta\0")  # as librdkafka sends a text
            ]


async def check_goes_on(store: Store) -> None:
    """What the controller remembers of its segments is enough to write, scale and read on."""
    stream, group = store.stream("shop/old"), store.reader_group("shop/behind")
    async with stream.writer() as writer:
        await writer.write(b"behind the upgrade", key="k1")
    await group.create(["old"], start=StartAt.HEAD)
    await stream.seal()
    async with group.reader("reader") as reader:
        found = [event.data async for event in reader]
    assert len(found) == 11
    assert b"behind the upgrade" in found


@pytest.mark.parametrize("name", ["store_2026_11_21", "store_2026_11_28"])
def test_a_store_of_an_older_version_has_every_byte_of_every_kind(
    tmp_path: Path, name: str
) -> None:
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    has_topics = name == "store_2026_11_28"
    (held,) = bound_sockets(1)
    with held:
        (port,) = ports_of([held])
        options = ["--kafka", f"127.0.0.1:{port}"] if has_topics else []
        server = ServerProcess(tmp_path / "store", options)

        async def look(*, last: bool) -> None:
            words = dict(word.partition("=")[::2] for word in server.ready_line.split())
            check_segments(server)
            check_http_streams(server)
            async with connect(f"tcp://{words['controller']}") as store:
                await check_streams_and_tables(store)
                if has_topics:
                    await check_topics(words["kafka"])
                if last:
                    await check_goes_on(store)
            async with HttpClient(server.address) as client:
                await client.flush_all()

        for last in (False, True):
            with server:
                asyncio.run(look(last=last))
                assert server.terminate() == 0
