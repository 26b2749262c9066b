"""A server of S3's protocol in a process of its own (moto), and buckets in it."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def moto_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its port is its own choice, which it says when it listens."""
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("atomic_moto.py"))],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        assert port, f"moto did not start: {log.read_text()[-2000:]}"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


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
    urllib.request.urlopen(request, timeout=60).close()
    return name
