"""In which table segment, and under which key, each record of a stream stands.

| table segment | key | record |
|---|---|---|
| `_system/_tables/scopes` | `scope/<scope>` | ScopeRecord; of a scope that was deleted only by earlier versions |
| | `deleted/<2 hex digits>` | ScopeRecord above all deleted scopes whose names have this BLAKE2b (one byte) |
| | `numbers` | SegmentNumberRecord: scopes that are created from now on begin there, after a recovery |
| `_system/_tables/<scope>/<incarnation>` | `stream/<stream>/state` | StreamStateRecord |
| | `stream/<stream>/configuration` | StreamConfigurationRecord |
| | `stream/<stream>/epoch/<epoch>` | EpochRecord |
| | `stream/<stream>/sealed/<segment id>` | SealedSegmentRecord |
| | `stream/<stream>/truncation` | TruncationRecord |
| | `stream/<stream>/retention` | RetentionCutsRecord |
| | `stream/<stream>/rolling` | RollingPlanRecord, while a commit behind a scale is under way |
| | `mark/<stream>/<writer>` | WriterMarkRecord |
| | `group/<group>` | ReaderGroupRecord |
| | `consumed/<stream>/<scope of the group>/<group>` | ConsumedCutRecord |
| | `table/<table>` | KeyValueTableRecord |
| | `numbers/<2 hex digits>` | SegmentNumberRecord above all deleted streams whose names have this BLAKE2b (one byte); |
| | | a table is the stream `<table>_kvtable` |
| | `number/<stream>` | the same of one name: earlier versions kept one for each |
| | `numbers` | SegmentNumberRecord above all deleted streams and tables |
| | `index/<index>` | IndexRoot |
| | `page/<number>/<index>` | IndexPage |
| `_system/_tables/transactions` | `transaction/<scope>/<stream>/<32 hex digits>` | TransactionRecord |
| | `fence/<scope>/<stream>/<32 hex digits>` | CommitFenceRecord; digits: BLAKE2b of the application's id |
| each of them | `proof` | none: an empty value, written to learn whether one can write |

Keys are UTF-8; numbers are decimal. An empty value means that the record was removed.

A stream without the service: the scope's record gives the incarnation and thereby the table; the state gives the last
epoch; the truncation's cut is the head, or else epoch 0 from offset 0; the order of the segments is that of the epochs.

Invariant: names hold no slash, so no two records share a key.
"""

from hashlib import blake2b
from typing import Final

SCOPES_TABLE: Final = "_system/_tables/scopes"
TRANSACTIONS_TABLE: Final = "_system/_tables/transactions"

TRANSACTION_PREFIX: Final = "transaction/"
FENCE_PREFIX: Final = "fence/"
GROUP_PREFIX: Final = "group/"
_FENCE_HASH_BYTES = 16

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


def deleted_scopes(name: str) -> str:
    """In the table of scopes: above the incarnations and numbers of deleted scopes whose names share a hash.

    As with `deleted_numbers`: names that never come again would be kept for ever.
    """
    return f"deleted/{_hash_of_name(name)}"


def state(stream: str) -> str:
    """State and counters of a stream."""
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


def retention_cuts(stream: str) -> str:
    """The cuts of a stream that retention chooses from."""
    return f"stream/{stream}/retention"


def rolling_plan(stream: str) -> str:
    """The commit behind a scale that is under way."""
    return f"stream/{stream}/rolling"


def writer_mark(stream: str, writer: str) -> str:
    """The time that a writer noted last."""
    return f"mark/{stream}/{writer}"


def reader_group(group: str) -> str:
    """A reader group of the scope."""
    return f"{GROUP_PREFIX}{group}"


def consumed_cut(stream: str, scope: str, group: str) -> str:
    """How far a group, of any scope, has consumed a stream of this scope."""
    return f"consumed/{stream}/{scope}/{group}"


def key_value_table(table: str) -> str:
    """A key-value table of the scope."""
    return f"table/{table}"


def transaction(scope: str, stream: str, transaction_id: int) -> str:
    """In the table of transactions: one of them."""
    return f"{TRANSACTION_PREFIX}{scope}/{stream}/{transaction_id:032x}"


def commit_fence(scope: str, stream: str, application_id: str) -> str:
    """In the table of transactions: what an application committed last to a stream."""
    digits = blake2b(application_id.encode(), digest_size=_FENCE_HASH_BYTES).hexdigest()
    return f"{FENCE_PREFIX}{scope}/{stream}/{digits}"


def deleted_numbers(stream: str) -> str:
    """Above the segment numbers of deleted streams whose names share a hash.

    Not one for each name: names that never come again would be kept for ever. Not one for all: each deletion would use
    up numbers of every stream to come, and there are 2^31.
    """
    return f"{DELETED_NUMBERS}/{_hash_of_name(stream)}"


def deleted_number(stream: str) -> str:
    """The next free segment number of a stream that an earlier version deleted."""
    return f"number/{stream}"


def index_root(index: str) -> str:
    """Which page of an index holds which names."""
    return f"index/{index}"


def index_page(index: str, number: int) -> str:
    """Some names of an index."""
    return f"page/{number}/{index}"


def _hash_of_name(name: str) -> str:
    """Persistent: never another one."""
    return blake2b(name.encode(), digest_size=1).hexdigest()
