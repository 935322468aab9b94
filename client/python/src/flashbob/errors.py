"""What can go wrong, as exceptions: one class a reason of the contract, each carrying the server's own numbers.

Every error of a call is a `FlashbobError`. Where Python has a word for the same thing (`ValueError`, `TimeoutError`,
`NotImplementedError`) the class is that too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import grpc
from google.protobuf.message import DecodeError

from flashbob.v1 import error_details_pb2

_DETAILS_TRAILER = "grpc-status-details-bin"
_TYPE_PREFIX = "type.googleapis.com/google.rpc."


class FlashbobError(Exception):
    """A call failed.

    Attributes:
        code: the gRPC status code.
        reason: the contract's reason, as in "BAD_SPEC"; empty where the error did not come from the service itself.
        message: the text, which names the numbers that were wrong.
        metadata: those numbers by name, where the server gave them.
        retry_delay: seconds after which a retry is right; None where the server names no delay.
        request_id: the id under which the server logged the request; empty where there was none.
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_delay: float | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.retry_delay = retry_delay
        self.request_id = request_id

    def __str__(self) -> str:
        return f"{self.message} [{self.reason or self.code.name}]"

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later: the server said when, could not be reached, or was cut off."""
        return self.retry_delay is not None or self.code is grpc.StatusCode.UNAVAILABLE


class BadSpecError(FlashbobError, ValueError):
    """A shape, dtype, name or mask contradicts itself (BAD_SPEC, BAD_CHUNK)."""


class UnsupportedProblemError(FlashbobError, NotImplementedError):
    """A valid problem that this server does not serve; the text names the nearest that it does."""


class TooLargeError(FlashbobError):
    """Larger than this server can ever hold."""


class OverloadedError(FlashbobError):
    """Queue or quota full for longer than the retries lasted (QUEUE_FULL, QUOTA)."""


class DeadlineError(FlashbobError, TimeoutError):
    """The deadline could not be met, or passed."""


class CancelledError(FlashbobError):
    """The caller cancelled the call."""


class HandleNotFoundError(FlashbobError, LookupError):
    """A stored tensor is gone: its lease ended, or the server restarted."""


class CredentialsError(FlashbobError, PermissionError):
    """No credentials, or wrong ones."""


class UnavailableError(FlashbobError, ConnectionError):
    """The server could not be reached, was going away or reset the stream, for longer than the retries lasted."""


class ProtocolError(FlashbobError):
    """The server answered with something that the contract does not allow."""


_BY_CODE: Mapping[grpc.StatusCode, type[FlashbobError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: BadSpecError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedProblemError,
    grpc.StatusCode.FAILED_PRECONDITION: TooLargeError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.CANCELLED: CancelledError,
    grpc.StatusCode.NOT_FOUND: HandleNotFoundError,
    grpc.StatusCode.UNAUTHENTICATED: CredentialsError,
    grpc.StatusCode.PERMISSION_DENIED: CredentialsError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
}


def make_error(
    code: grpc.StatusCode,
    message: str,
    trailing_metadata: Iterable[tuple[str, str | bytes]] | None = None,
    request_id: str = "",
) -> FlashbobError:
    """Turns a gRPC status and its trailers into the exception that says the same."""
    reason = ""
    numbers: dict[str, str] = {}
    retry_delay: float | None = None
    for key, value in trailing_metadata or ():
        if key != _DETAILS_TRAILER or not isinstance(value, bytes):
            continue
        try:
            status = error_details_pb2.StatusDetails.FromString(value)
            for detail in status.details:
                if detail.type_url == _TYPE_PREFIX + "ErrorInfo":
                    info = error_details_pb2.ErrorInfo.FromString(detail.value)
                    reason, numbers = info.reason, dict(info.metadata)
                elif detail.type_url == _TYPE_PREFIX + "RetryInfo":
                    delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
                    retry_delay = delay.seconds + delay.nanos * 1e-9
        except DecodeError:
            # Details of another service on the way (a proxy): the status itself still says what happened.
            continue
    if code is grpc.StatusCode.INTERNAL and not reason and "RST_STREAM" in message:
        # The stream was reset below the service: no more of an answer than a connection that broke.
        code = grpc.StatusCode.UNAVAILABLE
    kind = _BY_CODE.get(code, FlashbobError)
    return kind(message, code=code, reason=reason, metadata=numbers, retry_delay=retry_delay, request_id=request_id)
