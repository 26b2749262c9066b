"""`python -m segmentstore.host.processes.launcher DESCRIPTOR`: loads the program once; processes are forks of it.

The descriptor is its end of a pair of sockets to the parent, whose requests are in `orders.py`. Tests fork whole stores
and commands by fork_on_request() (tests/preloaded_command.py).

Invariants:

- Nothing is in this process that a fork must not have: no thread, no loop, no file, no lock, no socket but those above,
  and of these a fork has its own channel alone.
- It ends when the parent has closed its end, or has ended. Its forks are not its business then: they have channels.
"""

import os
import socket
import sys
from selectors import EVENT_READ, DefaultSelector

from segmentstore.host.processes.child import main as serve_process
from segmentstore.host.processes.orders import (
    EXIT_CODE_BYTES,
    FORK_REQUEST,
    PROCESS_ID_BYTES,
)
from segmentstore.runtime.process import freeze_long_lived_objects

_DESCRIPTORS = 2


def main(descriptor: int) -> None:
    """Fork as the parent asks. In a fork it returns when the process has served."""
    freeze_long_lived_objects()
    channel = fork_on_request(socket.socket(fileno=descriptor))
    if channel is not None:
        os.setsid()
        serve_process(channel)


def fork_on_request(requests: socket.socket) -> int | None:
    """In a fork, its channel; in the launcher None, when the parent wants nothing more."""
    reports: dict[int, tuple[int, socket.socket]] = {}
    """Descriptor of a process -> its id, and where its end is told."""
    with requests, DefaultSelector() as selector:
        selector.register(requests, EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    _report_end(selector, reports, key.fd)
                    continue
                request, descriptors, _, _ = socket.recv_fds(
                    requests, len(FORK_REQUEST), _DESCRIPTORS
                )
                if not request:
                    return None
                channel, report = descriptors[0], socket.socket(fileno=descriptors[1])
                try:
                    process_id = os.fork()
                except OSError:
                    report.close()
                    os.close(channel)
                    continue
                if process_id == 0:
                    for each, (_, other) in reports.items():
                        os.close(each)
                        other.close()
                    report.close()
                    return channel
                os.close(channel)
                process = os.pidfd_open(process_id)
                selector.register(process, EVENT_READ)
                reports[process] = process_id, report
                _tell(report, process_id.to_bytes(PROCESS_ID_BYTES, "big"), [process])


def _report_end(
    selector: DefaultSelector, reports: dict[int, tuple[int, socket.socket]], process: int
) -> None:
    process_id, report = reports.pop(process)
    selector.unregister(process)
    os.close(process)
    _, status = os.waitpid(process_id, 0)
    code = os.waitstatus_to_exitcode(status)
    _tell(report, code.to_bytes(EXIT_CODE_BYTES, "big", signed=True), [])
    report.close()


def _tell(report: socket.socket, content: bytes, descriptors: list[int]) -> None:
    """A few bytes, for which an empty socket has room. Nothing happens if the parent does not listen any more."""
    try:
        socket.send_fds(report, [content], descriptors)
    except OSError:
        return


if __name__ == "__main__":
    main(int(sys.argv[1]))
