"""One run of a job at a time: the directory that a job writes to belongs to one run until that run ends.

- The lock is the system's: it goes with its process, however that ends, so a job that was killed starts again at once.
- A second run is refused and changes nothing. It does not wait: what it was started for is being done.
- Where directories have no locks (file systems of Hadoop) what counts is made and never replaced: of two runs that do
  the same step one wins, and the other ends with the same error.
"""

import errno
import os

from segmentstore.contracts.errors import ErrorKind, InvalidRequestError, SegmentStoreError
from segmentstore.runtime.files import File, FileSystem, LockHeldError, lock_file

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class JobInUseError(SegmentStoreError):
    """Another run works with the same directory."""

    kind = ErrorKind.CONFLICT


def lock_run(files: FileSystem, path: str) -> File:
    """The lock of this run at `path`; closing the file ends it. Its directory is there.

    Raises JobInUseError; InvalidRequestError where the file system has no locks.
    """
    try:
        return lock_file(files, path, holder=f"process_id={os.getpid()}")
    except LockHeldError as error:
        raise JobInUseError(
            "another run of the job works with the directory; wait for its end, or end it first"
            f" {error.holder} lock={path}"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise InvalidRequestError(
            f"the file system of the directory has no locks, so two runs could meet there: name one on another"
            f" file system lock={path} error={error.strerror!r}"
        ) from error
