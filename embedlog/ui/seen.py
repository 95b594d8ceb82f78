"""The log as one visitor may see it: what ACLs do not let him describe is not there.

All pages look through here, so none of them asks. A method of the port that has no row in these tables is
nobody's who is not let through by name: a new one is closed until somebody decides.

What a page needs is what the request of a client would need (cluster/broker/guards/api_permissions.py), but
that a topic's settings are shown to each user who may describe it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from ..backends.port import Backend
from ..clients.queue_admin import REDRIVE_GROUP
from ..cluster.broker.access.access import Access
from ..errors import AuthorizationFailed, EmbedlogError, GroupNotFound, TopicNotFound, TransactionNotFound
from ..groups.machines.events import GroupDescription, MemberDescription
from ..log import Log
from ..model import CommittedOffset, TopicPartition
from ..runtime.closing import open_handles
from ..security.acls import Operation, ResourceType
from ..wire.consumer_protocol import Assignment, decode_assignment, encode_assignment
from .lags import Lags
from .sampler import Sample, Sampler

if TYPE_CHECKING:
    from ..clients.group_admin import ConsumerGroupDescription
    from ..wire.transaction_state import TransactionMetadata

_TOPIC: Final = ResourceType.TOPIC
_GROUP: Final = ResourceType.GROUP
_TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID

# Of the port's methods, whose first argument is a topic: what they need of it.
_OF_TOPICS: Final = {
    "describe_topic": Operation.DESCRIBE,
    "forget_metadata": Operation.DESCRIBE,
    "topic_settings": Operation.DESCRIBE,
    "offsets": Operation.DESCRIBE,
    "sizes": Operation.DESCRIBE,
    "offset_for_time": Operation.DESCRIBE,
    "offsets_in_time": Operation.DESCRIBE,
    "may_have_data": Operation.READ,
    "fetch": Operation.READ,
    "record_at": Operation.READ,
    "appenders": Operation.WRITE,
}
_OF_ALL: Final = frozenset({"log_id", "mode", "reads_times", "check_append", "check_open"})
_UNSEEN_PROBLEM: Final = "the log cannot be looked at now: its operator can see why"
_OF_THE_CLUSTER: Final = frozenset({"health", "maintenance"})


def log_for(log: Log, access: Access) -> Log:
    """A log as somebody may see it. It is not closed: `log` is."""
    visible_log = Log(cast(Backend, _Seen(log.backend, access)))
    open_handles.discard(visible_log)
    return visible_log


class _Rights:
    """What somebody may do, as errors that do not tell what there is."""

    def __init__(self, access: Access) -> None:
        self.access = access

    @property
    def sees_cluster(self) -> bool:
        return self.access.sees(Operation.DESCRIBE)

    def sees(self, type: ResourceType, name: str) -> bool:
        return self.access.sees(Operation.DESCRIBE, type, name)

    def of_topic(self, name: str, operation: Operation = Operation.DESCRIBE) -> str:
        """Raises TopicNotFound, AuthorizationFailed."""
        return self._checked(_TOPIC, name, operation, "topic", TopicNotFound)

    def of_group(self, name: str, operation: Operation = Operation.DESCRIBE) -> str:
        """Raises GroupNotFound, AuthorizationFailed."""
        return self._checked(_GROUP, name, operation, "group", GroupNotFound)

    def of_transaction(self, name: str, operation: Operation) -> str:
        """Raises TransactionNotFound, AuthorizationFailed."""
        return self._checked(_TRANSACTIONAL_ID, name, operation, "transactional id", TransactionNotFound)

    def of_cluster(self) -> None:
        """Raises AuthorizationFailed."""
        if not self.sees_cluster:
            raise AuthorizationFailed(f"{self.access.principal} may not describe the cluster")

    def topics(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those of topics that may be seen."""
        return [tp for tp in partitions if self.sees(_TOPIC, tp.topic)]

    def _checked(
        self, kind: ResourceType, name: str, operation: Operation, what: str, not_found: type[EmbedlogError]
    ) -> str:
        principal = self.access.principal
        if not self.access.may(Operation.DESCRIBE, kind, name):
            raise not_found(f"there is no {what} {name!r} that {principal} may see")
        if not self.access.may(operation, kind, name):
            raise AuthorizationFailed(f"{principal} may not {operation.spelling.lower()} the {what} {name!r}")
        return name


