"""In which table segment, and under which key, each record of a stream stands.

| table segment | key | record |
|---|---|---|
| `_system/_tables/scopes` | `scope/<scope>` | ScopeRecord |
| | `numbers` | SegmentNumberRecord: scopes that are created from now on begin there, after a recovery |
| `_system/_tables/<scope>/<incarnation>` | `stream/<stream>/state` | StreamStateRecord |
| | `stream/<stream>/configuration` | StreamConfigurationRecord |
| | `stream/<stream>/epoch/<epoch>` | EpochRecord |
| | `stream/<stream>/sealed/<segment id>` | SealedSegmentRecord |
| | `stream/<stream>/truncation` | TruncationRecord |
| | `number/<stream>` | SegmentNumberRecord of a stream that was deleted; a table is the stream `<table>_kvtable` |
| | `numbers` | SegmentNumberRecord above all deleted streams and tables |
| | `index/<index>` | IndexRoot |
| | `page/<number>/<index>` | IndexPage |
| each of them, and that of the transactions | `proof` | none: an empty value, written to learn whether one can write |

Keys are UTF-8; numbers are decimal. An empty value means that the record was removed.

A stream without the service: the scope's record gives the incarnation and thereby the table; the state gives the last
epoch; the truncation's cut is the head, or else epoch 0 from offset 0; the order of the segments is that of the epochs.

Invariant: names hold no slash, so no two records share a key.
"""

from typing import Final

SCOPES_TABLE: Final = "_system/_tables/scopes"

REMOVED: Final = b""
"""The value of a record that was removed; every record has at least its version byte."""

DELETED_NUMBERS: Final = "numbers"

PROOF: Final = "proof"
"""Never holds a record."""


def scope_table(scope: str, incarnation: int) -> str:
    """The table segment of one incarnation of a scope."""
    return f"_system/_tables/{scope}/{incarnation}"


def scope(name: str) -> str:
    """In the table of scopes: the scope's record."""
    return f"scope/{name}"


def state(stream: str) -> str:
    """Life and counters of a stream."""
    return f"stream/{stream}/state"


def configuration(stream: str) -> str:
    """What the user asked of a stream."""
    return f"stream/{stream}/configuration"


def epoch(stream: str, number: int) -> str:
    """One epoch of a stream."""
    return f"stream/{stream}/epoch/{number}"


def sealed(stream: str, segment_id: int) -> str:
    """What replaced a segment of a stream."""
    return f"stream/{stream}/sealed/{segment_id}"


def truncation(stream: str) -> str:
    """The head of a stream."""
    return f"stream/{stream}/truncation"


def deleted_number(stream: str) -> str:
    """The next free segment number of a deleted stream."""
    return f"number/{stream}"


def index_root(index: str) -> str:
    """Which page of an index holds which names."""
    return f"index/{index}"


def index_page(index: str, number: int) -> str:
    """Some names of an index."""
    return f"page/{number}/{index}"
