"""The key pair that clients sign with: given, or made at first start and kept where only the owner can read it.

DIR/s3_credentials.json    {"access_key": "...", "secret_key": "..."}, mode 0600
"""

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from random import Random

from segmentstore.contracts.errors import InvalidRequestError

FILE_NAME = "s3_credentials.json"
ACCESS_KEY_VARIABLE = "SEGMENTSTORE_S3_ACCESS_KEY"
SECRET_KEY_VARIABLE = "SEGMENTSTORE_S3_SECRET_KEY"
_SECRET_LENGTH_MIN = 8


@dataclass(frozen=True, slots=True)
class Credentials:
    """One key pair."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r}, secret_key=hidden)"


def given_credentials(access_key: str, secret_key: str) -> Credentials | None:
    """None if there are none. Raises InvalidRequestError for half of them, or for such as nobody could sign with."""
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        raise InvalidRequestError(
            f"{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE} are given together or not at all"
        )
    if "/" in access_key or "," in access_key or len(secret_key) < _SECRET_LENGTH_MIN:
        raise InvalidRequestError(
            f"an access key has no slash and no comma, and a secret key at least {_SECRET_LENGTH_MIN} characters"
        )
    return Credentials(access_key, secret_key)


def kept_credentials(directory: str, random: Random) -> tuple[Credentials, bool]:
    """Those of the directory, and whether they are new. Blocking. Raises InvalidRequestError, OSError."""
    path = Path(directory, FILE_NAME)
    if path.exists():
        return _read(path), False
    made = Credentials(
        access_key=base64.b32encode(random.randbytes(12)).decode().rstrip("="),
        secret_key=base64.urlsafe_b64encode(random.randbytes(30)).decode(),
    )
    _write(path, made)
    return made, True


def _read(path: Path) -> Credentials:
    if path.stat().st_mode & 0o077:
        raise InvalidRequestError(f"others can read the secret key: chmod 600 {path}")
    try:
        fields = json.loads(path.read_text())
        return Credentials(fields["access_key"], fields["secret_key"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError(f"the credentials cannot be read path={path}") from error


def _write(path: Path, credentials: Credentials) -> None:
    # Under another name until it is whole; never with other rights than the owner's, not even for a moment.
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    content = json.dumps(
        {"access_key": credentials.access_key, "secret_key": credentials.secret_key}
    )
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content + "\n")
    temporary.replace(path)
