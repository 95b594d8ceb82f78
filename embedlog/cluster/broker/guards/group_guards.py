"""Guards of the APIs of groups that need more than a row of the table says (authorization.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ....security.acls import CLUSTER_NAME, Operation, ResourceType
from ....security.operations import ON_A_GROUP
from ....wire.apis.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from ....wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from ....wire.error_codes import ErrorCode
from ..access.access import REFUSED
from .authorization import Entries, GuardedCall, then
from .refusals import no_committed, no_committed_of_one, no_group

_GROUP: Final = ResourceType.GROUP
_TOPIC: Final = ResourceType.TOPIC
_KEYS: Final = {0: _GROUP, 1: ResourceType.TRANSACTIONAL_ID}
_FIND_WITH_SEVERAL: Final = 4
_FETCH_WITH_SEVERAL: Final = 8
_FETCH_WITH_CODE: Final = 2
_FETCH_WITH_IDS: Final = 10
_FETCHED_GROUPS: Final = Entries(Operation.DESCRIBE, _GROUP, "groups", "group_id", "groups", no_group)
_FETCHED_TOPICS: Final = Entries(Operation.DESCRIBE, _TOPIC, "topics", "name", "topics", no_committed)
_FETCHED_OF_ONE: Final = _FETCHED_TOPICS._replace(answer=no_committed_of_one)
_MESSAGE: Final = "this client may not describe one of the topics of the group"


def find_coordinator(call: GuardedCall, request: FindCoordinatorRequest) -> Any:
    def refused(key: str) -> Coordinator | None:
        type = _KEYS.get(request.key_type)
        if type is None:  # of share groups' state: brokers ask for it
            may = call.access.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        else:
            may = call.access.may(Operation.DESCRIBE, type, key)
        if may:
            return None
        code = REFUSED[type or ResourceType.CLUSTER]
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code)

    if call.context.version < _FIND_WITH_SEVERAL:
        coordinator = refused(request.key)
        if coordinator is None:
            return call.handle(request)
        return FindCoordinatorResponse(error_code=coordinator.error_code, node_id=-1, host="", port=-1)
    denied = {
        key: coordinator for key in request.coordinator_keys if (coordinator := refused(key)) is not None
    }
    if not denied:
        return call.handle(request)
    request.coordinator_keys = [key for key in request.coordinator_keys if key not in denied]
    return then(call.handle(request), lambda response: response.coordinators.extend(denied.values()))


# -- what is listed and described ----------------------------------------------------------------------------


def list_groups(call: GuardedCall, request: Any) -> Any:
    """Describe on the cluster is for all groups."""

    def finish(response: Any) -> None:
        response.groups = [
            group for group in response.groups if call.access.sees(Operation.DESCRIBE, _GROUP, group.group_id)
        ]

    result = call.handle(request)
    return result if call.access.sees(Operation.DESCRIBE) else then(result, finish)


def described(entries: Entries) -> Any:
    """The guard of an API that describes groups: their operations are the client's own.

    A group whose members have topics that the client may not describe is refused, as in Kafka. What members
    of the classic protocol say to each other is not looked into.
    """

    def guard(call: GuardedCall, request: Any) -> Any:
        kept, refused = call.split(getattr(request, entries.of), entries)
        setattr(request, entries.of, kept)

        def finish(response: Any) -> None:
            for group in response.groups:
                if any(not call.access.sees(Operation.DESCRIBE, _TOPIC, name) for name in _topics(group)):
                    group.error_code, group.error_message = REFUSED[_TOPIC], _MESSAGE
                    group.members = []
                elif request.include_authorized_operations and not group.error_code:
                    group.authorized_operations = call.access.operations(ON_A_GROUP, _GROUP, group.group_id)
            response.groups += refused

        return then(call.handle(request), finish)

    return guard


def _topics(group: Any) -> set[str]:
    """The topics that members of KIP-848's and share groups name or have."""
    names: set[str] = set()
    for member in group.members:
        names.update(getattr(member, "subscribed_topic_names", ()))
        for assignment in (getattr(member, "assignment", None), getattr(member, "target_assignment", None)):
            names.update(topic.topic_name for topic in getattr(assignment, "topic_partitions", ()))
    return names


# -- members -------------------------------------------------------------------------------------------------


