"""What an operator may turn in consumer groups."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Limits and times; times in seconds unless the name says milliseconds."""

    session_timeout_ms_min: int = 6_000
    """A member that is silent for its session timeout is removed; shorter ones than this are refused."""
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_seconds: float = 0.5
    """A group without members waits so long behind each new member before its first generation, so that consumers that
    start together share one rebalance. 0: not at all."""
    former_members_seconds: float = 60.0
    """Behind a start, in which members of groups without offsets keep the ids that a former process gave them."""
    former_rebalance_delay_seconds: float = 6.0
    """As `initial_rebalance_delay_seconds`, behind each of these members: what they have in common is that they come by
    their next heartbeat, or when they have stopped their work."""
    group_id_bytes_max: int = 1_024
    groups_max: int = 100_000
    """Groups that have members or offsets. Above it: refused."""
    members_max: int = 1_000
    """Members of one group, and as many ids that were given out and not used yet."""
    protocols_max: int = 100
    """Ways to assign partitions that one member knows. Clients know a handful; each is looked for among those of all
    others, and one without a name or metadata has no bytes to be counted by."""
    member_bytes_max: int = 1 << 20
    """Ids of a member, the name of its client, and names and metadata of its protocols, together."""
    assignment_bytes_max: int = 8 << 20
    """All assignments of one generation of one group together."""
    offsets_max: int = 1_000_000
    """Committed offsets of all groups together. Above it: those of new partitions are refused."""
    offset_metadata_bytes_max: int = 4_096
    """The text beside an offset."""
    offset_retention_seconds: float = 604_800.0
    """Offsets of a group without members are removed so long after its last member or commit, counted by this process:
    a restart begins to count anew."""
    sweep_seconds: float = 600.0
    """Between two looks for groups whose offsets are to be removed."""
