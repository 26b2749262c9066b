"""The files that are registered with a partition's segment, found by offset and by time.

Which files there are is read from attributes (segmentstore/codec/topic_files.py) and changed by appends of the
partition's owner, which tells of them here once they are durable. One attribute of its own:

| attribute | says |
|---|---|
| COLD_BYTES | the bytes of the objects of all registered files together; absent: 0 |

Invariants:

- Numbers from `first` to `last` are registered, no others. `cold_end` is the end of the last one, deleted or not.
- In memory are the latest `known_max` that were looked at: a look-up is O(log files) attributes, mostly known ones.
- What is in memory is what is registered, as far as this opening knows: a look-up that was overtaken leaves nothing.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Final

from segmentstore.codec.topic_files import (
    COLD_END,
    FIRST_FILE,
    LAST_FILE,
    RegisteredFile,
    count_of,
    decode_file,
    encode_file,
    file_key,
)
from segmentstore.contracts.errors import CorruptedDataError, ErrorKind, SegmentStoreError
from segmentstore.contracts.identifiers import (
    CORE_ATTRIBUTE_PREFIX,
    SHORT_LIVED,
    AttributeKey,
)
from segmentstore.contracts.segments import AttributeUpdate, Segment, SegmentProperties

COLD_BYTES: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x08")

FILES_PER_UPDATE_MAX: Final = 500


class FileGoneError(SegmentStoreError):
    """A file is registered no more: its records were deleted, by this owner or by another one."""

    kind = ErrorKind.UNAVAILABLE

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"a file is registered no more name={name!r} file={number}")
        self.number = number


class RegisteredFiles:
    """Of one partition; load() first, and again at each opening."""

    def __init__(self, *, known_max: int) -> None:
        self._known_max = known_max
        self._known: OrderedDict[int, RegisteredFile] = OrderedDict()
        self._changes = 0
        """Of registrations that were there before."""
        self.cold_end = 0
        """Records below it are in files only."""
        self.first = 1
        self.last = 0
        """0: there never was one."""
        self.size_bytes = 0

    def __len__(self) -> int:
        return self.last - self.first + 1

    def load(self, info: SegmentProperties) -> None:
        """What the segment's core attributes say. Raises CorruptedDataError."""
        self.cold_end, first, self.last, self.size_bytes = [
            count_of(info.core_attributes, key, name=info.name)
            for key in (COLD_END, FIRST_FILE, LAST_FILE, COLD_BYTES)
        ]
        self.first = max(1, first)
        if self.first > self.last + 1:
            raise CorruptedDataError(f"files contradict themselves {self.first=} {self.last=}")
        self._known.clear()
        self._changes += 1

    # --- looking -----------------------------------------------------------------------------

    async def get(self, segment: Segment, number: int) -> RegisteredFile:
        """Raises FileGoneError, CorruptedDataError."""
        key = file_key(number)
        while True:
            known = self._known.get(number)
            if known is not None:
                self._known.move_to_end(number)
                return known
            changes = self._changes
            value = (await segment.load_attributes([key])).get(key)
            if changes == self._changes:
                break
            # It may be what was registered before, and come late: what is remembered is believed by sweeps.
        if value is None:
            raise FileGoneError(segment.name, number)
        file = decode_file(value)
        if self.first <= number <= self.last:
            self._remember(number, file)
        return file

    def _remember(self, number: int, file: RegisteredFile) -> None:
        self._known[number] = file
        self._known.move_to_end(number)
        if len(self._known) > self._known_max:
            self._known.popitem(last=False)

    def look_again(self, number: int) -> None:
        """The file may have been replaced by another one of the same range."""
        self._known.pop(number, None)

    async def at_offset(self, segment: Segment, offset: int) -> int:
        """The first file that ends behind the offset; `last` + 1 if there is none. Raises FileGoneError."""
        return await self._first(segment, lambda file: file.end_offset > offset)

    async def at_time(self, segment: Segment, time_ms: int) -> int:
        """The first file up to whose end a record is not older; `last` + 1 if there is none. Raises FileGoneError."""
        return await self._first(segment, lambda file: file.highest_ms_until_end >= time_ms)

    async def _first(self, segment: Segment, fits: Callable[[RegisteredFile], bool]) -> int:
        """The first file that fits, as do all behind it."""
        low, high = self.first, self.last + 1
        # Most readers are where the newest file is, or have just left the one before.
        for number in (self.last, self.last - 1):
            if low <= number < high:
                if not fits(await self.get(segment, number)):
                    return high
                high = number
        while low < high:
            middle = (low + high) // 2
            if fits(await self.get(segment, middle)):
                high = middle
            else:
                low = middle + 1
        return low

    async def highest_ms_until_end(self, segment: Segment) -> int | None:
        """What no record of a file goes beyond; None if there is no file. Raises FileGoneError."""
        if not len(self):
            return None
        return (await self.get(segment, self.last)).highest_ms_until_end

    async def latest(self, segment: Segment, *, without: Collection[int] = ()) -> int | None:
        """The first of those that have the highest time, but for some; None if no other one has records.

        It is the first one that reaches the highest time of the partition so far, O(log files), unless the record with
        that time was deleted: then every registration is looked at, and no object. Raises FileGoneError.
        """
        highest_ms = await self.highest_ms_until_end(segment)
        if highest_ms is None:
            return None
        if not without:
            number = await self.at_time(segment, highest_ms)
            if number <= self.last:
                file = await self.get(segment, number)
                if file.highest_ms == highest_ms and not file.is_batch:
                    return number
        latest: tuple[int, int] | None = None
        number = self.first
        while number <= self.last:
            for file in await self.some(segment, number, FILES_PER_UPDATE_MAX):
                is_later = latest is None or file.highest_ms > latest[0]
                if is_later and not file.is_batch and number not in without:
                    latest = file.highest_ms, number
                number += 1
            await asyncio.sleep(0)
        return None if latest is None else latest[1]

    async def some(self, segment: Segment, first: int, count: int) -> Sequence[RegisteredFile]:
        """At most so many from there on; they are not kept in memory. Raises FileGoneError."""
        count = min(count, self.last + 1 - first, FILES_PER_UPDATE_MAX)
        keys = [file_key(number) for number in range(first, first + count)]
        values = await segment.load_attributes(keys) if keys else {}
        if len(values) < len(keys):
            raise FileGoneError(segment.name, first)
        return [decode_file(values[key]) for key in keys]

    # --- changing ----------------------------------------------------------------------------

    def adding(self, file: RegisteredFile) -> list[AttributeUpdate]:
        """What registers the next file."""
        assert file.first_offset >= self.cold_end, f"files overlap {file=} {self.cold_end=}"
        assert file.first_offset == self.cold_end or not len(self), (
            f"a gap {file=} {self.cold_end=}"
        )
        return [
            AttributeUpdate(file_key(self.last + 1), encode_file(file)),
            AttributeUpdate(LAST_FILE, self.last + 1),
            AttributeUpdate(FIRST_FILE, self.first),
            AttributeUpdate(COLD_END, file.end_offset),
            AttributeUpdate(COLD_BYTES, self.size_bytes + file.size),
            AttributeUpdate(SHORT_LIVED, 1),
        ]

    def added(self, file: RegisteredFile) -> None:
        """It is registered, durably."""
        self.last += 1
        self.cold_end = file.end_offset
        self.size_bytes += file.size
        self._remember(self.last, file)

    def forgetting(self, files: Sequence[RegisteredFile]) -> list[AttributeUpdate]:
        """What forgets the first files."""
        size = sum(file.size for file in files)
        return [
            *(
                AttributeUpdate(file_key(number), None)
                for number in range(self.first, self.first + len(files))
            ),
            AttributeUpdate(FIRST_FILE, self.first + len(files)),
            AttributeUpdate(COLD_BYTES, self.size_bytes - size),
        ]

    def forgot(self, files: Sequence[RegisteredFile]) -> None:
        """They are registered no more, durably."""
        for number in range(self.first, self.first + len(files)):
            self._known.pop(number, None)
        self.first += len(files)
        self.size_bytes -= sum(file.size for file in files)

    def replacing(
        self, number: int, old: RegisteredFile, new: RegisteredFile
    ) -> list[AttributeUpdate]:
        """What puts another file of the same range into the place of one."""
        assert self.first <= number <= self.last, f"{number=} {self.first=} {self.last=}"
        assert (old.first_offset, old.end_offset) == (new.first_offset, new.end_offset), (old, new)
        return [
            AttributeUpdate(file_key(number), encode_file(new)),
            AttributeUpdate(COLD_BYTES, self.size_bytes - old.size + new.size),
        ]

    def replaced(self, number: int, old: RegisteredFile, new: RegisteredFile) -> None:
        """The other one is registered, durably."""
        self.size_bytes += new.size - old.size
        self._changes += 1
        self._remember(number, new)

    def check(self) -> None:
        """Proves the order of its numbers."""
        assert 1 <= self.first <= self.last + 1, f"{self.first=} {self.last=}"
        assert self.size_bytes >= 0, f"{self.size_bytes=}"
        assert all(self.first <= number <= self.last for number in self._known), f"{self.first=}"
        assert len(self._known) <= self._known_max
