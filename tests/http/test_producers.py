import pytest

from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.http.responses import Refusal
from segmentstore.http.stream_append import (
    NUMBER_MAX,
    ProducerClaim,
    ProducerDecision,
    check_producer,
    producer_claim,
    producer_refusal,
)
from segmentstore.http.stream_attributes import (
    Closer,
    ForkOrigin,
    ProducerRecord,
    StreamConfiguration,
    closer_of,
    configuration_of,
    producer_record,
)

KNOWN = ProducerRecord(epoch=3, sequence=7)


@pytest.mark.parametrize(
    ("known", "epoch", "sequence", "decision"),
    [
        (None, 0, 0, ProducerDecision.ACCEPT),
        (None, 9, 0, ProducerDecision.ACCEPT),
        (None, 0, 1, ProducerDecision.GAP),
        (KNOWN, 2, 8, ProducerDecision.STALE_EPOCH),
        (KNOWN, 4, 0, ProducerDecision.ACCEPT),
        (KNOWN, 4, 1, ProducerDecision.BAD_EPOCH_START),
        (KNOWN, 3, 7, ProducerDecision.DUPLICATE),
        (KNOWN, 3, 0, ProducerDecision.DUPLICATE),
        (KNOWN, 3, 8, ProducerDecision.ACCEPT),
        (KNOWN, 3, 9, ProducerDecision.GAP),
    ],
)
def test_a_claim_is_judged_by_epoch_and_sequence(
    known: ProducerRecord | None, epoch: int, sequence: int, decision: ProducerDecision
) -> None:
    assert check_producer(known, ProducerClaim("p", epoch, sequence)) is decision


def test_refusals_tell_a_client_what_it_needs_to_go_on() -> None:
    stale = producer_refusal(ProducerDecision.STALE_EPOCH, KNOWN, ProducerClaim("p", 2, 0))
    assert (stale.status, stale.headers) == (403, {"Producer-Epoch": "3"})
    gap = producer_refusal(ProducerDecision.GAP, KNOWN, ProducerClaim("p", 3, 12))
    assert gap.status == 409
    assert gap.headers == {"Producer-Expected-Seq": "8", "Producer-Received-Seq": "12"}
    assert (
        producer_refusal(ProducerDecision.BAD_EPOCH_START, KNOWN, ProducerClaim("p", 4, 2)).status
        == 400
    )


@pytest.mark.parametrize(
    "headers",
    [
        ("p", None, None),
        (None, "0", "0"),
        ("", "0", "0"),
        ("p", "-1", "0"),
        ("p", "0", "1.0"),
        ("p", "0", str(NUMBER_MAX + 1)),
        ("p", "٣", "0"),
        ("p" * 201, "0", "0"),
        ("p\udc80", "0", "0"),
    ],
)
def test_malformed_producer_headers_are_refused(
    headers: tuple[str | None, str | None, str | None],
) -> None:
    with pytest.raises(Refusal) as refusal:
        producer_claim(*headers, producer_id_bytes_max=200)
    assert refusal.value.status == 400


def test_the_largest_number_a_client_can_count_is_accepted() -> None:
    claim = producer_claim("p", str(NUMBER_MAX), "0", producer_id_bytes_max=200)
    assert claim == ProducerClaim("p", NUMBER_MAX, 0)


def test_records_read_back_from_their_bytes() -> None:
    assert KNOWN.encode() == bytes(7) + b"\x03" + bytes(7) + b"\x07"
    assert producer_record(KNOWN.encode()) == KNOWN
    closer = Closer("wörker", KNOWN)
    assert closer_of(closer.encode()) == closer
    with pytest.raises(DataCorruptionError):
        producer_record(b"short")


def test_a_configuration_reads_back_from_its_attributes() -> None:
    configuration = StreamConfiguration(
        content_type="text/plain; charset=utf-8",
        time_to_live_seconds=5,
        expires_at="2030-01-01T00:00:00Z",
        fork_origin=ForkOrigin("a/b", 4, 10, 2, 12, [(3, 5), (4, 12)]),
    )
    attributes = {
        update.key: update.value for update in configuration.updates() if update.value is not None
    }
    read = configuration_of(attributes)
    assert read.fork_origin is not None
    assert [tuple(each) for each in read.fork_origin.ancestors] == [(3, 5), (4, 12)]
    assert read.updates() == configuration.updates()
    assert configuration_of({}) == StreamConfiguration()
