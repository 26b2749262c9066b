"""The steps of the Dockerfile, run without Docker: a stage is a layer of files, a RUN a command that sees nothing else.

In place of the official images are a small Debian of the same release with its own Python of the same version (made
once by `debootstrap`), and for Go that Debian with this machine's Go. At the end the image `store` is served as it
would be: by its user, its command, with its /data, in a network of its own; it is asked by its health check, appended
to, read, and told to end. Not shown: the official images themselves, and what Docker forbids a container.

    python -m tests.demo.dockerfile_in_chroot DIR        Linux, as root, with `debootstrap`; DIR is made

The way to packages is this machine's: its certificates, and the files and variables that say where packages come from.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
INSIDE: Final = "--inside"
_DEBIAN: Final = "bookworm"
_MIRROR: Final = "http://deb.debian.org/debian"
_PACKAGES: Final = "ca-certificates,python3,python3-dev,python3-venv"
_GO: Final = Path("/usr/local/go")
_FROM_MACHINE: Final = (
    "etc/ssl/certs",
    "etc/pip.conf",
    "etc/maven/settings.xml",
    "etc/resolv.conf",
    "etc/hosts",
    "usr/local/share/ca-certificates",
)
_VARIABLES: Final = re.compile(
    r"(PIP_|GO(PROXY|FLAGS|SUMDB)$|SSL_CERT_|REQUESTS_CA_BUNDLE$|https?_proxy$)"
)
_HEALTHY_SECONDS_MAX: Final = 120.0
_END_SECONDS_MAX: Final = 60.0


@dataclass(slots=True)
class Stage:
    """What a FROM begins, and what of it is not files."""

    name: str
    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    user: str = "0"
    command: Sequence[str] = ()
    health: Sequence[str] = ()

    def run(self, *words: str, user: str | None = None) -> None:
        """Raises CalledProcessError."""
        subprocess.run(self.words(*words, user=user), check=True, stdin=subprocess.DEVNULL)

    def words(self, *words: str, user: str | None = None) -> Sequence[str]:
        """A command in its files, with its variables alone and those that say where packages come from."""
        machine = {name: value for name, value in os.environ.items() if _VARIABLES.match(name)}
        variables = {"HOME": "/root", **machine, **self.environment}
        given = [f"{name}={value}" for name, value in variables.items()]
        inner = f"cd {shlex.quote(self.directory)} && exec {shlex.join(words)}"
        account = f"--userspec={user or self.user}"
        return ["chroot", account, str(self.root), "env", "-i", *given, "sh", "-c", inner]


class Build:
    """Stages, each a layer over another one."""

    def __init__(self, directory: Path, context: Path) -> None:
        self._directory = directory
        self._context = context
        self.stages: dict[str, Stage] = {}

    def run(self, dockerfile: str) -> None:
        """Every instruction, in order. Raises CalledProcessError, ValueError for one that is not known here."""
        stage: Stage | None = None
        for instruction, rest in _instructions(dockerfile):
            print(instruction, rest, flush=True)  # noqa: T201  # a command line
            if instruction == "FROM":
                image, _, name = rest.partition(" AS ")
                stage = self._begin(image, name)
                continue
            assert stage is not None, "a Dockerfile begins with FROM"
            self._step(stage, instruction, rest)

    def _begin(self, image: str, name: str) -> Stage:
        below = self.stages.get(image)
        layers = self._base() if below is None else self._layers(below)
        stage = Stage(name, self._mounted(name, layers))
        if below is not None:
            stage.environment = dict(below.environment)
            stage.user, stage.command, stage.health = below.user, below.command, below.health
            stage.directory = below.directory
        else:
            path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            if image.startswith("golang:"):
                (stage.root / "usr/local/go").mkdir(exist_ok=True)
                _sh("mount", "--bind", str(_GO), str(stage.root / "usr/local/go"))
                path = f"/usr/local/go/bin:{path}"
                stage.environment["GOPATH"] = "/go"
            stage.environment["PATH"] = path
        self.stages[name] = stage
        return stage

    def _base(self) -> str:
        """Shared by runs: it is what the machine's Debian gives."""
        base = self._directory.with_name("debian")
        if not (base / "usr/bin/python").exists():
            shutil.rmtree(base, ignore_errors=True)
            _sh(
                "debootstrap",
                "--variant=minbase",
                f"--include={_PACKAGES}",
                _DEBIAN,
                str(base),
                _MIRROR,
            )
            (base / "usr/bin/python").symlink_to("python3")
        return str(base)

    def _layers(self, stage: Stage) -> str:
        """Those of a stage, the newest first, as `mount` has them."""
        return (self._directory / stage.name / "layers").read_text()

    def _mounted(self, name: str, below: str) -> Path:
        place = self._directory / name
        upper, work, root = (place / each for each in ("files", "work", "root"))
        for each in (upper, work, root):
            each.mkdir(parents=True)
        (place / "layers").write_text(f"{upper}:{below}")
        options = f"lowerdir={below},upperdir={upper},workdir={work}"
        _sh("mount", "-t", "overlay", "overlay", "-o", options, str(root))
        for shared in _FROM_MACHINE:
            source, target = Path("/", shared), root / shared
            if source.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            elif source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
            else:
                continue
            _sh("mount", "--bind", str(source), str(target))
        for system in ("proc", "dev", "sys"):
            _sh("mount", "--rbind", f"/{system}", str(root / system))
        for wheels in os.environ.get("PIP_FIND_LINKS", "").split():
            (root / wheels.lstrip("/")).mkdir(parents=True, exist_ok=True)
            _sh("mount", "--bind", wheels, str(root / wheels.lstrip("/")))
        return root

    def _step(self, stage: Stage, instruction: str, rest: str) -> None:
        match instruction:
            case "RUN":
                stage.run("sh", "-c", rest)
            case "ENV":
                for each in shlex.split(rest):
                    name, _, value = each.partition("=")
                    for known, now in stage.environment.items():
                        value = value.replace(f"${known}", now)
                    stage.environment[name] = value
            case "WORKDIR":
                stage.directory = rest
                (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "COPY":
                self._copy(stage, rest)
            case "USER":
                stage.user = rest
            case "CMD":
                stage.command = json.loads(rest)
            case "HEALTHCHECK":
                stage.health = json.loads(rest.partition(" CMD ")[2])
            case "VOLUME" | "LABEL":
                pass
            case _:
                raise ValueError(f"no instruction of ours {instruction=}")

    def _copy(self, stage: Stage, rest: str) -> None:
        words = shlex.split(rest)
        origin = self._context
        if words[0].startswith("--from="):
            origin = self.stages[words.pop(0).partition("=")[2]].root
        *sources, target = words
        into = stage.root / f"{stage.directory}/{target}".lstrip("/")
        if target.startswith("/"):
            into = stage.root / target.lstrip("/")
        if target.endswith("/") or len(sources) > 1:
            into.mkdir(parents=True, exist_ok=True)
        for each in sources:
            source = origin / each.lstrip("/")
            if source.is_dir():
                into.mkdir(parents=True, exist_ok=True)
                _sh("cp", "-a", "--remove-destination", f"{source}/.", str(into))
            else:
                into.parent.mkdir(parents=True, exist_ok=True)
                _sh("cp", "-a", "--remove-destination", str(source), str(into))


def _instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    joined = re.sub(r"\\\n\s*", "", dockerfile)
    for line in joined.splitlines():
        if line and not line.startswith("#"):
            instruction, _, rest = line.partition(" ")
            yield instruction, rest


def _sh(*command: str) -> None:
    subprocess.run(command, check=True)


def _serve(store: Stage) -> None:
    """Its process works, keeps what it is given, and ends when told to. Raises AssertionError, CalledProcessError."""
    assert store.user not in ("", "0", "root"), "it would be root"
    network = "dockerfile"
    _sh("ip", "netns", "add", network)
    within = ["ip", "netns", "exec", network]
    _sh(*within, "ip", "link", "set", "lo", "up")
    (store.root / "tmp").chmod(0o1777)
    store.environment["HOST"] = "127.0.0.1"
    process = subprocess.Popen([*within, *store.words(*store.command)], stdin=subprocess.DEVNULL)
    try:
        end = time.monotonic() + _HEALTHY_SECONDS_MAX
        while subprocess.run(
            [*within, *store.words(*store.health)], check=False, stderr=subprocess.DEVNULL
        ).returncode:
            assert process.poll() is None, f"it has ended exit_code={process.returncode}"
            assert time.monotonic() < end, "it does not work in time"
            time.sleep(0.5)
        _sh(*within, *store.words("python", "-c", _APPEND_AND_READ))
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS_MAX)
        process.kill()
    assert process.wait() == 0, f"it did not end well exit_code={process.returncode}"
    written = {each.stat().st_uid for each in (store.root / "data").rglob("*")}
    assert written == {int(store.user)}, f"{written=}"


