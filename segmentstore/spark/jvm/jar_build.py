"""The jar with the Java reader: compiled once for each pair of sources and Spark, against Spark's own jars.

    segmentstore/spark/jvm/java/src/           the sources
    segmentstore/spark/jvm/java/META-INF/      what lets Spark find the format by its name
    segmentstore/spark/jvm/java/segmentstore-jvm-<key>.jar    in a wheel: built before it was packed
    <cache>/segmentstore/segmentstore-jvm-<key>.jar           otherwise

<cache> is $XDG_CACHE_HOME or ~/.cache; <key> is a hash of the sources and of the version of Spark.

Invariants:

- A jar gets its name last, so one that is there is whole, and was made from these sources for this Spark.
- The same sources and compiler give the same bytes.
- Only the JDK's `javac` is needed: no Maven, and nothing is fetched.

`python -m segmentstore.spark.jvm.jar_build DIRECTORY` builds it into a directory.
"""

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from segmentstore.contracts.errors import InvalidRequestError

_JAVA: Final = Path(__file__).parent / "java"
_JAVA_RELEASE: Final = "17"
"""What the classes run on: Spark itself needs no less."""
_COMPILE_SECONDS_MAX: Final = 300
_ZIP_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def jvm_jar() -> Path:
    """The jar for `spark.jars`, built if it is not there yet.

    Raises InvalidRequestError without a JDK, or if the sources do not compile against this Spark.
    """
    name = jar_name()
    packed = _JAVA / name
    if packed.exists():
        return packed
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "segmentstore"
    kept = cache / name
    return kept if kept.exists() else build(cache)


def build(directory: Path) -> Path:
    """Compile and pack into `directory`; the jar. Raises InvalidRequestError."""
    if shutil.which("javac") is None:
        raise InvalidRequestError(
            "javac is missing: the format segmentstore-jvm needs a JDK of release 17 or later once, to be compiled"
        )
    directory.mkdir(parents=True, exist_ok=True)
    jar = directory / jar_name()
    with tempfile.TemporaryDirectory(dir=directory) as working:
        classes = Path(working) / "classes"
        _compile(classes)
        made = Path(working) / jar.name
        _pack(made, classes)
        made.replace(jar)
    return jar


def jar_name() -> str:
    """Of the jar that these sources make for the Spark that is installed."""
    digest = hashlib.sha256(importlib.metadata.version("pyspark").encode())
    for path in [*_sources(), *_descriptions()]:
        digest.update(str(path.relative_to(_JAVA)).encode() + b"\0")
        digest.update(path.read_bytes())
    return f"segmentstore-jvm-{digest.hexdigest()[:16]}.jar"


def _sources() -> Sequence[Path]:
    return sorted((_JAVA / "src").rglob("*.java"))


def _descriptions() -> Sequence[Path]:
    return sorted(path for path in (_JAVA / "META-INF").rglob("*") if path.is_file())


def _compile(classes: Path) -> None:
    done = subprocess.run(
        [
            *("javac", "-nowarn", "-proc:none", "--release", _JAVA_RELEASE, "-d", str(classes)),
            *("-classpath", str(_spark_jars() / "*"), *map(str, _sources())),
        ],
        capture_output=True,
        text=True,
        timeout=_COMPILE_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise InvalidRequestError(f"the Java reader does not compile: {done.stderr[-2000:]}")


def _spark_jars() -> Path:
    import pyspark  # only a build needs it

    return Path(pyspark.__file__).parent / "jars"


def _pack(jar: Path, classes: Path) -> None:
    entries = [(path.relative_to(classes), path) for path in sorted(classes.rglob("*.class"))]
    entries += [(path.relative_to(_JAVA), path) for path in _descriptions()]
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in entries:
            archive.writestr(zipfile.ZipInfo(str(name), _ZIP_EPOCH), path.read_bytes())


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(sys.argv[1]))}\n")
