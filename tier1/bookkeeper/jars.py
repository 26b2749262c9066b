"""Where the Java parts are, and how Maven builds them: the client of BookKeeper with our helper, and its servers.

    java/pom.xml, java/src/       the helper, and what the client needs
    java/servers/pom.xml          what a ZooKeeper and bookies on this machine need
    java/target/classes/          the helper, compiled
    java/target/client/           the client's jars, 23 MB
    java/target/servers/          the servers' jars, 95 MB

$SEGMENTSTORE_BOOKKEEPER_JARS names another directory instead of java/target/, for building and for finding. Neither git
nor the wheel holds a jar: they are other people's work under licences of their own, which Maven fetches and checks.

Invariants:

- A part gets its stamp last, and the stamp is a digest of what it was built from: a part that is found is whole, and
  was made from these sources.
- One process builds at a time; another waits, and finds it built.

`python -m tier1.bookkeeper.jars client servers` builds one of them or both, and says what it does.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from segmentstore.contracts.errors import InvalidRequestError

VARIABLE: Final = "SEGMENTSTORE_BOOKKEEPER_JARS"
_JAVA: Final = Path(__file__).parent / "java"
_BUILD_SECONDS_MAX: Final = 900


class Part(Enum):
    """What is built by one pom; the value is the name of its directory."""

    CLIENT = "client"
    SERVERS = "servers"


_POMS: Final = {Part.CLIENT: _JAVA / "pom.xml", Part.SERVERS: _JAVA / "servers" / "pom.xml"}
_BOOKKEEPER_VERSION: Final = re.compile(
    r"<bookkeeper\.version>([^<]+)<|<artifactId>bookkeeper-server</artifactId>\s*<version>(\d[^<]*)<"
)
_JAVA_RELEASE: Final = re.compile(r"<maven\.compiler\.release>([^<]+)<")
_FETCHED: Final = {Part.CLIENT: "23 MB", Part.SERVERS: "95 MB"}


def directory() -> Path:
    """Where the parts are, built or not."""
    return Path(os.environ.get(VARIABLE) or _JAVA / "target").resolve()


def class_path(part: Part) -> list[str]:
    """For a JVM. Raises InvalidRequestError if the part is not built, or from other sources."""
    if not is_built(part):
        raise InvalidRequestError(
            f"the Java {part.value} of BookKeeper is not built in {directory()}: run 'make bookkeeper', "
            f"or 'python -m tier1.bookkeeper.jars {part.value}', or set {VARIABLE} to where it is"
        )
    jars = str(directory() / part.value / "*")
    return [str(directory() / "classes"), jars] if part is Part.CLIENT else [jars]


def bookkeeper_version() -> str:
    """Of its client and its servers, as their poms name it. Raises ValueError if they differ."""
    found = {
        version
        for pom in _POMS.values()
        for names in _BOOKKEEPER_VERSION.findall(pom.read_text())
        for version in names
        if version
    }
    (version,) = found
    return str(version)


def java_release() -> str:
    """The release of Java that our helper is compiled for, the least that runs it."""
    (release,) = _JAVA_RELEASE.findall(_POMS[Part.CLIENT].read_text())
    return str(release)


def is_built(part: Part) -> bool:
    """Whether it is there, from these sources."""
    stamp = _stamp(part)
    return stamp.exists() and stamp.read_text() == _digest(part)


def build(part: Part) -> None:
    """Build it unless it is there. Raises InvalidRequestError without Java or Maven, or if Maven fails."""
    require_java()
    _require("mvn")
    target = directory()
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_built(part):
            _say(
                f"building the {part.value} of BookKeeper with Maven in {target};"
                f" the first time it fetches {_FETCHED[part]}"
            )
            shutil.rmtree(target / part.value, ignore_errors=True)
            _run_maven(part, target)
            _stamp(part).write_text(_digest(part))
    _say(f"BookKeeper: {part.value} in {target / part.value}")


def require_java() -> None:
    """Raises InvalidRequestError without it."""
    _require("java")


def _require(tool: str) -> None:
    if shutil.which(tool) is None:
        raise InvalidRequestError(
            f"{tool} is missing: BookKeeper needs a JDK of release 17 or later, and Maven to build its client once"
        )


def _run_maven(part: Part, target: Path) -> None:
    done = subprocess.run(
        [
            *("mvn", "--quiet", "--batch-mode", "--file", str(_POMS[part]), "compile"),
            f"-Dsegmentstore.target={target}",
        ],
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise InvalidRequestError(
            f"Maven cannot build the {part.value} of BookKeeper: {(done.stdout + done.stderr).strip()[-2000:]}"
        )


def _digest(part: Part) -> str:
    files = [_POMS[part]]
    if part is Part.CLIENT:
        files += sorted(path for path in (_JAVA / "src").rglob("*") if path.is_file())
    digest = hashlib.sha256()
    for path in files:
        digest.update(str(path.relative_to(_JAVA)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _stamp(part: Part) -> Path:
    return directory() / f"{part.value}.built"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    try:
        for part in [Part(each) for each in arguments] or list(Part):
            build(part)
    except InvalidRequestError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
