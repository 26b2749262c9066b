"""What an operator may turn in topics."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Limits and intervals of topics and their partitions."""

    partitions_per_topic_max: int = 10_000
    topics_max: int = 10_000
    """The catalogue is in memory."""
    config_bytes_max: int = 16 * 1024
    """Of one topic, names and values together."""
    producers_per_partition_max: int = 2_000
    """Producers whose latest batches a partition remembers; the one that was silent for longest is forgotten first."""
    producer_seconds_max: float = 86_400.0
    """A producer that was silent for longer may be forgotten."""
    mark_bytes: int = 16 * 1024 * 1024
    """From one mark of a partition to the next: a recovery walks over the headers behind the last one."""
    positions_per_partition_max: int = 16_384
    """Positions of batches in memory, one for each 64 KiB; older ones are found by the marks."""
    waiting_appends_max: int = 10_000
    """Batches of one partition that are on their way to the log. Above it, further ones are refused."""
    retention_interval_seconds: float = 60.0
    compaction_interval_seconds: float = 15.0
    """Between two passes over the partitions that are compacted by key."""
    rest_seconds_max: float = 3_600.0
    """A partition that is closed is opened by retention after so long, also where nothing can be due."""
    clock_look_seconds: float = 1.0
    """How often a jump of the wall clock is looked for."""
    clock_difference_seconds_max: float = 5.0
    """Wall and loop clock may drift apart by so much; more stops deletion by age."""
    clock_settle_seconds: float = 600.0
    """After so long without a further jump, or since the start, the clocks are trusted."""
    idle_seconds: float = 600.0
    """A partition that was not used for so long is closed; its next use opens it again."""
    file_bytes: int = 64 * 1024 * 1024
    """Batches of one partition that become a file at once: at most so many, but one batch."""
    file_seconds: float = 10.0
    """Batches become a file when the oldest one that is in none is so old; 0: no files are made."""
    files_at_once_max: int = 16
    """Files that are being made side by side: most of the time of one is waiting for both tiers."""
    large_files_at_once_max: int = 2
    """Of these, larger than small_file_bytes. Each takes the memory of its batches and of its image."""
    small_file_bytes: int = 4 * 1024 * 1024
    """Batches of a small file."""
    file_retry_seconds_max: float = 60.0
    """Pauses behind failures grow up to it."""
    file_sweep_seconds: float = 86_400.0
    """An open partition that makes files looks for dead ones with the first one, and after so long again."""
    gone_topics_first_seconds: float = 600.0
    """From the start to the first look for files of topics that are gone; then every `file_sweep_seconds`."""
    files_known_per_partition_max: int = 64
    """Registered files of one partition that are kept in memory; others are found by attributes of its segment."""
    read_ahead_bytes_max: int = 8 * 1024 * 1024
    """How far a reader that reads files in order is read ahead of; 0: not at all."""
    partition_steps_at_once_max: int = 16
    """Partitions of one topic that are created or deleted side by side."""
    resume_seconds: float = 5.0
    """Between two attempts to finish what was begun and broken off."""
    catalogue_look_seconds: float = 1.0
    """How often it is asked whether another process has changed the catalogue."""
    segment_sweep_seconds_first: float = 60.0
    """After a start, and then after"""
    segment_sweep_seconds: float = 3_600.0
    """, the process with the catalogue looks for segments of topics that are gone."""