def heartbeat(response: type) -> Any:
    """The guard of KIP-848's and share groups' heartbeats: subscribed topics, and assigned ones.

    A pattern may match topics that the member may not describe: it is not told that it has these.
    """

    def guard(call: GuardedCall, request: Any) -> Any:
        for name in request.subscribed_topic_names or ():
            code = call.access.topic_code(Operation.DESCRIBE, name)
            if code is not ErrorCode.NONE:
                return response(error_code=code, error_message=None, member_id=None)

        def finish(answer: Any) -> None:
            if answer.assignment is not None:
                answer.assignment.topic_partitions = [
                    topic
                    for topic in answer.assignment.topic_partitions
                    if (name := call.broker.topic_name(topic.topic_id)) is None
                    or call.access.sees(Operation.DESCRIBE, _TOPIC, name)
                ]

        return then(call.handle(request), finish)

    return guard


# -- offsets -------------------------------------------------------------------------------------------------


def offset_fetch(call: GuardedCall, request: OffsetFetchRequest) -> Any:
    """Leave the topics of each group that may be described; all of a group's are those."""
    if call.context.version < _FETCH_WITH_SEVERAL:
        return _fetch_of_one(call, request)
    by_id = call.context.version >= _FETCH_WITH_IDS
    request.groups, refused = call.split(request.groups, _FETCHED_GROUPS)
    refused_topics: dict[str, Sequence[Any]] = {}
    for group in request.groups:
        if group.topics is not None:
            group.topics, refused_topics[group.group_id] = call.split(
                group.topics, _FETCHED_TOPICS, by_id=by_id
            )

    def finish(response: OffsetFetchResponse) -> None:
        for group in response.groups:
            if group.group_id not in refused_topics:
                group.topics = [topic for topic in group.topics if _sees(call, topic, by_id=by_id)]
            elif not group.error_code:
                group.topics += refused_topics[group.group_id]
        response.groups += refused

    return then(call.handle(request), finish)


def _fetch_of_one(call: GuardedCall, request: OffsetFetchRequest) -> Any:
    if not call.access.may(Operation.DESCRIBE, _GROUP, request.group_id):
        code = REFUSED[_GROUP]
        if call.context.version >= _FETCH_WITH_CODE:
            return OffsetFetchResponse(error_code=code)
        return OffsetFetchResponse(
            topics=[no_committed_of_one(topic, code) for topic in request.topics or ()]
        )
    is_all = request.topics is None
    kept, refused = call.split(request.topics or (), _FETCHED_OF_ONE)
    if not is_all:
        request.topics = kept

    def finish(response: OffsetFetchResponse) -> None:
        if is_all:
            response.topics = [
                topic for topic in response.topics if call.access.sees(Operation.DESCRIBE, _TOPIC, topic.name)
            ]
        response.topics += refused

    return then(call.handle(request), finish)


def _sees(call: GuardedCall, topic: Any, *, by_id: bool) -> bool:
    name = call.broker.topic_name(topic.topic_id) if by_id else topic.name
    return name is not None and call.access.sees(Operation.DESCRIBE, _TOPIC, name)


# -- share groups' offsets -----------------------------------------------------------------------------------


def describe_share_offsets(answer_group: Any, answer_topic: Any) -> Any:
    """The guard of DescribeShareGroupOffsets: of each group the topics that may be described."""
    groups_of = Entries(Operation.DESCRIBE, _GROUP, "groups", "group_id", "groups", answer_group)
    topics_of = Entries(Operation.DESCRIBE, _TOPIC, "topics", "topic_name", "topics", answer_topic)

    def guard(call: GuardedCall, request: Any) -> Any:
        request.groups, refused = call.split(request.groups, groups_of)
        refused_topics: dict[str, Sequence[Any]] = {}
        for group in request.groups:
            if group.topics is not None:
                group.topics, refused_topics[group.group_id] = call.split(group.topics, topics_of)

        def finish(response: Any) -> None:
            for group in response.groups:
                group.topics = [
                    topic
                    for topic in group.topics
                    if group.group_id in refused_topics
                    or call.access.sees(Operation.DESCRIBE, _TOPIC, topic.topic_name)
                ]
                if not group.error_code:
                    group.topics += refused_topics.get(group.group_id, ())
            response.groups += refused

        return then(call.handle(request), finish)

    return guard