class _Seen:
    """A backend, as far as somebody may see and use it."""

    def __init__(self, backend: Backend, access: Access) -> None:
        self._backend = backend
        self._rights = _Rights(access)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        attribute = getattr(self._backend, name)
        operation = _OF_TOPICS.get(name)
        if operation is not None:

            def of_topic(topic: str, *args: Any, **kwargs: Any) -> Any:
                return attribute(self._rights.of_topic(topic, operation), *args, **kwargs)

            return of_topic
        if name in _OF_THE_CLUSTER:
            self._rights.of_cluster()
            return attribute
        if name not in _OF_ALL:
            raise AuthorizationFailed(f"the page lets nobody use {name}")
        return attribute

    @property
    def path(self) -> str:
        """Of a directory its name: where it is concerns those who may describe the cluster."""
        path: str = self._backend.path
        return path if "://" in path or self._rights.sees_cluster else os.path.basename(path)

    @property
    def delivery(self) -> None:
        """Who appends asks it for leaders; the page appends nothing."""

    def topics(self) -> list[str]:
        return [name for name in self._backend.topics() if self._rights.sees(_TOPIC, name)]

    def producers(self, names: Sequence[TopicPartition]) -> Any:
        for topic in {tp.topic for tp in names}:
            self._rights.of_topic(topic, Operation.READ)
        return self._backend.producers(names)

    def group_reader(self) -> _SeenGroups:
        return _SeenGroups(self._backend.group_reader(), self._rights)

    @property
    def coordinator(self) -> _SeenGroups | None:
        coordinator = self._backend.coordinator
        return None if coordinator is None else _SeenGroups(coordinator, self._rights)

    def share_reader(self) -> _SeenShares:
        return _SeenShares(self._backend.share_reader(), self._rights)

    @property
    def share_coordinator(self) -> _SeenShares:
        return _SeenShares(self._backend.share_coordinator, self._rights)

    def stored_transactions(self) -> dict[str, TransactionMetadata]:
        return {
            name: metadata._replace(partitions=frozenset(self._rights.topics(metadata.partitions)))
            for name, metadata in self._backend.stored_transactions().items()
            if self._rights.sees(_TRANSACTIONAL_ID, name)
        }

    @property
    def transactions(self) -> _SeenTransactions:
        return _SeenTransactions(self._backend.transactions, self._rights)

    def close(self) -> None:
        """It is another's."""


class _SeenGroups:
    """A GroupReader or a GroupAdmin."""

    def __init__(self, groups: Any, rights: _Rights) -> None:
        self._groups = groups
        self._rights = rights

    def list_groups(self) -> list[str]:
        return [name for name in self._groups.list_groups() if self._rights.sees(_GROUP, name)]

    def describe_group(self, group: str) -> GroupDescription:
        description: GroupDescription = self._groups.describe_group(self._rights.of_group(group))
        return description._replace(members=tuple(map(self._member, description.members)))

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        if not self._rights.sees(_GROUP, group):
            return {}
        offsets = self._groups.committed_offsets(group, partitions)
        return {tp: offsets[tp] for tp in self._rights.topics(offsets)}

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._rights.of_group(group, Operation.READ)
        self._check_topics(offsets)
        self._groups.commit_offsets(group, offsets)

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        self._rights.of_group(group, Operation.DELETE)
        self._check_topics(partitions)
        self._groups.delete_offsets(group, partitions)

    def delete_group(self, group: str) -> None:
        self._groups.delete_group(self._rights.of_group(group, Operation.DELETE))

    def _check_topics(self, partitions: Iterable[TopicPartition]) -> None:
        for topic in {tp.topic for tp in partitions}:
            self._rights.of_topic(topic, Operation.READ)

    def _member(self, member: MemberDescription) -> MemberDescription:
        try:
            assigned = decode_assignment(member.assignment)
        except EmbedlogError:  # of another kind than consumers
            return member._replace(metadata=b"", assignment=b"")
        assignment = Assignment(tuple(self._rights.topics(assigned.partitions)))
        return member._replace(metadata=b"", assignment=encode_assignment(assignment))


