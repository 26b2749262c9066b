"""The partitions that a consumer follows, remembered so that it names only what changes (KIP-227).

A consumer of a thousand partitions of which three move would otherwise name a thousand in each request, and be answered
about a thousand. Java's clients, kafka-python and franz-go ask for a session; librdkafka and aiokafka never do.

    id 0, epoch -1      no session: the request names everything, and so does its answer
    id 0, epoch 0       a session is begun: the same, and the answer tells the session's id
    id N, epoch 0       the session is ended and another one begun
    id N, epoch -1      the session is ended; the rest as without one
    id N, epoch 1, 2 ...  the request names what is new or goes on elsewhere, and what is forgotten; the answer names
                        what has records, an error, or other bounds than the client was told last

Invariants:

- A session is one of its connection and ends with it, so it is never older than what its client has read. An id that
  is not that of the connection's session is answered with 70, an epoch that does not follow with 71: the client then
  names everything again.
- Topics go by their names in all requests of a session, or by their ids in all: else it ends, with 106.
- What an answer leaves out is what the client knows already.
- A partition whose records were answered goes behind all others: the bound of an answer's bytes starves none.
- All sessions together remember at most `fetch_session_partitions_max` partitions. Where there is no room the answer
  tells id 0, and the client goes on without a session.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fetch import FetchedPartition, FetchPartition, FetchRequest
from segmentstore.topics.catalogue import TopicKey

NO_SESSION: Final = 0
"""As an id."""
_FIRST_EPOCH: Final = 0
_LAST_EPOCH: Final = -1
_NUMBER_MAX: Final = 0x7FFFFFFF
"""Of ids and epochs; 1 follows."""

_Place = tuple[TopicKey, int]
"""Topic and partition."""


@dataclass(slots=True)
class _Followed:
    """One partition of a session."""

    wanted: FetchPartition
    told: tuple[int, int] | None = None
    """High watermark and first offset, as the client knows them; None if it has to be told whatever they are."""


class FetchSessions:
    """What the sessions of all connections share."""

    def __init__(self, *, partitions_max: int) -> None:
        self._partitions_max = partitions_max
        self._last_id = NO_SESSION
        self.remembered = 0
        """Partitions, in all sessions."""

    def of_connection(self) -> "FetchSession":
        """Nothing is remembered until its client asks for it; end() when the connection goes."""
        return FetchSession(self)

    def has_room(self, more: int) -> bool:
        """For so many partitions."""
        return self.remembered + more <= self._partitions_max

    def next_id(self) -> int:
        """No two sessions that there are at a time have the same."""
        self._last_id = self._last_id % _NUMBER_MAX + 1
        return self._last_id


class FetchSession:
    """That of one connection, if its client asks for one."""

    def __init__(self, sessions: FetchSessions) -> None:
        self._sessions = sessions
        self._id = NO_SESSION
        self._epoch_expected = _FIRST_EPOCH
        self._by_id = False
        """Whether its topics go by their ids."""
        self._followed: dict[_Place, _Followed] = {}
        """In the order in which they are looked at."""

    @property
    def session_id(self) -> int:
        """What an answer tells the client."""
        return self._id

    def take(self, request: FetchRequest, *, by_id: bool = False) -> ErrorCode:
        """Begin, go on or end, as the request says. With an error nothing is to be read. `by_id`: how it names topics,
        if it names any."""
        if request.session_epoch in (_FIRST_EPOCH, _LAST_EPOCH):
            # An id of a connection that broke is named here too: that session has ended already.
            self.end()
            if request.session_epoch == _FIRST_EPOCH:
                self._begin(request)
                self._by_id = by_id
            return ErrorCode.NONE
        if self._id == NO_SESSION or request.session_id != self._id:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if request.session_epoch != self._epoch_expected:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if by_id is not self._by_id:
            self.end()
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        return self._go_on(request)

    def _begin(self, request: FetchRequest) -> None:
        followed = {place: _Followed(wanted) for place, wanted in _named(request)}
        if not followed or not self._sessions.has_room(len(followed)):
            return
        self._sessions.remembered += len(followed)
        self._followed = followed
        self._id = self._sessions.next_id()
        self._epoch_expected = _FIRST_EPOCH + 1

    def _go_on(self, request: FetchRequest) -> ErrorCode:
        named = dict(_named(request))
        if not self._sessions.has_room(len(named.keys() - self._followed.keys())):
            # The client names everything again, and is then told that there is no session.
            self.end()
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        before = len(self._followed)
        for topic in request.forgotten_topics:
            for partition in topic.partitions:
                self._followed.pop((topic.key, partition), None)
        for place, wanted in named.items():
            if (known := self._followed.get(place)) is not None:
                known.wanted = wanted
            else:
                self._followed[place] = _Followed(wanted)
        self._sessions.remembered += len(self._followed) - before
        self._epoch_expected = self._epoch_expected % _NUMBER_MAX + 1
        return ErrorCode.NONE

    def end(self) -> None:
        """Forget all. Idempotent."""
        self._sessions.remembered -= len(self._followed)
        self._followed = {}
        self._id = NO_SESSION

    def wanted(self, request: FetchRequest) -> Iterator[tuple[TopicKey, FetchPartition]]:
        """What is to be read behind take(), in that order; each once, as it was named last."""
        if self._id == NO_SESSION:
            return ((topic, wanted) for (topic, _), wanted in dict(_named(request)).items())
        return ((topic, each.wanted) for (topic, _), each in self._followed.items())

    def tell(self, request: FetchRequest, topic: TopicKey, found: FetchedPartition) -> bool:
        """Whether the answer names the partition. What it says of it is remembered."""
        if self._id == NO_SESSION:
            return True
        place = topic, found.partition_index
        followed = self._followed[place]
        bounds = found.high_watermark, found.log_start_offset
        is_news = bool(found.error_code or found.records) or bounds != followed.told
        followed.told = None if found.error_code else bounds
        if found.records:
            self._followed[place] = self._followed.pop(place)
        return is_news or request.session_epoch == _FIRST_EPOCH

    @property
    def partition_count(self) -> int:
        return len(self._followed)


def _named(request: FetchRequest) -> Iterator[tuple[_Place, FetchPartition]]:
    for topic in request.topics:
        for wanted in topic.partitions:
            yield (topic.key, wanted.partition), wanted
