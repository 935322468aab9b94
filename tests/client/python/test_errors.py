"""Statuses become exceptions that carry the server's reason and numbers; retries follow them."""

from __future__ import annotations

import random

import grpc
import pytest
from flashbob import errors
from flashbob._retry import Retries, RetryPolicy
from flashbob.v1 import error_details_pb2


def _trailers(reason: str, delay: float | None = None) -> tuple[tuple[str, bytes], ...]:
    details = error_details_pb2.StatusDetails(code=3, message="m")
    info = error_details_pb2.ErrorInfo(reason=reason, domain="flashbob", metadata={"head_dim": "300"})
    details.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString())
    if delay is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.nanos = int(delay * 1e9)
        details.details.add(type_url="type.googleapis.com/google.rpc.RetryInfo", value=retry.SerializeToString())
    return (("grpc-status-details-bin", details.SerializeToString()),)


@pytest.mark.parametrize(
    ("code", "reason", "kind", "builtin"),
    [
        ("INVALID_ARGUMENT", "BAD_SPEC", errors.BadSpecError, ValueError),
        ("INVALID_ARGUMENT", "BAD_CHUNK", errors.BadSpecError, ValueError),
        ("UNIMPLEMENTED", "UNSUPPORTED_PROBLEM", errors.UnsupportedProblemError, NotImplementedError),
        ("FAILED_PRECONDITION", "TOO_LARGE", errors.TooLargeError, Exception),
        ("RESOURCE_EXHAUSTED", "QUEUE_FULL", errors.OverloadedError, Exception),
        ("RESOURCE_EXHAUSTED", "QUOTA", errors.OverloadedError, Exception),
        ("DEADLINE_EXCEEDED", "DEADLINE", errors.DeadlineError, TimeoutError),
        ("CANCELLED", "", errors.CancelledError, Exception),
        ("NOT_FOUND", "HANDLE", errors.HandleNotFoundError, LookupError),
        ("UNAUTHENTICATED", "CREDENTIALS", errors.CredentialsError, PermissionError),
        ("UNAVAILABLE", "DRAINING", errors.UnavailableError, ConnectionError),
        ("UNAVAILABLE", "DEVICE_LOST", errors.UnavailableError, ConnectionError),
        ("INTERNAL", "", errors.FlashbobError, Exception),
    ],
)
def test_every_status_of_the_contract_has_its_exception(
    code: str, reason: str, kind: type[errors.FlashbobError], builtin: type[Exception]
) -> None:
    error = errors.make_error(grpc.StatusCode[code], "head dim 300 is above 256", _trailers(reason), "id-7")
    assert type(error) is kind
    assert isinstance(error, builtin)
    assert error.reason == reason
    assert error.metadata == {"head_dim": "300"}
    assert error.request_id == "id-7"
    assert "300" in str(error)
    assert (reason or code) in str(error)


def test_details_that_are_no_status_leave_the_error_as_it_was() -> None:
    error = errors.make_error(grpc.StatusCode.INTERNAL, "proxy", (("grpc-status-details-bin", b"\xff\xff\xff"),))
    assert (error.message, error.reason) == ("proxy", "")


RESET = "Received RST_STREAM with error code 1"


def test_stream_that_was_reset_below_the_service_is_unavailable_and_tried_again() -> None:
    error = errors.make_error(grpc.StatusCode.INTERNAL, RESET, ())
    assert type(error) is errors.UnavailableError
    assert str(error) == f"{RESET} [UNAVAILABLE]"
    assert Retries(RetryPolicy()).delay_after(error, 0.0, None) is not None


def test_the_services_own_internal_errors_are_not_tried_again() -> None:
    for error in (
        errors.make_error(grpc.StatusCode.INTERNAL, RESET, _trailers("BUG")),
        errors.make_error(grpc.StatusCode.INTERNAL, "a bug", ()),
    ):
        assert type(error) is errors.FlashbobError
        assert Retries(RetryPolicy()).delay_after(error, 0.0, None) is None


def _error(code: str, delay: float | None = None) -> errors.FlashbobError:
    return errors.make_error(grpc.StatusCode[code], "", _trailers("X", delay))


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "INTERNAL", "NOT_FOUND"])
def test_no_retry_without_the_servers_word(code: str) -> None:
    assert Retries(RetryPolicy()).delay_after(_error(code), 0.0, None) is None


def test_retry_waits_at_least_as_long_as_the_server_asks() -> None:
    delay = Retries(RetryPolicy(initial_delay=0.01)).delay_after(_error("RESOURCE_EXHAUSTED", 0.75), 0.0, None)
    assert delay is not None
    assert 0.75 <= delay < 1.0


def test_delays_double_up_to_their_bound_and_end_in_time() -> None:
    policy = RetryPolicy(max_elapsed=20.0, initial_delay=0.5, multiplier=2.0, max_delay=4.0, jitter=0.0)
    retries, elapsed, delays = Retries(policy, random.Random(0)), 0.0, []
    while (delay := retries.delay_after(_error("UNAVAILABLE"), elapsed, None)) is not None:
        delays.append(delay)
        elapsed += delay
    assert delays == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0]


def test_no_retry_past_the_callers_timeout() -> None:
    retries = Retries(RetryPolicy(initial_delay=1.0, jitter=0.0))
    assert retries.delay_after(_error("UNAVAILABLE"), 3.5, 4.0) is None
