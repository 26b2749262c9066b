"""The simulated disk is as mean as it says, and not meaner (H79)."""

import errno
from random import Random

import pytest

from segmentstore.runtime.files import FileSystem
from tests.sim.disk import PAGE_BYTES, DeadProcessError, Mount, SimulatedDisk
from tests.sim.power_cuts import Persistence, power_cut_image, power_cut_images

OLD, NEW = b"o" * PAGE_BYTES, b"n" * PAGE_BYTES
PAGES = 4


@pytest.fixture
def disk() -> SimulatedDisk:
    """One directory with one synced file of old pages."""
    disk = SimulatedDisk()
    files = disk.mount("maker")
    files.make_directories("/d")
    file = files.open("/d/f", create=True)
    file.write_at(0, [OLD] * PAGES)
    file.sync_data()
    file.close()
    files.sync_directory("/d")
    return disk


def content(disk: SimulatedDisk, path: str = "/d/f") -> bytes:
    file = disk.mount("reader").open(path)
    return file.read_at(0, file.size())


def survivors(disk: SimulatedDisk, path: str = "/d/f", tries: int = 400) -> set[bytes]:
    """Everything that may be left of a file."""
    images = [power_cut_image(disk, Persistence.SUBSET, Random(n)) for n in range(tries)]
    return {content(image, path) for image in images if path in image.names}


def test_a_mount_is_a_file_system(disk: SimulatedDisk) -> None:
    files: FileSystem = disk.mount("p")
    assert files.list("/") == ["d"]
    assert (files.list("/d"), files.size("/d/f")) == (["f"], PAGES * PAGE_BYTES)


def test_h79_unsynced_pages_persist_in_any_subset_over_the_old_ones(disk: SimulatedDisk) -> None:
    file = disk.mount("p").open("/d/f")
    file.write_at(0, [NEW] * PAGES)
    assert content(disk) == NEW * PAGES
    assert len(survivors(disk)) == 2**PAGES


def test_h79_a_page_may_keep_any_version_since_the_last_sync(disk: SimulatedDisk) -> None:
    file = disk.mount("p").open("/d/f")
    for letter in (b"1", b"2"):
        file.write_at(0, [letter * PAGE_BYTES])
    assert {left[:1] for left in survivors(disk)} == {b"o", b"1", b"2"}


def test_synced_pages_always_persist(disk: SimulatedDisk) -> None:
    file = disk.mount("p").open("/d/f")
    file.write_at(PAGE_BYTES, [NEW])
    file.sync_data()
    assert survivors(disk) == {OLD + NEW + OLD * 2}


def test_a_synced_write_makes_its_own_pages_certain_and_no_others(disk: SimulatedDisk) -> None:
    file = disk.mount("p").open("/d/f")
    file.write_at(0, [NEW])
    file.write_synced(2 * PAGE_BYTES, [NEW])
    assert survivors(disk) == {OLD * 2 + NEW + OLD, NEW + OLD + NEW + OLD}


def test_h79_a_failed_synced_write_drops_its_pages_silently(disk: SimulatedDisk) -> None:
    file = disk.mount("p").open("/d/f")
    disk.faults.plan("sync", errno.EIO)
    with pytest.raises(OSError, match="simulated fault"):
        file.write_synced(0, [NEW])
    file.write_synced(PAGE_BYTES, [NEW])
    assert content(disk) == NEW * 2 + OLD * 2
    assert survivors(disk) == {OLD + NEW + OLD * 2}


def test_h79_a_size_may_persist_without_its_pages_and_the_other_way_round(
    disk: SimulatedDisk,
) -> None:
    file = disk.mount("p").open("/d/f")
    file.write_at(PAGES * PAGE_BYTES, [NEW])
    zeros = bytes(PAGE_BYTES)
    assert survivors(disk) >= {OLD * PAGES, OLD * PAGES + zeros, OLD * PAGES + NEW}


def test_h79_names_persist_one_by_one_until_the_directory_is_synced(disk: SimulatedDisk) -> None:
    files = disk.mount("p")
    for name in ("/d/a", "/d/b"):
        files.open(name, create=True).sync_data()
    files.remove("/d/f")
    seen = set()
    for number in range(200):
        image = power_cut_image(disk, Persistence.SUBSET, Random(number))
        seen.add(tuple(image.mount("r").list("/d")))
    assert len(seen) == 8
    files.sync_directory("/d")
    image = power_cut_image(disk, Persistence.NOTHING, Random(1))
    assert image.mount("r").list("/d") == ["a", "b"]


def test_h79_a_rename_is_atomic_and_may_be_lost(disk: SimulatedDisk) -> None:
    disk.mount("p").rename("/d/f", "/d/g")
    names = {
        tuple(power_cut_image(disk, Persistence.SUBSET, Random(n)).mount("r").list("/d"))
        for n in range(100)
    }
    assert names == {("f",), ("g",)}


def test_a_link_shares_the_file(disk: SimulatedDisk) -> None:
    files = disk.mount("p")
    files.link("/d/f", "/d/g")
    with pytest.raises(FileExistsError):
        files.link("/d/f", "/d/g")
    files.open("/d/g").write_at(0, [NEW])
    assert content(disk)[:1] == b"n"


