"""DescribeAcls, CreateAcls, DeleteAcls: SECURITY_DISABLED, as from a Kafka broker without an authorizer."""

from __future__ import annotations

from typing import Final

from ...wire.apis.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from ...wire.apis.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from ...wire.apis.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ...wire.error_codes import ErrorCode
from ..broker_context import Handler, RequestContext

_CODE: Final = ErrorCode.SECURITY_DISABLED
_MESSAGE: Final = "this broker has no ACLs: every client may do everything"


class AclHandlers:
    """Handles the APIs of ACLs."""

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {
            "DescribeAcls": self.describe_acls,
            "CreateAcls": self.create_acls,
            "DeleteAcls": self.delete_acls,
        }

    def describe_acls(self, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
        return DescribeAclsResponse(error_code=_CODE, error_message=_MESSAGE)

    def create_acls(self, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
        return CreateAclsResponse(
            results=[AclCreationResult(error_code=_CODE, error_message=_MESSAGE) for _ in request.creations]
        )

    def delete_acls(self, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
        return DeleteAclsResponse(
            filter_results=[
                DeleteAclsFilterResult(error_code=_CODE, error_message=_MESSAGE) for _ in request.filters
            ]
        )
