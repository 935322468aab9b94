"""Where the server is and how to reach it: addresses, credentials and channel options of both clients."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import grpc

SERVER_VARIABLE = "FLASHBOB_SERVER"
TOKEN_VARIABLE = "FLASHBOB_TOKEN"
TLS_CA_VARIABLE = "FLASHBOB_TLS_CA"
DEFAULT_ADDRESS = "127.0.0.1:50051"
METHOD_PREFIX = "/flashbob.v1.AttentionService/"

# The default limit of 4 MiB a message is below what a server may be set to send in one chunk.
_MAX_MESSAGE_BYTES = 64 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    # A server that restarts is found within about a second, not after gRPC's two minutes of back-off.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A server that went away without a word is noticed within half a minute.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Retries are ours: they know the request id and the server's delay.
    ("grpc.enable_retries", 0),
)

# For calls that need nothing of what one server keeps: where the address is the name of several, they take turns on
# those that say they serve, and a retry goes to the next one.
_SPREAD_OPTIONS = (
    (
        "grpc.service_config",
        '{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}}',
    ),
)


def server_address(address: str | None) -> str:
    """The address given, or FLASHBOB_SERVER's, or the default port of this machine."""
    return address or os.environ.get(SERVER_VARIABLE) or DEFAULT_ADDRESS


def call_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """The headers of every call: the bearer token, given or FLASHBOB_TOKEN's, where there is one."""
    token = token or os.environ.get(TOKEN_VARIABLE)
    return (("authorization", f"Bearer {token}"),) if token else ()


def channel_credentials(credentials: grpc.ChannelCredentials | Literal[False] | None) -> grpc.ChannelCredentials | None:
    """Those given; for None those that trust FLASHBOB_TLS_CA's authorities, where it is set. None is clear text."""
    if credentials is not None:
        return credentials or None
    authorities = os.environ.get(TLS_CA_VARIABLE)
    return grpc.ssl_channel_credentials(Path(authorities).read_bytes()) if authorities else None


def channel_options(extra: Sequence[tuple[str, int | str]]) -> list[tuple[str, int | str]]:
    """Ours, then the caller's, which win."""
    return [*_OPTIONS, *extra]


def spread_options(extra: Sequence[tuple[str, int | str]]) -> list[tuple[str, int | str]]:
    """The same for a channel whose calls take turns on the servers."""
    return [*_OPTIONS, *_SPREAD_OPTIONS, *extra]


def warn_if_token_is_public(address: str, token: bool, secure: bool) -> None:
    """Warns where a token would travel in clear text to another machine."""
    host = address.removeprefix("dns:///").rsplit(":", 1)[0].strip("[]")
    local = address.startswith("unix:") or host in ("localhost", "::1") or host.startswith("127.")
    if token and not secure and not local:
        warnings.warn(
            f"the token for {address} travels in clear text: name the server's authorities in "
            f"{TLS_CA_VARIABLE}, or pass credentials=grpc.ssl_channel_credentials(...)",
            stacklevel=3,
        )