def test_h79_a_failed_sync_drops_pages_although_the_next_one_says_ok(disk: SimulatedDisk) -> None:
    file = disk.mount("p").open("/d/f")
    file.write_at(0, [NEW])
    disk.faults.plan("sync", errno.EIO)
    with pytest.raises(OSError, match="simulated fault"):
        file.sync_data()
    file.sync_data()
    assert content(disk)[:1] == b"n", "it still reads back from the cache"
    assert content(power_cut_image(disk, Persistence.EVERYTHING, Random(1))) == OLD * PAGES


def test_a_prefix_keeps_changes_in_their_order(disk: SimulatedDisk) -> None:
    file = disk.mount("p").open("/d/f")
    for page in range(PAGES):
        file.write_at(page * PAGE_BYTES, [NEW])
    kinds = [image for kind, image in power_cut_images(disk, Random(3), subsets=0)]
    assert content(kinds[0]) == OLD * PAGES
    assert content(kinds[1]) == NEW * PAGES
    assert content(kinds[2]) in [NEW * n + OLD * (PAGES - n) for n in range(1, PAGES + 1)]


def test_an_image_does_not_change_the_disk(disk: SimulatedDisk) -> None:
    file = disk.mount("p").open("/d/f")
    file.write_at(0, [NEW])
    image = power_cut_image(disk, Persistence.NOTHING, Random(1))
    image.mount("q").open("/d/f").write_at(0, [b"changed"])
    file.sync_data()
    assert content(disk) == NEW + OLD * (PAGES - 1)


def test_h79_a_lock_is_held_until_its_process_dies(disk: SimulatedDisk) -> None:
    first, second = disk.mount("first"), disk.mount("second")
    assert first.open("/d/f").lock_exclusive()
    assert not second.open("/d/f").lock_exclusive()
    first.kill()
    assert second.open("/d/f").lock_exclusive()


def test_h79_a_dead_process_starts_nothing_but_a_submitted_write_may_land(
    disk: SimulatedDisk,
) -> None:
    files = disk.mount("p")
    file = files.open("/d/f")
    files.kill(late_writes=1)
    file.write_at(0, [NEW])
    assert content(disk)[:1] == b"n"
    for call in (lambda: file.write_at(0, [OLD]), file.sync_data, lambda: files.list("/d")):
        with pytest.raises(DeadProcessError):
            call()


def test_h79_a_write_of_a_dead_process_lands_when_the_test_says_so(disk: SimulatedDisk) -> None:
    files = disk.mount("p")
    file = files.open("/d/f")
    files.dies_in_next_write = True
    with pytest.raises(DeadProcessError):
        file.write_at(0, [NEW])
    assert content(disk) == OLD * PAGES
    disk.land_writes_of_the_dead()
    assert content(disk)[:1] == b"n"


def test_h79_space_runs_out_and_comes_back(disk: SimulatedDisk) -> None:
    files = disk.mount("p")
    disk.capacity_bytes = (PAGES + 1) * PAGE_BYTES
    file = files.open("/d/g", create=True)
    file.write_at(0, [b"x"])
    assert files.free_bytes("/d") == 0
    with pytest.raises(OSError, match="no space") as caught:
        file.write_at(PAGE_BYTES, [b"x"])
    assert caught.value.errno == errno.ENOSPC
    file.write_at(1, [b"inside the page"])
    files.remove("/d/f")
    file.write_at(PAGE_BYTES, [b"x"])


def test_h79_any_call_can_be_made_to_fail_by_plan_or_by_rate(disk: SimulatedDisk) -> None:
    files = disk.mount("p")
    disk.faults.plan("open", errno.EIO, path_part="f", skip=1, times=2)
    files.open("/d/f")
    for _ in range(2):
        with pytest.raises(OSError, match="simulated fault"):
            files.open("/d/f")
    files.open("/d/f")
    disk.faults.set_rate("list", 1.0, errno.EIO, Random(1))
    with pytest.raises(OSError, match="simulated fault"):
        files.list("/d")
    disk.faults.clear()
    assert files.list("/d") == ["f"]
    assert disk.faults.struck == 3


def test_losing_power_kills_everybody_and_settles_what_is_left(disk: SimulatedDisk) -> None:
    files: Mount = disk.mount("p")
    file = files.open("/d/f")
    file.write_at(0, [NEW] * PAGES)
    disk.lose_power(Random(5))
    with pytest.raises(DeadProcessError):
        file.read_at(0, 1)
    assert survivors(disk, tries=20) == {content(disk)}


def test_reading_into_memory_is_reading(disk: SimulatedDisk) -> None:
    file, memory = disk.mount("p").open("/d/f"), bytearray(PAGE_BYTES)
    file.write_at(0, [NEW])
    assert file.read_into(1, memoryview(memory)) == PAGE_BYTES
    assert memory == (NEW + OLD)[1 : PAGE_BYTES + 1]
    assert file.read_into(PAGES * PAGE_BYTES - 3, memoryview(memory)) == 3
    assert file.read_into(PAGES * PAGE_BYTES, memoryview(memory)) == 0


def test_truncation_cuts_and_zeroes(disk: SimulatedDisk) -> None:
    file = disk.mount("p").open("/d/f")
    file.truncate(100)
    file.truncate(2 * PAGE_BYTES)
    assert content(disk) == b"o" * 100 + bytes(2 * PAGE_BYTES - 100)
    file.sync_data()
    assert survivors(disk) == {content(disk)}
