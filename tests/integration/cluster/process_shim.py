"""A library that a process is started with, by which a test sets its clock and leads its connections through proxies.

What it does is in process_shim.c, and what it reads. It is compiled once by the C compiler of this machine. It changes
what a process is told, and nothing of the kernel's: it needs no rights, and no other process notices.

    <directory>/clock, <directory>/routes     of one process; written here
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.integration.java_libraries import cache_directory, digest

_SOURCE = Path(__file__).with_suffix(".c")
_NANOSECONDS = 1_000_000_000


class ProcessShim:
    """Of one process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._library = built_shim()
        self._clock = directory / "clock"
        self._clock.write_bytes(bytes(8))
        self._routes = directory / "routes"
        self._routes.touch()

    @property
    def environment(self) -> Mapping[str, str]:
        """What the process has to be started with."""
        return {"LD_PRELOAD": str(self._library), "PROCESS_SHIM": str(self._directory)}

    def set_clock(self, seconds_ahead: float) -> None:
        """Of its calendar before this machine's. Counts at once."""
        content = int(seconds_ahead * _NANOSECONDS).to_bytes(8, "little", signed=True)
        with self._clock.open("r+b", buffering=0) as file:  # one write: the process has it mapped
            file.write(content)

    def route(self, ports: Mapping[int, int]) -> None:
        """New connections to a port on loopback go to another one."""
        text = "".join(f"{port} {other}\n" for port, other in ports.items())
        made = self._routes.with_suffix(".new")
        made.write_text(text)
        made.replace(self._routes)


def can_be_built() -> bool:
    return shutil.which("cc") is not None


def built_shim() -> Path:
    """The library, compiled unless it is there. Needs a C compiler."""
    kept = cache_directory() / f"process-shim-{digest([_SOURCE])}.so"
    if not kept.exists():
        with TemporaryDirectory(dir=cache_directory()) as directory:
            made = Path(directory) / "shim.so"
            command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(made)]
            subprocess.run([*command, str(_SOURCE), "-ldl"], check=True)
            made.replace(kept)
    return kept
