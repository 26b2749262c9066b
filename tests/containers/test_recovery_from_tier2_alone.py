"""The log is gone, with whatever was in it: Tier 2 alone gives a state that was once true (H13, H15)."""

import asyncio
from random import Random

import pytest

from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.contracts.segments import AttributeUpdate
from tests.containers.node import MemoryTiers
from tests.containers.test_care_of_tier2 import caring
from tests.containers.test_segment_container import read_all
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.storage.faulty_store import FaultyStore
from tier1.memory_log import MemoryLogStore
from tier2.manifest.manifest import decode_manifest

WRITERS = [AttributeKey(bytes([number]) * 16) for number in range(1, 4)]
EVENT_BYTES = 24


def event(writer: int, number: int) -> bytes:
    return b"%d:%d;" % (writer, number) + b"." * (EVENT_BYTES - len(b"%d:%d;" % (writer, number)))


async def lose_tier1(tiers: MemoryTiers, store: FaultyStore) -> None:
    """A new log above everything that the root knows: what `recover --from-tier2` leaves behind."""
    root = decode_manifest((await store.store.get("containers/0000/root")).content)
    tiers.log_store = MemoryLogStore(
        log_id=b"a log begun anew", follows=root.log_id, epoch=root.epoch
    )


@pytest.mark.parametrize("seed", range(6))
def test_h13_h15_writer_ids_and_bytes_come_back_as_of_one_moment(seed: int) -> None:
    async def main(_: SimLoop) -> None:
        random = Random(seed)
        tiers = MemoryTiers()
        store = FaultyStore(tiers.object_store)
        flushed = 0
        sent = dict.fromkeys(range(len(WRITERS)), 0)
        async with caring(tiers, store) as container:
            await container.create("a")
            await container.flush()
            for _turn in range(random.randint(50, 300)):
                writer = random.randrange(len(WRITERS))
                sent[writer] += 1
                update = AttributeUpdate(WRITERS[writer], sent[writer])
                async with container.open_segment("a") as segment:
                    length = await segment.append(
                        event(writer, sent[writer]), attribute_updates=[update]
                    )
                if random.random() < 0.05:
                    await container.flush()
                    flushed = length
                await asyncio.sleep(random.random() * 4.0)
        await lose_tier1(tiers, store)
        async with caring(tiers, store) as container:
            content = await read_all(container, "a")
            assert len(content) >= flushed
            assert len(content) % EVENT_BYTES == 0
            found = dict.fromkeys(range(len(WRITERS)), 0)
            for at in range(0, len(content), EVENT_BYTES):
                whose, number = content[at : at + EVENT_BYTES].split(b";")[0].split(b":")
                assert int(number) == found[int(whose)] + 1, "an event is missing or out of order"
                found[int(whose)] = int(number)
            attributes = await container.attributes("a", WRITERS)
            assert [attributes.get(key, 0) for key in WRITERS] == list(found.values())
            async with container.open_segment("a") as segment:
                again = AttributeUpdate(WRITERS[0], found[0] + 1)
                await segment.append(event(0, found[0] + 1), attribute_updates=[again])
            await container.flush()

    run_simulation(seed, main)