class _SeenShares:
    """A ShareReader or a ShareCoordinator. The group that sends dead letters again is seen with the topic."""

    _CHANGES: Final = frozenset({"acquire", "acknowledge", "release_member"})
    _LOOKS: Final = frozenset({"describe_share_group", "unfinished"})

    def __init__(self, shares: Any, rights: _Rights) -> None:
        self._shares = shares
        self._rights = rights

    def __getattr__(self, name: str) -> Any:
        if name not in self._CHANGES | self._LOOKS:
            raise AttributeError(name)
        method, operation = getattr(self._shares, name), Operation.DESCRIBE
        if name in self._CHANGES:
            operation = Operation.READ

        def of_group(group: str, topic: str, *args: Any, **kwargs: Any) -> Any:
            if group != REDRIVE_GROUP or name in self._CHANGES:
                self._rights.of_group(group, operation)
            return method(group, self._rights.of_topic(topic, operation), *args, **kwargs)

        return of_group

    def list_share_groups(self) -> list[tuple[str, str]]:
        return [
            (group, topic)
            for group, topic in self._shares.list_share_groups()
            if self._rights.sees(_GROUP, group) and self._rights.sees(_TOPIC, topic)
        ]


class _SeenTransactions:
    """What the page uses of a TransactionCoordinator."""

    def __init__(self, transactions: Any, rights: _Rights) -> None:
        self._transactions = transactions
        self._rights = rights

    def abort(self, transactional_id: str) -> None:
        self._transactions.abort(self._rights.of_transaction(transactional_id, Operation.WRITE))


class SeenSampler:
    """The samples of all visitors, as far as one may see them."""

    def __init__(self, sampler: Sampler, access: Access) -> None:
        self._sampler = sampler
        self._rights = _Rights(access)
        self.lags = _SeenLags(sampler, self._rights)

    def latest(self) -> Sample:
        """See `Sampler.latest`."""
        sample, rights = self._sampler.latest(), self._rights
        whole = rights.access.sees(Operation.DESCRIBE)
        return sample._replace(
            topics={name: topic for name, topic in sample.topics.items() if rights.sees(_TOPIC, name)},
            groups={
                name: self._group(group) for name, group in sample.groups.items() if rights.sees(_GROUP, name)
            },
            health=sample.health if whole else None,
            disk_bytes=sample.disk_bytes if whole else None,
            cluster=sample.cluster if whole else None,
            problem=sample.problem if whole or not sample.problem else _UNSEEN_PROBLEM,
        )

    def _group(self, group: ConsumerGroupDescription) -> ConsumerGroupDescription:
        members = (
            member._replace(partitions=tuple(self._rights.topics(member.partitions)))
            for member in group.members
        )
        partitions = {tp: group.partitions[tp] for tp in self._rights.topics(group.partitions)}
        return group._replace(members=tuple(members), partitions=partitions)


class _SeenLags:
    """See LagHistory. Those of a group in all are seen by who may see all of its topics."""

    def __init__(self, sampler: Sampler, rights: _Rights) -> None:
        self._sampler = sampler
        self._rights = rights

    def of_group(self, group: str) -> Lags:
        description = self._sampler.latest().groups.get(group)
        if description is None or not self._rights.sees(_GROUP, group):
            return Lags()
        if len(self._rights.topics(description.partitions)) < len(description.partitions):
            return Lags()
        return self._sampler.lags.of_group(group)

    def of_partitions(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Lags]:
        if not self._rights.sees(_GROUP, group):
            return {}
        return self._sampler.lags.of_partitions(group, self._rights.topics(partitions))

    def look_at(self, group: str, partition: TopicPartition) -> Lags:
        if not (self._rights.sees(_GROUP, group) and self._rights.topics([partition])):
            return Lags()
        return self._sampler.lags.look_at(group, partition)
