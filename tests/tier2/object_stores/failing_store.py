"""A filesystem store on files that can fail."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from tests.tier2.object_stores.failing_files import FailingFileSystem
from tier2.object_stores.filesystem import FilesystemObjectStore, FilesystemObjectStoreSettings

SMALL_SETTINGS = FilesystemObjectStoreSettings(
    lock_attempts_max=5, lock_delay_seconds_max=0.001, write_bytes_max=1000
)


class World:
    """A store on files that can fail."""

    def __init__(self, tmp_path: Path, executor: ThreadPoolExecutor | None = None) -> None:
        self.root = tmp_path / "store"
        self.files = FailingFileSystem()
        self.log = self.files.log
        self.store = FilesystemObjectStore(
            str(self.root),
            files=self.files,
            executor=executor,
            random=Random(7),
            settings=SMALL_SETTINGS,
        )

    def temporary_files(self) -> list[str]:
        return [path.name for path in (self.root / "temporary").iterdir() if "-" in path.name]
