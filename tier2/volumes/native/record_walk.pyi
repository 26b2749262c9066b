from collections.abc import Callable

ROW_FORMAT: int

def walk(
    content: memoryview,
    start: int,
    volume: int,
    seed: int,
    rows: list[tuple[bytes, memoryview]],
    take_other: Callable[[int], bool],
    /,
) -> tuple[int, int, int, int, int, int, int]: ...
