"""An asyncio client of the Pravega protocols: streams, readers, transactions, tables and byte segments.

`connect` is the way in; everything else is made from what it gives, or is a value to hand over.
"""

from segmentstore.client.byte_segment import ByteSegment, SegmentInfo
from segmentstore.client.controller import TableConfig, TransactionState
from segmentstore.client.event import Event
from segmentstore.client.event_writer import EventWriter
from segmentstore.client.reader_group import GroupReader, ReaderGroup, ReaderGroupInfo, StartAt
from segmentstore.client.settings import ClientSettings, Tls
from segmentstore.client.store import Scope, Store, connect
from segmentstore.client.stream import Stream, StreamInfo
from segmentstore.client.stream_config import RetentionPolicy, ScalingPolicy, StreamConfig
from segmentstore.client.stream_reader import StreamReader
from segmentstore.client.stream_segments import SegmentRange, StreamCut
from segmentstore.client.table import Table, Update
from segmentstore.client.transaction import Stage, StagedCommit, StagedTransactions, Transaction

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
