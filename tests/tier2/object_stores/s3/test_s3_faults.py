"""Lost answers, lost requests, servers that ask for patience: nothing lost, nothing doubled, every state named."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageUnavailableError,
)
from tests.tier2.object_stores.s3.faulty_proxy import Fault, FaultyProxy
from tier2.object_stores.s3.requests import OneAttemptSession
from tier2.object_stores.s3.s3_object_store import S3ObjectStore
from tier2.object_stores.s3.settings import S3Settings


@pytest.fixture
async def proxy(moto_url: str) -> AsyncIterator[FaultyProxy]:
    proxy = FaultyProxy(moto_url)
    await proxy.start()
    yield proxy
    await proxy.close()


@pytest.fixture
async def store(proxy: FaultyProxy, bucket: str) -> AsyncIterator[S3ObjectStore]:
    settings = S3Settings(
        bucket=bucket,
        endpoint_url=proxy.url,
        startup_race_rounds=0,
        connect_seconds_max=60.0,
        retry_seconds_first=0.001,
        retry_seconds_max=0.01,
        multipart_bytes_min=6 << 20,
        part_bytes=5 << 20,
    )
    store = S3ObjectStore(settings=settings, random=Random(1))
    await store.start()
    yield store
    await store.close()


@pytest.mark.parametrize(
    "fault",
    [
        Fault.LOST_ANSWER,
        Fault.LOST_REQUEST,
        Fault.SLOW_DOWN,
        Fault.TOO_MANY,
        Fault.SERVER_ERROR,
        Fault.ABORTED,
        Fault.IS_DIRECTORY,
    ],
)
async def test_h2_a_put_whose_first_attempts_fail_is_stored_once_and_whole(
    store: S3ObjectStore, proxy: FaultyProxy, fault: Fault
) -> None:
    proxy.plan("PUT", fault, fault)
    await store.put("a", [b"content"])
    assert (await store.get("a")).content == b"content"
    assert proxy.count("PUT") == 3
    assert store.statistics.retries == 2


@pytest.mark.parametrize("warm", [False, True])
async def test_h4_a_conditional_put_is_sent_once_even_if_its_answer_is_lost(
    store: S3ObjectStore, proxy: FaultyProxy, warm: bool
) -> None:
    tag = await store.put_if_absent("root", b"one")
    if warm:  # the connection is kept alive: the HTTP library below must not repeat either
        await store.get("root")
    sent = proxy.count("PUT")
    proxy.plan("PUT", Fault.LOST_ANSWER)
    with pytest.raises(StorageUnavailableError) as caught:
        await store.put_if_match("root", b"two", tag)
    assert caught.value.state == "unavailable"
    assert proxy.count("PUT") == sent + 1
    assert (await store.get("root")).content == b"two"
    with pytest.raises(ObjectChangedError):
        await store.put_if_match("root", b"three", tag)


@pytest.mark.parametrize("fault", [Fault.ABORTED, Fault.IS_DIRECTORY])
async def test_a_conditional_put_that_met_another_request_is_sent_again_since_nothing_was_done(
    store: S3ObjectStore, proxy: FaultyProxy, fault: Fault
) -> None:
    proxy.plan("PUT", fault)
    tag = await store.put_if_absent("root", b"one")
    proxy.plan("PUT", fault, fault)
    await store.put_if_match("root", b"two", tag)
    assert (await store.get("root")).content == b"two"
    assert proxy.count("PUT") == 5
    assert store.statistics.retries == 3


async def test_h4_a_lost_creation_is_read_back_by_the_caller(
    store: S3ObjectStore, proxy: FaultyProxy
) -> None:
    proxy.plan("PUT", Fault.LOST_ANSWER)
    with pytest.raises(StorageUnavailableError):
        await store.put_if_absent("root", b"mine")
    with pytest.raises(ObjectExistsError):
        await store.put_if_absent("root", b"another")
    assert (await store.get("root")).content == b"mine"


async def test_a_read_that_breaks_off_is_read_again(
    store: S3ObjectStore, proxy: FaultyProxy
) -> None:
    body = Random(1).randbytes(300_000)
    await store.put("a", [body])
    proxy.plan("GET", Fault.HALF_BODY, Fault.LOST_ANSWER, Fault.SLOW_DOWN)
    assert (await store.get("a")).content == body
    proxy.plan("GET", Fault.HALF_BODY)
    assert await store.get_range("a", 1000, 200_000) == body[1000:201_000]


async def test_a_multipart_upload_survives_lost_parts_and_a_lost_completion(
    store: S3ObjectStore, proxy: FaultyProxy
) -> None:
    body = Random(2).randbytes(11 << 20)
    proxy.plan("PUT", Fault.LOST_ANSWER, Fault.SERVER_ERROR, None, Fault.SLOW_DOWN)
    proxy.plan("POST", None, Fault.LOST_ANSWER)
    await store.put("large", [body])
    assert (await store.get("large")).content == body


async def test_h4_a_completion_whose_answer_was_lost_is_known_by_its_bytes_when_the_upload_is_gone(
    store: S3ObjectStore, proxy: FaultyProxy
) -> None:
    body = Random(3).randbytes(11 << 20)
    proxy.plan("POST", None, Fault.LOST_ANSWER, Fault.NO_SUCH_UPLOAD)
    await store.put("large", [body])
    proxy.plan("POST", None, Fault.NO_SUCH_UPLOAD)
    with pytest.raises(ObjectExistsError):
        await store.put("large", [body[:-1]])
    proxy.plan("POST", None, Fault.NO_SUCH_UPLOAD)
    with pytest.raises(StorageUnavailableError, match="outcome of a put is unknown"):
        await store.put("another", [body])
    assert (await store.get("large")).content == body


@pytest.mark.parametrize(("start", "length"), [(50, 100), (0, 10), (99, 1), (100, 5)])
async def test_a_server_that_does_not_heed_a_range_gives_no_other_bytes(
    store: S3ObjectStore, proxy: FaultyProxy, start: int, length: int
) -> None:
    await store.put("a", [bytes(range(100))])
    proxy.plan("GET", Fault.RANGE_IGNORED)
    assert await store.get_range("a", start, length) == bytes(range(100))[start : start + length]


async def test_a_body_that_the_server_waited_for_too_long_is_sent_again(
    store: S3ObjectStore, proxy: FaultyProxy
) -> None:
    proxy.plan("PUT", Fault.REQUEST_TIMEOUT, Fault.REQUEST_TIMEOUT)
    await store.put("a", [b"content"])
    assert (await store.get("a")).content == b"content"


async def test_h4_an_answer_without_a_tag_leaves_the_outcome_unknown(
    store: S3ObjectStore, proxy: FaultyProxy
) -> None:
    proxy.plan("PUT", Fault.NO_TAG)
    with pytest.raises(StorageUnavailableError, match="ETag"):
        await store.put_if_absent("root", b"one")
    assert (await store.get("root")).content == b"one"


@pytest.mark.parametrize(
    ("refusal", "state"),
    [
        (Fault.EXPIRED_TOKEN, "credentials_expired"),
        (Fault.INVALID_TOKEN, "credentials_expired"),
        (Fault.OTHER_SECRET, "access_denied"),
    ],
)
@pytest.mark.parametrize("rust_reads", [False, True])
async def test_credentials_that_were_renewed_are_found_without_a_restart(
    proxy: FaultyProxy,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Fault,
    state: str,
    *,
    rust_reads: bool,
) -> None:
    def write(key: str) -> None:
        content = f"[default]\naws_access_key_id={key}\naws_secret_access_key=secret\n"
        (tmp_path / "credentials").write_text(content)

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    write("OLD")
    settings = S3Settings(
        bucket=bucket,
        endpoint_url=proxy.url,
        startup_race_rounds=0,
        connect_seconds_max=60.0,
        rust_reads=rust_reads,
    )
    store = S3ObjectStore(settings=settings, random=Random(1))
    await store.start()
    await store.put("a", [b"content"])
    proxy.expired_key, proxy.refusal = "OLD", refusal
    for _ in range(3):
        with pytest.raises(StorageUnavailableError) as caught:
            await store.get("a")
        assert caught.value.state == state
    write("NEW")
    assert (await store.get("a")).content == b"content"
    await store.put("b", [b"more"])
    await store.close()


@pytest.mark.parametrize("seconds_min", [10.0, 0.0])
async def test_credentials_that_are_refused_again_and_again_leave_no_clients_behind(
    proxy: FaultyProxy, bucket: str, monkeypatch: pytest.MonkeyPatch, seconds_min: float
) -> None:
    """Goal: bounded memory while access is denied. Method: a role gives other credentials whenever it is asked, so
    each look finds new ones; large puts are under way meanwhile."""
    settings = S3Settings(
        bucket=bucket,
        endpoint_url=proxy.url,
        startup_race_rounds=0,
        connect_seconds_max=60.0,
        multipart_bytes_min=6 << 20,
        part_bytes=5 << 20,
        renewal_seconds_min=seconds_min,
    )
    counted = CountedSessions(monkeypatch)
    store = S3ObjectStore(settings=settings, random=Random(1))
    await store.start()
    body = bytes(6 << 20)
    for number in range(8):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"key-{number}")
        proxy.plan("GET", Fault.OTHER_SECRET)
        putting = asyncio.create_task(store.put(f"large-{number}", [body]))
        with pytest.raises(StorageUnavailableError):
            await store.get("a")
        with pytest.raises(ObjectNotFoundError):
            await store.get("a")
        await putting
        assert counted.open <= 2
    assert counted.made == (3 if seconds_min else 9)
    assert await store.size("large-7") == len(body)
    await store.close()
    assert counted.open == 0


class CountedSessions:
    """Counts those of the client library."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = self.open = 0
        enter, leave = OneAttemptSession.__aenter__, OneAttemptSession.__aexit__

        async def count_enter(session: OneAttemptSession) -> object:
            self.made += 1
            self.open += 1
            return await enter(session)

        async def count_leave(session: OneAttemptSession, *reason: object) -> None:
            self.open -= 1
            await leave(session, *reason)

        monkeypatch.setattr(OneAttemptSession, "__aenter__", count_enter)
        monkeypatch.setattr(OneAttemptSession, "__aexit__", count_leave)


