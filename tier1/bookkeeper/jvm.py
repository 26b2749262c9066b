"""The one JVM of this process, started when BookKeeper is first used.

It ends with the process, and is never ended before: a JVM cannot be started twice. Its signals are left alone (-Xrs),
those of the process are ours. A JVM without memory ends the process: recovery knows how to go on from there, a client
that has lost a thread does not.
"""

import atexit
import logging
from dataclasses import dataclass
from typing import Any

from segmentstore.contracts.errors import InvalidRequestError
from tier1.bookkeeper.jars import Part, class_path, require_java

_LOG = logging.getLogger(__name__)
_OPENED = ("java.nio", "jdk.internal.misc", "sun.nio.ch", "java.lang")
"""Packages of the JDK that Netty uses for its buffers."""


@dataclass(frozen=True, slots=True)
class JvmSettings:
    """What the JVM may use. Only the first client of a process decides."""

    heap_bytes_max: int = 256 << 20
    direct_bytes_max: int = 512 << 20
    """Outside of the heap: entries on their way to bookies and from them, and what the slowest bookie has not taken."""
    flags: tuple[str, ...] = ()
    """More flags for the JVM, as they stand on its command line."""


def start_jvm(settings: JvmSettings) -> Any:
    """The module `jpype`, with a JVM that has BookKeeper. Blocks for about half a second the first time.

    Raises InvalidRequestError if JPype, Java or the jars are missing.
    """
    try:
        import jpype
        import jpype.config
        import jpype.nio
    except ImportError as error:
        raise InvalidRequestError(
            "BookKeeper needs the packages JPype1 and kazoo: pip install 'segmentstore[bookkeeper]'"
        ) from error
    if jpype.isJVMStarted():
        return jpype
    require_java()
    # Threads of the client outlive it by seconds, and for ever if it was not closed: the end of the process does not
    # wait for them. One thread of JPype would need the interpreter even then, and end it by SIGABRT.
    jpype.config.destroy_jvm = False
    jpype.startJVM(
        f"-Xmx{settings.heap_bytes_max}",
        f"-XX:MaxDirectMemorySize={settings.direct_bytes_max}",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Xrs",
        "-Djava.net.preferIPv4Stack=true",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        *settings.flags,
        classpath=class_path(Part.CLIENT),
        convertStrings=False,
    )
    atexit.register(jpype.JClass("org.jpype.ref.JPypeReferenceQueue").getInstance().stop)
    _LOG.info(
        "started the JVM for BookKeeper heap_bytes_max=%d direct_bytes_max=%d",
        settings.heap_bytes_max,
        settings.direct_bytes_max,
    )
    return jpype
