"""An asyncio client of the Pravega protocols: streams, readers, transactions, tables and byte segments.

`connect` is the way in; everything else is made from what it gives, or is a value to hand over.
"""

from segmentstore.client.byte_segment import ByteSegment, SegmentInfo
from segmentstore.client.controller_tables import TableConfig
from segmentstore.client.controller_transactions import TransactionState
from segmentstore.client.event import Event
from segmentstore.client.event_writer import EventWriter
from segmentstore.client.group_reader import GroupReader
from segmentstore.client.key_space import SegmentRange
from segmentstore.client.reader_group import ReaderGroup, ReaderGroupInfo, StartAt
from segmentstore.client.scope import Scope
from segmentstore.client.settings import ClientSettings
from segmentstore.client.staged_transactions import Stage, StagedCommit, StagedTransactions
from segmentstore.client.store import Store, connect
from segmentstore.client.stream import Stream, StreamInfo
from segmentstore.client.stream_config import RetentionPolicy, ScalingPolicy, StreamConfig
from segmentstore.client.stream_cut import StreamCut
from segmentstore.client.stream_reader import StreamReader
from segmentstore.client.table import Table, Update
from segmentstore.client.tls import Tls
from segmentstore.client.transaction import Transaction

__all__ = [
    "ByteSegment",
    "ClientSettings",
    "Event",
    "EventWriter",
    "GroupReader",
    "ReaderGroup",
    "ReaderGroupInfo",
    "RetentionPolicy",
    "ScalingPolicy",
    "Scope",
    "SegmentInfo",
    "SegmentRange",
    "Stage",
    "StagedCommit",
    "StagedTransactions",
    "StartAt",
    "Store",
    "Stream",
    "StreamConfig",
    "StreamCut",
    "StreamInfo",
    "StreamReader",
    "Table",
    "TableConfig",
    "Tls",
    "Transaction",
    "TransactionState",
    "Update",
    "connect",
]
