"""A server of S3's protocol in a process of its own (moto), and buckets in it."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

_NUMBERS = count(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("atomic_moto.py")), str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(url + "/moto-api/", timeout=1).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        else:
            raise RuntimeError("moto did not start")
        yield url
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testkey")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testsecret1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def bucket(moto_url: str, credentials: None) -> str:
    name = f"bucket-{next(_NUMBERS)}"
    request = urllib.request.Request(f"{moto_url}/{name}", method="PUT")
    urllib.request.urlopen(request, timeout=10).close()
    return name
