"""What an operator may turn in the controller, room by room."""

from dataclasses import dataclass, field

from segmentstore.controller.autoscale.settings import AutoScaleSettings
from segmentstore.controller.key_value_tables.settings import KeyValueTableSettings
from segmentstore.controller.reader_groups.settings import ReaderGroupSettings
from segmentstore.controller.retention.settings import RetentionSettings
from segmentstore.controller.streams.settings import StreamSettings
from segmentstore.controller.transactions.settings import TransactionSettings
from segmentstore.controller.watermarks.settings import WatermarkSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The settings of every room."""

    streams: StreamSettings = field(default_factory=StreamSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    reader_groups: ReaderGroupSettings = field(default_factory=ReaderGroupSettings)
    key_value_tables: KeyValueTableSettings = field(default_factory=KeyValueTableSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    auto_scale: AutoScaleSettings = field(default_factory=AutoScaleSettings)
    watermarks: WatermarkSettings = field(default_factory=WatermarkSettings)
