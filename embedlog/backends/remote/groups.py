"""Consumer groups over the wire: membership and offsets.

Joins and syncs wait for the other members of the group, so each runs in a thread and on a connection of its
own. heartbeats.py keeps members alive in between. So the coordinator's session timeout is session_timeout_ms,
and the client's own limit between polls is enforced here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

from ...errors import EmbedlogError, GroupNotFound, TopicNotFound, UnknownMember, UnstableOffsetCommit
from ...files.names import check_topic_name
from ...groups.machines.events import GroupDescription, GroupState, GroupType, MemberDescription
from ...model import CommittedOffset, JoinedMember, JoinResult, TopicPartition
from ...runtime.futures import new_future
from ...validation import as_topic_partition, as_topic_partitions, check_committed
from ...wire.apis.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ...wire.apis.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ...wire.apis.heartbeat import HeartbeatRequest, HeartbeatResponse
from ...wire.apis.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ...wire.apis.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ...wire.apis.list_groups import ListGroupsRequest, ListGroupsResponse
from ...wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ...wire.apis.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from ...wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from ...wire.apis.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from ...wire.consumer_protocol import PROTOCOL_TYPE
from ...wire.error_codes import ErrorCode
from ...wire.schema import as_uuid
from ...wire_client.connection import NotKafka
from ...wire_client.settings import Address
from .brokers import Brokers, check_code
from .coordinators import Coordinators
from .heartbeats import Heartbeats, LocalMember
from .metadata import Metadata
from .share_admin import SHARE_PROTOCOL

T = TypeVar("T")

_MAX_SYNC_MS: Final = 300_000
_NEW_MEMBER_WAIT_MS: Final = 300_000
_LEAVE_MS: Final = 2_000
_MAX_JOINS: Final = 3  # the first response assigns the member id to join with


class RemoteCoordinator:
    """Implements `coordinators.GroupAdmin` over the coordinators of a cluster. Thread-safe."""

    def __init__(self, brokers: Brokers, metadata: Metadata) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self.coordinators = Coordinators(brokers)
        settings = brokers.settings
        self._beat_ms = min(settings.request_timeout_ms, max(settings.session_timeout_ms // 3, 1))
        self._joining: set[LocalMember] = set()
        self._heartbeats = Heartbeats(self._beat, self._leave, settings.heartbeat_interval_ms / 1000)

    # -- membership --------------------------------------------------------------------------------------

    def join_group(
        self,
        group: str,
        member_id: str,
        *,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Sequence[tuple[str, bytes]],
        client_id: str = "",
        group_instance_id: str | None = None,
        on_rebalance: Callable[[], object] | None = None,
    ) -> Future[JoinResult]:
        self._brokers.check_open()
        self._heartbeats.remove(group, member_id)
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=self._brokers.settings.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            group_instance_id=group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols
            ],
        )
        member = LocalMember(
            group, member_id, group_instance_id, session_timeout_ms / 1000, on_rebalance or _ignore
        )
        joined: Future[JoinResult] = new_future()

        def run() -> None:
            failed: BaseException | None = None
            try:
                result = self._join(member, request, client_id, joined)
            except BaseException as error:
                failed = error
            if not joined.set_running_or_notify_cancel():
                self._leave_quietly(member)  # its id may have come after `withdraw`
            elif failed is not None:
                joined.set_exception(failed)
            else:
                self._heartbeats.add(member)
                joined.set_result(result)

        def withdraw(_: object) -> None:
            if joined.cancelled():
                self._leave_quietly(member)  # which answers a join that waits

        joined.add_done_callback(withdraw)
        _start(run)
        return joined

    def _join(
        self, member: LocalMember, request: JoinGroupRequest, client_id: str, joined: Future[JoinResult]
    ) -> JoinResult:
        """Send the request until a rebalance has taken the member in, or `joined` is cancelled.

        The member gets its id, generation and protocol. Raises the coordinator's error.
        """
        group = member.group

        def checked(response: JoinGroupResponse) -> JoinGroupResponse:
            if response.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                self.coordinators.check(group, response.error_code, f"joining group {group!r}")
            return response

        response = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member.member_id)
        self._joining.add(member)
        try:
            for _ in range(_MAX_JOINS):
                if joined.cancelled():
                    break
                request.member_id = member.member_id
                response = self.coordinators.ask(
                    group,
                    request,
                    JoinGroupResponse,
                    checked,
                    wait_ms=max(request.rebalance_timeout_ms, _NEW_MEMBER_WAIT_MS),
                    client_id=client_id or None,
                )
                member.member_id = response.member_id
                if response.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                    break
        finally:
            self._joining.discard(member)
        check_code(response.error_code, f"joining group {group!r}")
        member.generation, member.protocol = response.generation_id, response.protocol_name or ""
        return JoinResult(
            member.member_id,
            member.generation,
            PROTOCOL_TYPE,
            member.protocol,
            "" if response.skip_assignment else response.leader,
            tuple(
                JoinedMember(joiner.member_id, joiner.group_instance_id, joiner.metadata)
                for joiner in response.members
            ),
        )

    def sync_group(
        self,
        group: str,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes],
        *,
        group_instance_id: str | None = None,
    ) -> Future[bytes]:
        self._brokers.check_open()
        member = self._member(group, member_id)
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=member.protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=assignee, assignment=encoded)
                for assignee, encoded in assignments.items()
            ],
        )

        def synced(response: SyncGroupResponse) -> bytes:
            self.coordinators.check(group, response.error_code, f"syncing with group {group!r}")
            return response.assignment

        def sync() -> bytes:
            assignment = self.coordinators.ask(
                group, request, SyncGroupResponse, synced, wait_ms=_MAX_SYNC_MS
            )
            member.error = None  # of the rebalance that has ended now
            return assignment

        return _in_thread(sync)

    def heartbeat(
        self, group: str, member_id: str, generation: int, *, group_instance_id: str | None = None
    ) -> None:
        self._brokers.check_open()
        self._heartbeats.visit(group, member_id)

    def leave_group(self, group: str, member_id: str) -> None:
        self._brokers.check_open()
        member = self._heartbeats.remove(group, member_id)
        if member is None:
            raise UnknownMember(f"{member_id!r} is not a member of group {group!r}")
        self._leave(member)

    def _member(self, group: str, member_id: str) -> LocalMember:
        member = self._heartbeats.get(group, member_id)
        if member is None:
            raise UnknownMember(f"{member_id!r} is not a member of group {group!r}")
        return member

    def _beat(self, member: LocalMember) -> None:
        """Send one heartbeat. Raises the coordinator's error."""
        request = HeartbeatRequest(
            group_id=member.group,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
        )
        self.coordinators.ask(
            member.group,
            request,
            HeartbeatResponse,
            lambda response: self.coordinators.check(
                member.group, response.error_code, f"a heartbeat to group {member.group!r}"
            ),
            timeout_ms=self._beat_ms,
        )

    def _leave(self, member: LocalMember) -> None:
        """Leave the group, unless the member is static: it may rejoin under its instance id."""
        if member.instance_id is not None:
            return
        request = LeaveGroupRequest(
            group_id=member.group,
            member_id=member.member_id,
            members=[MemberIdentity(member_id=member.member_id)],
        )

        def left(response: LeaveGroupResponse) -> None:
            for code in (response.error_code, *(part.error_code for part in response.members)):
                self.coordinators.check(member.group, code, f"leaving group {member.group!r}")

        self.coordinators.ask(member.group, request, LeaveGroupResponse, left, timeout_ms=_LEAVE_MS)

    def _leave_quietly(self, member: LocalMember) -> None:
        if member.member_id:
            with contextlib.suppress(EmbedlogError):  # it is out, or its session will expire
                self._leave(member)

    # -- offsets -----------------------------------------------------------------------------------------

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
        group_instance_id: str | None = None,
    ) -> None:
        topics: dict[tuple[str, str], OffsetCommitRequestTopic] = {}
        for partition, committed in offsets.items():
            name = as_topic_partition(partition)
            check_topic_name(name.topic)
            check_committed(name, committed)
            topic_id = committed.topic_id or self._topic_id(name.topic)
            topic = topics.setdefault(
                (name.topic, topic_id),
                OffsetCommitRequestTopic(name=name.topic, topic_id=as_uuid(topic_id)),
            )
            topic.partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=name.partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=group_instance_id,
            topics=list(topics.values()),
        )

        names = {topic.topic_id: topic.name for topic in topics.values()}

        def committed_all(response: OffsetCommitResponse) -> None:
            for topic_response in response.topics:
                topic = topic_response.name or names.get(topic_response.topic_id, "")
                for part in topic_response.partitions:
                    if part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._is_gone(topic):
                        continue  # there is nothing left to commit
                    if part.error_code == ErrorCode.UNKNOWN_TOPIC_ID:
                        continue  # nor is there of a topic that was made again
                    subject = f"committing {topic} {part.partition_index} for group {group!r}"
                    self.coordinators.check(group, part.error_code, subject, topic)

        self.coordinators.ask(group, request, OffsetCommitResponse, committed_all)

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        topics: dict[str, OffsetFetchRequestTopic] | None = None
        if partitions is not None:
            topics = {}
            for name in as_topic_partitions(partitions):
                topic = topics.setdefault(name.topic, OffsetFetchRequestTopic(name=name.topic))
                topic.partition_indexes.append(name.partition)
            if not topics:
                return {}
        request = OffsetFetchRequest(
            group_id=group,
            topics=None if topics is None else list(topics.values()),
            require_stable=require_stable,
        )

        def fetched(response: OffsetFetchResponse) -> dict[TopicPartition, CommittedOffset]:
            subject = f"the offsets of group {group!r}"
            self.coordinators.check(group, response.error_code, subject)
            offsets = {}
            unstable = set()
            for topic in response.topics:
                for part in topic.partitions:
                    if part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        continue
                    if part.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:  # the caller does not wait for it
                        unstable.add(TopicPartition(topic.name, part.partition_index))
                        continue
                    self.coordinators.check(group, part.error_code, subject, topic.name)
                    if part.committed_offset >= 0:
                        offsets[TopicPartition(topic.name, part.partition_index)] = CommittedOffset(
                            part.committed_offset, part.committed_leader_epoch, part.metadata or ""
                        )
            if unstable:
                raise UnstableOffsetCommit.of(group, unstable)
            return offsets

        return self.coordinators.ask(group, request, OffsetFetchResponse, fetched)

    def _topic_id(self, topic: str) -> str:
        """Its id; "" if there is no such topic."""
        try:
            return self._metadata.view(topic).topic_id
        except TopicNotFound:
            return ""

    def _is_gone(self, topic: str) -> bool:
        self._metadata.forget(topic)
        try:
            self._metadata.view(topic)
        except TopicNotFound:
            return True
        return False

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        topics: dict[str, OffsetDeleteRequestTopic] = {}
        for name in as_topic_partitions(partitions):
            topic = topics.setdefault(name.topic, OffsetDeleteRequestTopic(name=name.topic))
            topic.partitions.append(OffsetDeleteRequestPartition(partition_index=name.partition))
        request = OffsetDeleteRequest(group_id=group, topics=list(topics.values()))

        def deleted(response: OffsetDeleteResponse) -> None:
            subject = f"deleting offsets of group {group!r}"
            self.coordinators.check(group, response.error_code, subject)
            for topic in response.topics:
                for part in topic.partitions:
                    self.coordinators.check(group, part.error_code, subject, topic.name)

        self.coordinators.ask(group, request, OffsetDeleteResponse, deleted)

    # -- groups ------------------------------------------------------------------------------------------

    def list_groups(self) -> list[str]:
        """Share groups are not among them: they have no offsets that are committed."""

        def attempt(deadline: float) -> list[str]:
            def groups_of(node: Address) -> set[str]:
                response = self._brokers.ask(node, ListGroupsRequest(), ListGroupsResponse, deadline)
                check_code(response.error_code, "listing groups")
                return {group.group_id for group in response.groups if group.protocol_type != SHARE_PROTOCOL}

            return sorted(set().union(*self._metadata.ask_each(groups_of, deadline)))

        return self._brokers.retried(attempt)

    def coordinator_of(self, group: str) -> Address:
        """The address of the group's coordinator. Raises BrokerUnavailable if there is none."""
        return self._brokers.retried(lambda deadline: self.coordinators.find(group, deadline))

    def describe_group(self, group: str) -> GroupDescription:
        def described(response: DescribeGroupsResponse) -> GroupDescription:
            for description in response.groups:
                if description.group_id != group:
                    continue
                self.coordinators.check(group, description.error_code, f"describing group {group!r}")
                state = _state(description.group_state)
                if state is GroupState.DEAD:
                    raise GroupNotFound(f"no group {group!r}")
                members = tuple(
                    MemberDescription(
                        member.member_id,
                        member.group_instance_id,
                        member.client_id,
                        member.client_host,
                        member.member_metadata,
                        member.member_assignment,
                    )
                    for member in description.members
                )
                protocol = description.protocol_data or None
                return GroupDescription(
                    group, GroupType.CLASSIC, state, description.protocol_type, protocol, -1, None, members
                )
            raise NotKafka(f"the response to DescribeGroups lacks group {group!r}")

        return self.coordinators.ask(
            group, DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse, described
        )

    def delete_group(self, group: str) -> None:
        def deleted(response: DeleteGroupsResponse) -> None:
            for deletion in response.results:
                self.coordinators.check(group, deletion.error_code, f"deleting group {group!r}")

        self.coordinators.ask(group, DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse, deleted)

    # -- the end -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave all groups, also those whose join is pending."""
        for member in (*self._heartbeats.close(), *tuple(self._joining)):
            self._leave_quietly(member)

    def abandon(self) -> None:
        """In a forked child: forget the parent's members."""
        self._heartbeats.abandon()


def _ignore() -> None:
    pass


def _state(name: str) -> GroupState:
    try:
        return GroupState(name)
    except ValueError:
        raise NotKafka(f"a broker reports the unknown group state {name!r}") from None


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """Run it in a new thread."""
    future: Future[T] = new_future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    _start(run)
    return future


def _start(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="embedlog-group", daemon=True).start()
