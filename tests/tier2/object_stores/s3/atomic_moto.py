"""moto's S3 in a process of its own, one request at a time: `python atomic_moto.py` prints its port.

As it comes, moto checks the condition of a put and stores in two steps, and with threads two racing puts can both win
(which is exactly what the start-up race of S3ObjectStore refuses).
"""

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

LOCK = threading.Lock()
DISPATCHER = DomainDispatcherApplication(create_backend_app)


def one_at_a_time(
    environment: dict[str, Any], start_response: Callable[..., Any]
) -> Iterable[bytes]:
    with LOCK:
        return list(DISPATCHER(environment, start_response))


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve_forever()
