"""Topics made, changed, deleted and described; records deleted.

Requests name several topics, each of which succeeds or fails by itself. Any broker takes them. What a client asks for
that is not done is refused by name: more than one replica, a partition at a broker of the client's choice. Others run
between the topics of one request.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from segmentstore.codec.kafka_protocol import administration as messages
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fields import NO_UUID
from segmentstore.kafka.refusals import code_of, text_of
from segmentstore.kafka.settings import ITEMS_PER_TURN, KafkaSettings
from segmentstore.runtime.waiting import SharedTime, give_way
from segmentstore.topics.brokers import Brokers
from segmentstore.topics.errors import TopicError, TopicNotFoundError, UnknownTopicIdError
from segmentstore.topics.topic_config import CONFIGS, make_config
from segmentstore.topics.topics import Topics

_CONFIG_BYTES_MAX = 1 << 20
"""Only of a change that is merely looked at: a real one is bounded by the topics."""

_TOPICS_TOLD_MAX = 1_000
"""Of one CreateTopics: of so many topics it is told what they have, a KB each, and of the others it is not, as by a
server that does not tell it. A request that only checks may name 250,000."""

_VERSION_WITH_IDS = 6
"""From this version of DeleteTopics on topics may be given by their ids."""

_Resource = TypeVar("_Resource", messages.AlterConfigsResource, messages.ReplacedConfigsResource)


class _RefusedError(Exception):
    """A part of a request that is refused here, before topics hear of it."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class TopicRequests:
    """One method for each API."""

    def __init__(self, *, topics: Topics, brokers: Brokers, settings: KafkaSettings) -> None:
        self._topics = topics
        self._brokers = brokers
        self._settings = settings

    async def create(self, request: messages.CreateTopicsRequest) -> messages.CreateTopicsResponse:
        created: list[messages.CreatedTopic] = []
        named = Counter(topic.name for topic in request.topics)
        for topic in request.topics:
            try:
                outcome = await self._create(
                    topic,
                    is_twice=named[topic.name] > 1,
                    only_check=request.validate_only,
                    tells_all=len(created) < _TOPICS_TOLD_MAX,
                )
            except (TopicError, _RefusedError) as error:
                code, message = _refusal(error)
                outcome = messages.CreatedTopic(
                    name=topic.name, error_code=code, error_message=message
                )
            created.append(outcome)
            await give_way(len(created), every=ITEMS_PER_TURN)
        return messages.CreateTopicsResponse(topics=tuple(created))

    async def _create(
        self, topic: messages.CreatableTopic, *, is_twice: bool, only_check: bool, tells_all: bool
    ) -> messages.CreatedTopic:
        """`tells_all`: also what it has."""
        if is_twice:
            raise _RefusedError(ErrorCode.INVALID_REQUEST, "the request names the topic twice")
        partitions = self._partitions_of(topic)
        given: Mapping[str, str] = {
            each.name: each.value for each in topic.configs if each.value is not None
        }
        config: Mapping[str, str]
        topic_id = NO_UUID
        if only_check:
            await self._topics.find(topic.name)
            self._topics.check_new(topic.name, partitions, given)
            config = make_config(given, bytes_max=_CONFIG_BYTES_MAX).effective()
        else:
            await self._topics.create(topic.name, partitions, given)
            found = self._topics.describe(topic.name)
            if found is None:  # another client has deleted it meanwhile
                return messages.CreatedTopic(name=topic.name, error_code=ErrorCode.NONE)
            topic_id, partitions = found.topic_id, found.partitions
            given, config = found.given, found.config
        if not tells_all:
            return messages.CreatedTopic(
                name=topic.name, topic_id=topic_id, error_code=ErrorCode.NONE
            )
        return messages.CreatedTopic(
            name=topic.name,
            topic_id=topic_id,
            error_code=ErrorCode.NONE,
            num_partitions=partitions,
            replication_factor=1,
            configs=tuple(
                messages.CreatedConfig(
                    name=word, value=value, config_source=_source_of(word, given)
                )
                for word, value in config.items()
            ),
        )

    def _partitions_of(self, topic: messages.CreatableTopic) -> int:
        if topic.assignments:
            indexes = sorted(each.partition_index for each in topic.assignments)
            if indexes != list(range(len(indexes))):
                raise _RefusedError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are numbered from 0 upwards"
                )
            self._check_assignments([each.broker_ids for each in topic.assignments])
            return len(indexes)
        if topic.replication_factor not in (-1, 1):
            raise _RefusedError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "a partition has one broker: the replication factor is 1, and copies are made below it",
            )
        if topic.num_partitions == -1:
            return self._settings.partitions_default
        return topic.num_partitions

    def _check_assignments(self, assignments: Sequence[tuple[int, ...]]) -> None:
        """One broker has everything; of several the store itself chooses, and moves partitions."""
        brokers = [each.broker_id for each in self._brokers.all()]
        if len(brokers) != 1 or any(list(each) != brokers for each in assignments):
            raise _RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"the store decides which broker has a partition brokers={brokers}",
            )

    async def delete(
        self, request: messages.DeleteTopicsRequest, *, version: int
    ) -> messages.DeleteTopicsResponse:
        wanted: Iterable[messages.DeletableTopic] = request.topics
        if version < _VERSION_WITH_IDS:
            wanted = (messages.DeletableTopic(name=name) for name in request.topic_names)
        deleted: list[messages.DeletedTopic] = []
        for each in wanted:
            name = each.name
            topic_id = each.topic_id
            code, message = ErrorCode.NONE, None
            try:
                name, topic_id = await self._place_of(each)
                await self._delete(name, topic_id, is_by_id=each.name is None)
            except (TopicError, _RefusedError) as error:
                code, message = _refusal(error)
            deleted.append(
                messages.DeletedTopic(
                    name=name, topic_id=topic_id, error_code=code, error_message=message
                )
            )
            await give_way(len(deleted), every=ITEMS_PER_TURN)
        return messages.DeleteTopicsResponse(responses=tuple(deleted))

    async def _place_of(self, topic: messages.DeletableTopic) -> tuple[str, UUID]:
        """Name and id; no id if there is no topic of the name. Raises _RefusedError, TopicError."""
        if topic.name is not None:
            if topic.topic_id != NO_UUID:
                raise _RefusedError(
                    ErrorCode.INVALID_REQUEST, "a topic is given by its name or by its id, not both"
                )
            found = self._topics.describe(topic.name)
            return topic.name, NO_UUID if found is None else found.topic_id
        if topic.topic_id == NO_UUID:
            raise _RefusedError(ErrorCode.INVALID_REQUEST, "a topic is given without name and id")
        found = await self._topics.find(topic.topic_id)
        if found is None:
            raise UnknownTopicIdError(topic.topic_id)
        return found.name, topic.topic_id

    async def _delete(self, name: str, topic_id: UUID, *, is_by_id: bool) -> None:
        if not is_by_id:
            await self._topics.delete(name)
            return
        try:
            await self._topics.delete(name, topic_id=topic_id)
        except TopicNotFoundError as error:
            raise UnknownTopicIdError(topic_id) from error

    async def add_partitions(
        self, request: messages.CreatePartitionsRequest
    ) -> messages.CreatePartitionsResponse:
        grown: list[messages.GrownTopic] = []
        for topic in request.topics:
            code, message = await _outcome(
                self._add_partitions(topic, only_check=request.validate_only)
            )
            grown.append(
                messages.GrownTopic(name=topic.name, error_code=code, error_message=message)
            )
            await give_way(len(grown), every=ITEMS_PER_TURN)
        return messages.CreatePartitionsResponse(results=tuple(grown))

    async def _add_partitions(self, topic: messages.GrowingTopic, *, only_check: bool) -> None:
        found = await self._topics.find(topic.name)
        if found is None:
            raise TopicNotFoundError(topic.name)
        if topic.count <= found.partitions:
            raise _RefusedError(
                ErrorCode.INVALID_PARTITIONS,
                f"the number of partitions only grows current={found.partitions} given={topic.count}",
            )
        if topic.assignments is not None:
            if len(topic.assignments) != topic.count - found.partitions:
                raise _RefusedError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    "assignments are of the new partitions, one for each",
                )
            self._check_assignments([each.broker_ids for each in topic.assignments])
        if not only_check:
            await self._topics.add_partitions(topic.name, topic.count)

    async def delete_records(
        self, request: messages.DeleteRecordsRequest
    ) -> messages.DeleteRecordsResponse:
        topics: list[messages.DeletedRecordsTopic] = []
        told = 0
        time_of_all = SharedTime(self._settings.partition_seconds)
        for topic in request.topics:
            partitions: list[messages.DeletedRecordsPartition] = []
            for each in topic.partitions:
                partitions.append(await self._delete_records(topic.name, each, time_of_all))
                told += 1
                await give_way(told, every=ITEMS_PER_TURN)
            topics.append(
                messages.DeletedRecordsTopic(name=topic.name, partitions=tuple(partitions))
            )
        return messages.DeleteRecordsResponse(topics=tuple(topics))

    async def _delete_records(
        self, topic: str, wanted: messages.DeleteRecordsPartition, time_of_all: SharedTime
    ) -> messages.DeletedRecordsPartition:
        code, low_watermark = ErrorCode.NONE, -1
        try:
            # Not of the deletion: what it has begun ends.
            async with time_of_all.limit():
                found = await self._topics.own_partition(topic, wanted.partition_index)
            low_watermark = await found.delete_records(wanted.offset)
        except TimeoutError:
            code = ErrorCode.REQUEST_TIMED_OUT
        except TopicError as error:
            code = code_of(error)
        return messages.DeletedRecordsPartition(
            partition_index=wanted.partition_index, low_watermark=low_watermark, error_code=code
        )

    # --- configurations ---------------------------------------------------------------------------

    async def describe_configs(
        self, request: messages.DescribeConfigsRequest
    ) -> messages.DescribeConfigsResponse:
        """Each resource once, however often it is asked for: an answer is much longer than a name."""
        results: list[messages.DescribedConfigs] = []
        for each in _resources_of(request):
            results.append(await self._described(each))
            await give_way(len(results), every=ITEMS_PER_TURN)
        return messages.DescribeConfigsResponse(results=tuple(results))

    async def _described(
        self, resource: messages.DescribeConfigsResource
    ) -> messages.DescribedConfigs:
        configs: list[messages.DescribedConfig] = []
        code, message = ErrorCode.NONE, None
        try:
            configs = await self._configs_of(resource)
            if messages.TOPIC_ID_CONFIG in (resource.configuration_keys or ()):
                configs += self._id_of(resource)
        except (TopicError, _RefusedError) as error:
            code, message = _refusal(error)
        wanted = resource.configuration_keys
        return messages.DescribedConfigs(
            error_code=code,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=tuple(each for each in configs if wanted is None or each.name in wanted),
        )

    async def _configs_of(
        self, resource: messages.DescribeConfigsResource
    ) -> list[messages.DescribedConfig]:
        if resource.resource_type == messages.BROKER_RESOURCE:
            return self._configs_of_server(resource.resource_name)
        name = _topic_of(resource.resource_type, resource.resource_name)
        found = await self._topics.find(name)
        if found is None:
            raise TopicNotFoundError(name)
        return [
            messages.DescribedConfig(
                name=word,
                value=value,
                read_only=False,
                is_default=word not in found.given,
                config_source=_source_of(word, found.given),
            )
            for word, value in found.config.items()
        ]

    def _id_of(self, resource: messages.DescribeConfigsResource) -> list[messages.DescribedConfig]:
        """For readers of Tier 2, to whom a topic is its id. Tools that ask for everything do not see it."""
        found = self._topics.describe(resource.resource_name)
        if resource.resource_type != messages.TOPIC_RESOURCE or found is None:
            return []
        return [
            messages.DescribedConfig(
                name=messages.TOPIC_ID_CONFIG,
                value=found.topic_id.hex,
                read_only=True,
                config_source=messages.DEFAULT_SOURCE,
            )
        ]

    def _configs_of_server(self, node: str) -> list[messages.DescribedConfig]:
        own = self._brokers.own()
        own_id = "" if own is None else str(own.broker_id)
        if node not in ("", own_id):
            raise _RefusedError(ErrorCode.INVALID_REQUEST, f"there is no such server node={node!r}")
        values = {
            "auto.create.topics.enable": "false",
            "default.replication.factor": "1",
            "node.id": own_id,
            "num.partitions": str(self._settings.partitions_default),
            "socket.request.max.bytes": str(self._settings.frame_bytes_max),
        }
        return [
            messages.DescribedConfig(
                name=name,
                value=value,
                read_only=True,
                config_source=messages.STATIC_BROKER_SOURCE,
            )
            for name, value in values.items()
        ]

    async def alter_configs(
        self, request: messages.IncrementalAlterConfigsRequest
    ) -> messages.IncrementalAlterConfigsResponse:
        """What is not named stays as it is."""
        return messages.IncrementalAlterConfigsResponse(
            responses=await self._altered(
                request.resources, _changes_of, only_check=request.validate_only
            )
        )

    async def replace_configs(
        self, request: messages.AlterConfigsRequest
    ) -> messages.AlterConfigsResponse:
        """What is not named goes back to its default."""
        return messages.AlterConfigsResponse(
            responses=await self._altered(
                request.resources, _replacement_of, only_check=request.validate_only
            )
        )

    async def _altered(
        self,
        resources: Sequence[_Resource],
        changes_of: Callable[[_Resource], dict[str, str | None]],
        *,
        only_check: bool,
    ) -> tuple[messages.AlteredConfigs, ...]:
        altered: list[messages.AlteredConfigs] = []
        for resource in resources:
            code, message = await _outcome(self._alter(resource, changes_of, only_check=only_check))
            altered.append(
                messages.AlteredConfigs(
                    error_code=code,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
            await give_way(len(altered), every=ITEMS_PER_TURN)
        return tuple(altered)

    async def _alter(
        self,
        resource: _Resource,
        changes_of: Callable[[_Resource], dict[str, str | None]],
        *,
        only_check: bool,
    ) -> None:
        name = _topic_of(resource.resource_type, resource.resource_name)
        changes = changes_of(resource)
        found = await self._topics.find(name)
        if found is None:
            raise TopicNotFoundError(name)
        if only_check:
            merged = {**found.given, **changes}
            given = {word: value for word, value in merged.items() if value is not None}
            make_config(given, bytes_max=_CONFIG_BYTES_MAX)
            return
        await self._topics.alter(name, changes)


def _changes_of(resource: messages.AlterConfigsResource) -> dict[str, str | None]:
    """Values, or None for those that go back to their defaults."""
    changes: dict[str, str | None] = {}
    for each in resource.configs:
        if each.config_operation not in (messages.SET, messages.DELETE):
            raise _RefusedError(
                ErrorCode.INVALID_CONFIG,
                f"values are set or deleted, none is a list name={each.name!r}",
            )
        if each.config_operation == messages.SET:
            _set(changes, each.name, each.value)
        else:
            _change(changes, each.name, None)
    return changes


def _replacement_of(resource: messages.ReplacedConfigsResource) -> dict[str, str | None]:
    """As _changes_of(). No value is no way to say that it is the default, as in Kafka."""
    changes: dict[str, str | None] = {}
    for each in resource.configs:
        _set(changes, each.name, each.value)
    return {**dict.fromkeys(CONFIGS), **changes}


def _set(changes: dict[str, str | None], name: str, value: str | None) -> None:
    if value is None:
        raise _RefusedError(ErrorCode.INVALID_CONFIG, f"no value name={name!r}")
    _change(changes, name, value)


def _change(changes: dict[str, str | None], name: str, value: str | None) -> None:
    if name in changes:
        raise _RefusedError(ErrorCode.INVALID_REQUEST, f"the request names it twice name={name!r}")
    changes[name] = value


def _resources_of(
    request: messages.DescribeConfigsRequest,
) -> list[messages.DescribeConfigsResource]:
    """Those that are asked about, in order, each with all the keys that are asked for."""
    keys: dict[tuple[int, str], dict[str, None] | None] = {}
    for each in request.resources:
        place = each.resource_type, each.resource_name
        wanted = keys.setdefault(place, {})
        if each.configuration_keys is None:
            keys[place] = None
        elif wanted is not None:
            wanted.update(dict.fromkeys(each.configuration_keys))
    return [
        messages.DescribeConfigsResource(
            resource_type=resource_type,
            resource_name=name,
            configuration_keys=None if asked is None else tuple(asked),
        )
        for (resource_type, name), asked in keys.items()
    ]


def _topic_of(resource_type: int, resource_name: str) -> str:
    if resource_type != messages.TOPIC_RESOURCE:
        raise _RefusedError(
            ErrorCode.INVALID_REQUEST, f"only topics have this resource_type={resource_type}"
        )
    return resource_name


def _source_of(word: str, given: Mapping[str, str]) -> int:
    return messages.TOPIC_SOURCE if word in given else messages.DEFAULT_SOURCE


async def _outcome(work: Awaitable[object]) -> tuple[ErrorCode, str | None]:
    try:
        await work
    except (TopicError, _RefusedError) as error:
        return _refusal(error)
    return ErrorCode.NONE, None


def _refusal(error: TopicError | _RefusedError) -> tuple[ErrorCode, str]:
    code = error.code if isinstance(error, _RefusedError) else code_of(error)
    return code, text_of(error)
