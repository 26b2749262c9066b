"""Uploads on the disk.

    DIR/temp/UPLOAD/upload.json    upload_record
    DIR/temp/UPLOAD/part-...       part_files
    DIR/temp/UPLOAD/*.new          a file that is being written

Invariants:

- A file has its name only when it is synced, and is told to nobody before its name is: what was acknowledged outlives
  the process, and power cuts.
- A removal takes the record first: one that was cut short is finished at the next start.

Blocking; made for an executor, by several of its threads at once.
"""

import contextlib
import errno
import logging
import re
from collections.abc import Iterator, Sequence

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import FileSystem
from tier2.volumes.part_files import Part, part_of_file_name, part_slices
from tier2.volumes.upload_record import Upload, decode_upload_record, encode_upload_record

_LOGGER = logging.getLogger(__name__)
_RECORD = "upload.json"
_NEW = ".new"
_ID = re.compile(r"[0-9a-f]{32}")
_RECORD_BYTES_MAX = 32 << 20


class UploadFiles:
    """The directory of uploads. All calls raise OSError, FileNotFoundError of it if the upload is gone."""

    def __init__(self, directory: str, *, files: FileSystem) -> None:
        self._directory = directory
        self._files = files

    def load(self) -> list[Upload]:
        """What was begun before, the oldest first; what was half-written is removed."""
        files = self._files
        uploads: list[Upload] = []
        for name in files.list(self._directory):
            path = f"{self._directory}/{name}"
            if not _ID.fullmatch(name) or not files.is_directory(path):
                continue
            names = files.list(path)
            if _RECORD not in names:
                self.remove(name)
                continue
            try:
                upload = Upload(name, decode_upload_record(self._read(f"{path}/{_RECORD}")))
            except CorruptedDataError as error:
                _LOGGER.error("an upload cannot go on, its files stay: %s path=%s", error, path)
                continue
            uploads.append(upload)
            for file_name in names:
                self._load_file(upload, file_name)
        return sorted(uploads, key=lambda upload: (upload.record.begun_ms, upload.upload_id))

    def create(self, upload: Upload) -> None:
        """The record is there, durably."""
        self._files.make_directories(self._path(upload.upload_id))
        content = encode_upload_record(upload.record)
        self._write(upload.upload_id, _RECORD + _NEW, [content], _RECORD)

    def write_part(
        self, upload_id: str, part: Part, content: Sequence[BufferView], *, temporary: str
    ) -> None:
        """The part is there, durably; `temporary` is a name that nobody else uses."""
        try:
            self._write(upload_id, temporary + _NEW, content, part.file_name())
        except BaseException:
            with contextlib.suppress(OSError):
                self._files.remove(f"{self._path(upload_id)}/{temporary}{_NEW}")
            raise

    def remove_part(self, upload_id: str, part: Part) -> None:
        """If it is still there."""
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(f"{self._path(upload_id)}/{part.file_name()}")

    def remove(self, upload_id: str) -> None:
        """It is completed, or given up."""
        path = self._path(upload_id)
        names = self._files.list(path)
        for name in sorted(names, key=lambda name: name != _RECORD):
            with contextlib.suppress(FileNotFoundError):  # a part that just got its name
                self._files.remove(f"{path}/{name}")
            if name == _RECORD:
                self._files.sync_directory(path)
        try:
            self._files.remove_directory(path)
        except OSError as error:
            # A part that arrived meanwhile: the next start removes it, as no record is with it.
            if error.errno != errno.ENOTEMPTY:
                raise

    def slices(self, upload_id: str, parts: Sequence[Part]) -> Iterator[bytes]:
        """Their bytes, one behind the other, checked. Raises CorruptedDataError."""
        for part in parts:
            yield from part_slices(self._path(upload_id), part, self._files)

    def _load_file(self, upload: Upload, file_name: str) -> None:
        if file_name.endswith(_NEW):
            self._files.remove(f"{self._path(upload.upload_id)}/{file_name}")
            return
        part = part_of_file_name(file_name)
        if part is None:
            return
        former = upload.parts.get(part.number)
        if former is None or part.stored_ms >= former.stored_ms:
            upload.parts[part.number] = part
        else:
            former = part
        if former is not None:
            self.remove_part(upload.upload_id, former)

    def _read(self, path: str) -> bytes:
        file = self._files.open(path)
        try:
            return file.read_at(0, _RECORD_BYTES_MAX)
        finally:
            file.close()

    def _write(
        self, upload_id: str, temporary: str, content: Sequence[BufferView], name: str
    ) -> None:
        path = self._path(upload_id)
        file = self._files.open(f"{path}/{temporary}", create=True)
        try:
            file.write_at(0, content)
            file.sync_data()
        finally:
            file.close()
        self._files.rename(f"{path}/{temporary}", f"{path}/{name}")
        self._files.sync_directory(path)

    def _path(self, upload_id: str) -> str:
        return f"{self._directory}/{upload_id}"
