"""A writer or a reader at work while the test does harm to their server; two processes, so that neither holds the
other's interpreter.

    python load.py write CONTROLLER_URI SCOPE [keys=10] [events=2000] [segments=2] [inflight=100] [per_second=1000]
                                              [pause_at=0]
    python load.py transaction CONTROLLER_URI SCOPE [the same]
    python load.py read CONTROLLER_URI SCOPE [events=2000] [keys=10]
    python load.py share CONTROLLER_URI SCOPE [reader=1]

The writer makes the stream, then says so. It reports how many events it has handed over, the reader how many it has
read; the last line has the verdict. At `pause_at` events the writer waits for a line on stdin; a transaction does so
when half of its events are written. `share` is one of several readers: when it is one of its group it waits for a line
on stdin; then it tells each event and never ends.
"""

# mypy: disable-error-code="import-not-found"

import asyncio
import os
import sys
import time
import traceback

import pravega_client as pravega
from group_reading import Reader, next_events, next_slice
from report import KeyOrder, line

DEFAULTS = {
    "keys": 10,
    "events": 2000,
    "segments": 2,
    "inflight": 100,
    "per_second": 1000,
    "pause_at": 0,
    "reader": 1,
    "attempt": 0,
}
READ_SECONDS_MAX = 350.0
"""No promise, only an end."""
SILENCE_SECONDS_MAX = 40.0
"""A reader that gives no event for so long, empty slices or none at all, will not give any more."""
WAKING_SECONDS_MAX = 150.0
"""The same where the writer waits for a kill: it goes on when the server is back, and its pauses grow up to ten
seconds."""
ATTEMPTS_MAX = 6


class Load:
    def __init__(self, uri: str, scope: str, options: dict[str, int]) -> None:
        self.scope = scope
        self.options = options
        self.events = options["events"] // options["keys"] * options["keys"]
        self.manager = pravega.StreamManager(uri)

    def make(self) -> None:
        self.manager.create_scope(self.scope)
        self.manager.create_stream(self.scope, "s", self.options["segments"])
        line(ready=True)

    def event(self, index: int) -> tuple[str, str]:
        key = f"k{index % self.options['keys']}"
        return f"{key}:{index // self.options['keys']}", key

    def write(self) -> None:
        self.make()
        writer = self.manager.create_writer(self.scope, "s", self.options["inflight"])
        started = time.monotonic()
        for index in range(self.events):
            if index and index == self.options["pause_at"]:
                writer.flush()
                wait_for_the_test(written=index)
            time.sleep(max(0.0, started + index / self.options["per_second"] - time.monotonic()))
            event, key = self.event(index)
            writer.write_event(event, routing_key=key)
            if index % 50 == 0:
                line(written=index)
        writer.flush()
        line(passed=True, failure="", written=self.events)

    def transaction(self) -> None:
        self.make()
        writer = self.manager.create_transaction_writer(self.scope, "s", 1)
        transaction = writer.begin_txn()
        for index in range(self.events):
            if index == self.events // 2:
                wait_for_the_test(written=index)
            event, key = self.event(index)
            transaction.write_event(event, routing_key=key)
        transaction.commit()
        deadline = time.monotonic() + READ_SECONDS_MAX
        while transaction.is_open():
            assert time.monotonic() < deadline, "still open"
            time.sleep(0.05)
        line(passed=True, failure="", written=self.events)

    def read(self) -> None:
        order = KeyOrder()
        try:
            asyncio.run(self.read_all(order))
        except AssertionError:
            raise
        except BaseException as error:  # noqa: BLE001 - the wheel's panics are not Exceptions
            self.read_again(error)
        order.check(self.events)
        line(passed=True, failure="", read=order.count)

    def read_again(self, error: BaseException) -> None:
        """The wheel's reader gives up for good when the server is away for some seconds: by a panic, or in silence.
        Another one, in a process that nothing happened to yet, reads everything from the head."""
        line(reader="lost", error=repr(error))
        assert self.options["attempt"] < ATTEMPTS_MAX, "too many readers lost"
        given = [each for each in sys.argv if not each.startswith("attempt=")]
        more = f"attempt={self.options['attempt'] + 1}"
        os.execv(sys.executable, [sys.executable, *given, more])

    async def read_all(self, order: KeyOrder) -> None:
        name = f"g{self.options['attempt']}"
        reader = self.manager.create_reader_group(name, self.scope, "s").create_reader("r")
        deadline = time.monotonic() + READ_SECONDS_MAX
        heard = time.monotonic()
        silence_max = WAKING_SECONDS_MAX if self.options["pause_at"] else SILENCE_SECONDS_MAX
        while order.count < self.events:
            assert time.monotonic() < deadline, f"read only {order.count} of {self.events} events"
            events = await next_events(reader, SILENCE_SECONDS_MAX)
            if events:
                heard = time.monotonic()
                order.add_all(events)
            elif time.monotonic() - heard > silence_max:
                # Where the writer waited for a kill, that the reader is woken is what the test is about.
                assert not self.options["pause_at"], f"not woken behind {order.count} events"
                raise TimeoutError(f"the reader is silent behind {order.count} events")
            line(read=order.count)
        reader.reader_offline()

    def share(self) -> None:
        group = self.manager.create_reader_group("g", self.scope, "s")
        reader = group.create_reader(f"r{self.options['reader']}")
        wait_for_the_test(read=0)
        asyncio.run(tell_events(reader))


async def tell_events(reader: Reader) -> None:
    while True:
        taken = await next_slice(reader, READ_SECONDS_MAX)
        line(events=[bytes(event.data()).decode() for event in taken])
        reader.release_segment(taken)


def wait_for_the_test(*, written: int = 0, read: int = 0) -> None:
    line(paused=written or read)
    sys.stdin.readline()


def main() -> None:
    mode, uri, scope, *given = sys.argv[1:]
    options = {
        **DEFAULTS,
        **{name: int(value) for name, _, value in (each.partition("=") for each in given)},
    }
    try:
        load = Load(uri, scope, options)
        modes = {"write": load.write, "transaction": load.transaction, "read": load.read}
        modes["share"] = load.share
        modes[mode]()
    except BaseException:  # noqa: BLE001 - the wheel's panics are not Exceptions
        line(passed=False, failure=traceback.format_exc()[-3000:])
    os._exit(0)


if __name__ == "__main__":
    main()