@pytest.mark.parametrize(
    ("fault", "state"),
    [
        (Fault.SLOW_DOWN, "throttled"),
        (Fault.TOO_MANY, "throttled"),
        (Fault.SERVER_ERROR, "unavailable"),
        (Fault.LOST_ANSWER, "unavailable"),
        (Fault.EXPIRED_TOKEN, "credentials_expired"),
        (Fault.CLOCK_SKEW, "clock_skew"),
    ],
)
async def test_reads_by_obstore_are_repeated_and_named_like_all_others(
    proxy: FaultyProxy, bucket: str, fault: Fault, state: str
) -> None:
    settings = S3Settings(
        bucket=bucket,
        endpoint_url=proxy.url,
        startup_race_rounds=0,
        connect_seconds_max=60.0,
        retry_seconds_first=0.001,
        retry_seconds_max=0.01,
        rust_reads=True,
    )
    store = S3ObjectStore(settings=settings, random=Random(1))
    await store.start()
    body = Random(1).randbytes(300_000)
    await store.put("a", [body])
    proxy.plan("GET", Fault.HALF_BODY, Fault.SLOW_DOWN)
    assert (await store.get("a")).content == body
    assert (proxy.count("GET"), store.statistics.retries) == (3, 2)
    proxy.plan("GET", *[fault] * 5)
    with pytest.raises(StorageUnavailableError) as caught:
        await store.get_range("a", 1000, 2000)
    assert caught.value.state == state
    proxy.forget_plans()
    assert await store.get_range("a", 1000, 200_000) == body[1000:201_000]
    await store.close()


@pytest.mark.parametrize(
    ("fault", "state"),
    [
        (Fault.SLOW_DOWN, "throttled"),
        (Fault.TOO_MANY, "throttled"),
        (Fault.SERVER_ERROR, "unavailable"),
        (Fault.EXPIRED_TOKEN, "credentials_expired"),
        (Fault.CLOCK_SKEW, "clock_skew"),
    ],
)
async def test_what_does_not_pass_has_a_name_for_the_health_page(
    store: S3ObjectStore, proxy: FaultyProxy, fault: Fault, state: str
) -> None:
    proxy.plan("PUT", *[fault] * 5)
    with pytest.raises(StorageUnavailableError) as caught:
        await store.put("a", [b"content"])
    assert caught.value.state == state
    assert store.statistics.failures[state] >= 1
    answers = store.statistics.answers
    assert answers == (5 if state == "throttled" else 0), "what says slow down is reached"
    proxy.forget_plans()
    await store.put("b", [b"later"])
    with pytest.raises(ObjectNotFoundError):
        await store.size("absent")
    assert store.statistics.answers == answers + 2
    assert (await store.get("b")).content == b"later"
