"""What a consumer group refuses.

The number of a problem is Kafka's error code: clients decide by it whether they ask again, join again or give up. The
names are Kafka's, too, so that a reader finds them in its documentation.
"""

from enum import IntEnum


class GroupProblem(IntEnum):
    """Why a request about a group was refused. Never renumber: clients know the numbers."""

    UNKNOWN_TOPIC_OR_PARTITION = 3
    """An offset of a topic that does not exist."""
    OFFSET_METADATA_TOO_LARGE = 12
    """The text beside an offset is too long."""
    COORDINATOR_LOAD_IN_PROGRESS = 14
    """Offsets are still being looked up after a start. Ask again."""
    COORDINATOR_NOT_AVAILABLE = 15
    """The table of offsets does not answer, or the service ends. Ask again; a commit may have taken place."""
    NOT_COORDINATOR = 16
    """The table of offsets is at another process: look for the group again."""
    ILLEGAL_GENERATION = 22
    """The member speaks of another generation than the present one."""
    INCONSISTENT_GROUP_PROTOCOL = 23
    """No way to assign partitions that all members know, or a member that asks by another one for its part."""
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    """Not, or no longer, a member: join again from scratch."""
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    """Join again with the same member id."""
    INVALID_REQUEST = 42
    """It can never succeed as it stands, as a commit of an offset below -2."""
    POLICY_VIOLATION = 44
    """A limit of the settings: groups, or offsets, or bytes."""
    NON_EMPTY_GROUP = 68
    """A group that is to be deleted has members."""
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    """Join again with the member id that comes with this answer."""
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    """Another client has the instance id by now: this one ends."""


class GroupError(Exception):
    """A request about a group was refused for `problem`; nothing was changed by it.

    COORDINATOR_NOT_AVAILABLE as the answer to a commit or a deletion is the exception: its outcome is unknown.
    """

    def __init__(self, problem: GroupProblem, *, member_id: str = "") -> None:
        super().__init__(f"group request refused problem={problem.name}")
        self.problem = problem
        self.member_id = member_id
        """With MEMBER_ID_REQUIRED: the id to join with."""
