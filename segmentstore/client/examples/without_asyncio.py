"""The same client in code without a loop."""

# ruff: noqa: T201 (an example shows what it does)

import sys
from contextlib import suppress

from segmentstore.client.errors import AlreadyExistsError
from segmentstore.client.sync import connect


def main(controller: str) -> None:
    """Write lines, read them back."""
    with connect(controller) as store:
        with suppress(AlreadyExistsError):
            store.run(lambda store: store.scope("examples").create())
        with suppress(AlreadyExistsError):
            store.run(lambda store: store.stream("examples/lines").create())
        begin = store.run(lambda store: store.stream("examples/lines").tail())
        with store.writer("examples/lines") as writer:
            writer.write_all((None, f"line {number}".encode()) for number in range(5))
        with store.read("examples/lines", begin) as events:
            while (event := events.take(seconds=0.5)) is not None:
                print(event.data.decode())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:9090")
