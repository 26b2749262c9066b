"""What tests ask of a real server: a process of its own, with every face on a port that the system chooses."""

from segmentstore.cli.server_process import ServerProcess


def controller_address(server: ServerProcess) -> str:
    """`tcp://HOST:PORT`."""
    for word in server.ready_line.split():
        name, _, value = word.partition("=")
        if name == "controller":
            return f"tcp://{value}"
    raise AssertionError(f"the server does not say where its controller is {server.ready_line!r}")
