"""The real clients, fetched once into a cache directory outside the checkout, and our programs compiled for them.

    <cache>/segmentstore/pravega-java-<digest of pom and sources>/   our classes
    <cache>/segmentstore/pravega-wheel-<version>/                    a venv with the wheel

<cache> is $XDG_CACHE_HOME or ~/.cache. A name is given last, so that an interrupted preparation is done again; of test
processes that run side by side one fetches, and the others wait for it.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.integration.java_libraries import cache_directory, class_path, digest, missing, run
from tests.kept_tools import made_by_one

HERE = Path(__file__).parent
JAVA = HERE / "java"
WHEEL = HERE / "wheel"
WHEEL_VERSION = "0.3.8"
_FETCH_SECONDS = 600


def require_java() -> None:
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            missing(
                f"{tool} is missing: Pravega's Java client was not run; install a JDK of release 17 or later and Maven"
            )


def java_command() -> list[str]:
    """Starts a JVM that finds the client and our programs; the class to run comes next."""
    path = class_path(JAVA / "pom.xml")
    classes = compiled(JAVA / "pom.xml", JAVA / "src")
    return [
        "java",
        "-Xms128m",
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-classpath",
        f"{classes}:{path}",
    ]


def compiled(pom: Path, sources: Path) -> Path:
    """Where the classes of these sources are."""
    files = sorted(sources.rglob("*.java"))
    kept = cache_directory() / f"pravega-java-{digest([pom, *files])}"
    if not kept.exists():
        with TemporaryDirectory(dir=cache_directory()) as directory:
            command = ["javac", "-nowarn", "-proc:none", "-d", f"{directory}/classes"]
            run([*command, "-classpath", class_path(pom), *map(str, files)])
            try:
                Path(directory, "classes").rename(kept)
            except OSError:
                assert kept.exists(), "another run was faster"
    return kept


def wheel_python() -> Path:
    """An interpreter that has the wheel."""
    directory = cache_directory() / f"pravega-wheel-{WHEEL_VERSION}-{sys.version_info.minor}"
    python = directory / "bin" / "python"
    with made_by_one(directory):
        if not directory.exists():
            # A venv knows its own path, so it is made in place; the marker says that it is whole.
            run([sys.executable, "-m", "venv", str(directory)])
        marker = directory / "installed"
        if not marker.exists():
            install_wheel(python)
            marker.touch()
    return python


def install_wheel(python: Path) -> None:
    """Into the venv of this interpreter."""
    only_wheels = ["--only-binary", ":all:", f"pravega=={WHEEL_VERSION}"]
    command = [str(python), "-m", "pip", "install", "--quiet", *only_wheels]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS)
    if done.returncode != 0:
        missing(
            f"the wheel pravega {WHEEL_VERSION} cannot be installed for Python {sys.version_info.major}."
            f"{sys.version_info.minor}, so the Python client was not run; it exists for Python 3.11 on Linux: "
            f"{done.stderr.strip()[-200:]}"
        )


def scenario_names() -> list[str]:
    """Of the wheel's scenarios, without the wheel: each is a key of one literal."""
    text = (WHEEL / "scenarios.py").read_text()
    table = text.partition("SCENARIOS: ")[2].partition("\n}\n")[0]
    return [line.split('"')[1] for line in table.splitlines() if line.startswith('    "')]


def java_scenario_names() -> list[str]:
    """The same of the Java program: `new Scenario("name", ...)`."""
    texts = [file.read_text() for file in sorted((JAVA / "src").rglob("*Scenarios.java"))]
    return [name for text in texts for name in re.findall(r'new Scenario\("(\w+)"', text)]
