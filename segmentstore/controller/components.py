"""Builds the components of the controller over its interfaces, ties them together, and lists the calls they answer.

Whatever is remembered of tables and segments is remembered in the components: others know nothing but what the tables
say.
"""

from random import Random

from segmentstore.codec.controller_api import OWN_SERVICE
from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_api import staged_commits_pb2 as own_api
from segmentstore.codec.controller_records.record_keys import TRANSACTIONS_TABLE
from segmentstore.contracts.segments import SegmentApi
from segmentstore.contracts.tables import TableApi
from segmentstore.controller.api.call import Call, unary
from segmentstore.controller.api.messages import IssueToken, ListControllers, LocateSegment
from segmentstore.controller.api.stream_calls import (
    LocationCalls,
    ScopeCalls,
    SegmentCalls,
    StreamCalls,
)
from segmentstore.controller.auto_scale import AutoScale
from segmentstore.controller.key_value_tables import TABLES_INDEX, KeyValueTables
from segmentstore.controller.metadata.metadata_store import MetadataStore
from segmentstore.controller.reader_groups import GROUPS_INDEX, ReaderGroups
from segmentstore.controller.retention import Retention
from segmentstore.controller.scopes import Scopes
from segmentstore.controller.settings import ControllerSettings
from segmentstore.controller.streams.repair import Repair
from segmentstore.controller.streams.streams import Streams
from segmentstore.controller.subscribers import Subscribers
from segmentstore.controller.transactions.completion import TransactionCompleter
from segmentstore.controller.transactions.decisions import Decisions
from segmentstore.controller.transactions.merges import Merges
from segmentstore.controller.transactions.reservations import Reservations, TransactionIds
from segmentstore.controller.transactions.rolling_commit import RollingCommit
from segmentstore.controller.transactions.staged_commits import StagedCommits
from segmentstore.controller.transactions.transaction_states import TransactionStates
from segmentstore.controller.transactions.transaction_table import TransactionTable
from segmentstore.controller.transactions.transactions import Transactions
from segmentstore.controller.transient_segments import TransientSegments
from segmentstore.controller.watermarks import Watermarks
from segmentstore.controller.writer_marks import PendingTimes, WriterMarks
from segmentstore.runtime.clock import ClockWatch, WallClock