_APPEND_AND_READ: Final = """
import urllib.request as r
segment = "http://127.0.0.1:9091/v1/segments/image/hello"
r.urlopen(r.Request(segment + "/create", method="PUT"))
r.urlopen(r.Request(segment + "/append", method="POST", data=b"hello"))
assert r.urlopen(segment + "/read").read() == b"hello"
print("appended, and read")
"""
_CHECKS: Final[Mapping[str, Sequence[Sequence[str]]]] = {
    "s3": [("versitygw", "--version")],
    "bookkeeper": [("java", "-version"), ("sh", "-c", "ls /opt/bookkeeper/servers/*.jar | wc -l")],
    "spark": [("python", "-c", "import pyspark, pyspark_segmentstore; print(pyspark.__version__)")],
    "store": [("segmentstore", "--version"), ("python", "-c", "import jpype, lz4, isal")],
}
"""What says that an image holds what it is for, run by its user."""


def inside(directory: Path) -> None:
    """In namespaces of this program."""
    _sh("mount", "-t", "tmpfs", "tmpfs", "/run")
    context = directory / "context"
    context.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", "HEAD"], check=True, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x", "-C", str(context)], input=archive.stdout, check=True)
    build = Build(directory, context)
    build.run((context / "compose/Dockerfile").read_text())
    for name, commands in _CHECKS.items():
        for words in commands:
            print(name, shlex.join(words), flush=True)  # noqa: T201
            build.stages[name].run(*words)
    _serve(build.stages["store"])
    print("every step ran; the image serves as a user that is not root")  # noqa: T201


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    if len(arguments) == 1:
        directory = Path(arguments[0]).resolve()
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        words = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", sys.executable]
        return subprocess.run(
            [*words, "-m", "tests.demo.dockerfile_in_chroot", INSIDE, str(directory)], check=False
        ).returncode
    inside(Path(arguments[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
