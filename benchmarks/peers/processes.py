"""What the kernel says of a server: the CPU and memory of a process and of its children."""

import os
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def family(process_id: int) -> list[int]:
    """The process and all that descend from it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = _fields(int(entry.name))
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found = [process_id]
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found


def cpu_seconds(process_id: int) -> float:
    """User and system time so far."""
    ticks = 0
    for each in family(process_id):
        fields = _fields(each)
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_SECOND


def resident_bytes(process_id: int) -> int:
    pages = 0
    for each in family(process_id):
        pages += int(Path(f"/proc/{each}/statm").read_text().split()[1])
    return pages * _PAGE_BYTES


def _fields(process_id: int) -> list[str]:
    """Of /proc/PID/stat, from the state on: a name may contain anything, a closing bracket too."""
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