class ControllerComponents:
    """Everything that the controller consists of, below its sockets."""

    def __init__(
        self,
        *,
        segments: SegmentApi,
        tables: TableApi,
        wall_clock: WallClock,
        random: Random,
        settings: ControllerSettings,
        clock_watch: ClockWatch | None = None,
    ) -> None:
        """`clock_watch` of earlier components of the process: it has seen what they have seen."""
        self.metadata = MetadataStore(tables=tables)
        self.streams = Streams(
            metadata=self.metadata,
            segments=segments,
            wall_clock=wall_clock,
            settings=settings.streams,
        )
        self.scopes = Scopes(
            metadata=self.metadata,
            streams=self.streams,
            wall_clock=wall_clock,
            settings=settings.streams,
        )
        self.repair = Repair(
            metadata=self.metadata,
            operations=self.streams.operations,
            segments=segments,
            steps=self.streams.segments,
            scaling=self.streams.scaling,
        )
        self.subscribers = Subscribers(
            store=self.metadata,
            operations=self.streams.operations,
            segments=self.streams.segments,
            settings=settings.reader_groups,
        )
        self.reader_groups = ReaderGroups(
            store=self.metadata,
            streams=self.streams,
            subscribers=self.subscribers,
            settings=settings.reader_groups,
        )
        self.key_value_tables = KeyValueTables(
            store=self.metadata,
            tables=tables,
            segment_name_length_max=settings.streams.segment_name_length_max,
            settings=settings.key_value_tables,
        )
        self._settings = settings
        self.clock_watch = clock_watch or ClockWatch(
            wall_clock=wall_clock,
            difference_seconds_max=settings.retention.clock_difference_seconds_max,
            settle_seconds=settings.retention.clock_settle_seconds,
        )
        """A person may settle it. What it complains of is told by retention, where a stream has a policy of age."""
        self._build_watermarks(segments)
        self._build_transactions(segments, tables, wall_clock, random)
        self._build_background_tasks(segments, wall_clock)
        self._register_callbacks()

    def _build_watermarks(self, segments: SegmentApi) -> None:
        settings = self._settings.watermarks
        self.pending_times = PendingTimes(waiting_max=settings.noted_later_max)
        self.writer_marks = WriterMarks(operations=self.streams.operations, settings=settings)
        self.watermarks = Watermarks(
            store=self.metadata,
            operations=self.streams.operations,
            segments=segments,
            marks=self.writer_marks,
            pending_times=self.pending_times,
            settings=settings,
        )

    def _build_transactions(
        self, segments: SegmentApi, tables: TableApi, wall_clock: WallClock, random: Random
    ) -> None:
        self.transaction_states = states = TransactionStates(on_commit=self.pending_times.enqueue)
        self._transaction_table = table = TransactionTable(tables=tables)
        merges = Merges(segments=segments)
        rolling = RollingCommit(
            operations=self.streams.operations,
            transition=self.streams.transition,
            segments=self.streams.segments,
            merges=merges,
            table=table,
            wall_clock=wall_clock,
            states=states,
        )
        ids = TransactionIds(random=random)
        reservations = Reservations(
            table=table, ids=ids, wall_clock=wall_clock, settings=self._settings.transactions
        )
        self.completer = completer = TransactionCompleter(
            states=states,
            table=table,
            operations=self.streams.operations,
            segments=self.streams.segments,
            merges=merges,
            rolling=rolling,
            reservations=reservations,
            wall_clock=wall_clock,
            settings=self._settings.transactions,
        )
        self.decisions = decisions = Decisions(
            states=states, table=table, completer=completer, settings=self._settings.transactions
        )
        self.transactions = Transactions(
            states=states,
            table=table,
            operations=self.streams.operations,
            segments=self.streams.segments,
            completer=completer,
            decisions=decisions,
            reservations=reservations,
            ids=ids,
            wall_clock=wall_clock,
            settings=self._settings.transactions,
        )

        self.staged_commits = StagedCommits(
            transactions=self.transactions,
            states=states,
            decisions=decisions,
            table=table,
            operations=self.streams.operations,
            completer=completer,
            wall_clock=wall_clock,
            settings=self._settings.transactions,
        )

    def _build_background_tasks(self, segments: SegmentApi, wall_clock: WallClock) -> None:
        self.transient_segments = TransientSegments(
            segments=segments,
            wall_clock=wall_clock,
            clock_watch=self.clock_watch,
            settings=self._settings.transient_segments,
        )
        self.retention = Retention(
            store=self.metadata,
            operations=self.streams.operations,
            truncation=self.streams.truncation,
            subscribers=self.subscribers,
            segments=self.streams.segments,
            wall_clock=wall_clock,
            clock_watch=self.clock_watch,
            settings=self._settings.retention,
        )
        self.auto_scale = AutoScale(
            store=self.metadata,
            operations=self.streams.operations,
            scaling=self.streams.scaling,
            segments=self.streams.segments,
            segments_per_stream_max=self._settings.streams.segments_per_stream_max,
            settings=self._settings.auto_scale,
        )

    def _register_callbacks(self) -> None:
        self.streams.register_while_sealing(self.transactions.no_unfinished_transactions)
        self.streams.truncation.register(self.transactions.record_merges)
        for cleaning in (
            self.transactions.on_stream_deletion,
            self.subscribers.on_stream_deletion,
            self.retention.on_stream_deletion,
            self.watermarks.on_stream_deletion,
        ):
            self.streams.register_on_deletion(cleaning)
        self.scopes.register(GROUPS_INDEX, self.reader_groups.items.delete_all)
        self.scopes.register(TABLES_INDEX, self.key_value_tables.items.delete_all)

    def table_names(self) -> list[str]:
        """The tables in which everything stands that is remembered here."""
        return [TRANSACTIONS_TABLE, *self.metadata.table_names()]

    def require_settled(self) -> None:
        """Raises RetryLaterError while a change whose caller has left is on its way into a table."""
        self.metadata.require_settled()
        self._transaction_table.require_settled()

    def calls(
        self,
        *,
        locate: LocateSegment,
        issue_token: IssueToken,
        controllers: ListControllers,
    ) -> list[Call]:
        """Every call of the service."""
        location_calls = LocationCalls(
            locate=locate, issue_token=issue_token, controllers=controllers
        )
        return [
            *ScopeCalls(scopes=self.scopes, settings=self._settings.streams).calls(),
            *StreamCalls(streams=self.streams).calls(),
            *location_calls.calls(),
            *SegmentCalls(streams=self.streams, issue_token=issue_token).calls(),
            *self._transaction_calls(),
            *self._staged_calls(),
            *self._reader_group_calls(),
            *self._table_calls(),
        ]

    def _transaction_calls(self) -> list[Call]:
        transactions, marks = self.transactions, self.writer_marks
        return [
            unary("createTransaction", api.CreateTxnRequest, transactions.create_transaction),
            unary("commitTransaction", api.TxnRequest, transactions.commit_transaction),
            unary("abortTransaction", api.TxnRequest, transactions.abort_transaction),
            unary("pingTransaction", api.PingTxnRequest, transactions.ping_transaction),
            unary("checkTransactionState", api.TxnRequest, transactions.check_transaction_state),
            unary(
                "listCompletedTransactions",
                api.ListCompletedTxnRequest,
                transactions.list_completed_transactions,
            ),
            unary("noteTimestampFromWriter", api.TimestampFromWriter, marks.note),
            unary("removeWriter", api.RemoveWriterRequest, marks.remove),
        ]

    def _staged_calls(self) -> list[Call]:
        staged = self.staged_commits
        return [
            unary("beginStage", own_api.BeginStageRequest, staged.begin, service=OWN_SERVICE),
            unary("commitStages", own_api.CommitStagesRequest, staged.commit, service=OWN_SERVICE),
            unary(
                "lastVersion", own_api.LastVersionRequest, staged.last_version, service=OWN_SERVICE
            ),
        ]

    def _reader_group_calls(self) -> list[Call]:
        groups, subscribers = self.reader_groups, self.subscribers
        return [
            unary("createReaderGroup", api.ReaderGroupConfiguration, groups.create),
            unary("getReaderGroupConfig", api.ReaderGroupInfo, groups.configuration),
            unary("updateReaderGroup", api.ReaderGroupConfiguration, groups.update),
            unary("deleteReaderGroup", api.ReaderGroupInfo, groups.delete),
            unary("updateSubscriberStreamCut", api.SubscriberStreamCut, subscribers.update_cut),
            unary("listSubscribers", api.StreamInfo, subscribers.list_of),
        ]

    def _table_calls(self) -> list[Call]:
        tables = self.key_value_tables
        return [
            unary("createKeyValueTable", api.KeyValueTableConfig, tables.create),
            unary(
                "getCurrentSegmentsKeyValueTable", api.KeyValueTableInfo, tables.current_segments
            ),
            unary("getKeyValueTableConfiguration", api.KeyValueTableInfo, tables.configuration),
            unary("listKeyValueTablesInScope", api.KVTablesInScopeRequest, tables.list_in_scope),
            unary("deleteKeyValueTable", api.KeyValueTableInfo, tables.delete),
        ]
