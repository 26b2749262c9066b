"""What the compact job is told by the owner in a running service."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from segmentstore.contracts.errors import StorageError, SwapRefusedError
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import SwapProposal
from segmentstore.spark.jobs.swap_owners import ServiceOwner
from segmentstore.spark.python_worker import LoopRunner

PROPOSAL = SwapProposal(segment_id=SegmentId(1), old=(), new=())


@contextmanager
def service_that_answers(status: int, kind: str) -> Iterator[tuple[ServiceOwner, list[str]]]:
    """An owner in it, and the paths that it was asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            paths.append(self.path)
            body = json.dumps({"error": "the outcome is unknown: why", "kind": kind}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, LoopRunner() as runner:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield ServiceOwner(f"http://127.0.0.1:{server.server_port}", runner), paths
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_swap_whose_outcome_is_unknown_is_asked_for_once_and_its_window_planned_anew(
    status: int,
) -> None:
    with service_that_answers(status, "unavailable") as (owner, paths):
        with pytest.raises(SwapRefusedError, match="the outcome is unknown"):
            owner.propose(3, PROPOSAL)
        assert paths == ["/v1/containers/3/swaps"]


@pytest.mark.parametrize(("status", "kind"), [(500, "full"), (500, "corrupt"), (507, "full")])
def test_what_a_person_has_to_look_at_ends_the_job(status: int, kind: str) -> None:
    with service_that_answers(status, kind) as (owner, paths):
        with pytest.raises(StorageError):
            owner.propose(3, PROPOSAL)
        assert len(paths) == 1
