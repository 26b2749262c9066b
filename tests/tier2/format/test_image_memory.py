"""Goal: memory for images is used again, only when it was given back, and no more of it is kept than allowed."""

from tier2.format.image_memory import ImageMemories, ImageMemory


def test_what_was_written_is_there_also_when_the_memory_has_grown() -> None:
    memory = ImageMemory(1)
    pieces = [bytes([n]) * 3_001 for n in range(20)]
    for number, piece in enumerate(pieces):
        memory.write(number * 3_001, piece)
    before = memory.view(60_020)
    assert before == b"".join(pieces)
    memory.write(60_020, b"x" * 1_000_000)
    assert before == b"".join(pieces), "a view of the smaller memory stays what it was"
    assert memory.view(1_060_020) == b"".join(pieces) + b"x" * 1_000_000
    assert memory.touched_bytes == 1_060_020
    assert memory.view(10).readonly


def test_memory_that_was_given_back_is_used_again_and_no_other() -> None:
    memories = ImageMemories(room=10_000, kept_bytes_max=5_000)
    first, second, third = memories.take(), memories.take(), memories.take()
    assert len({first, second, third}) == 3
    first.write(0, b"1" * 3_000)
    second.write(0, b"2" * 3_000)
    third.write(0, b"3" * 2_000)
    memories.give_back(first)
    memories.give_back(second)  # with it there would be too much
    memories.give_back(third)
    assert memories.kept_bytes == 5_000
    taken = [memories.take() for _ in range(3)]
    assert taken[:2] == [third, first]
    assert taken[2] not in (first, second, third)
    assert memories.kept_bytes == 0
