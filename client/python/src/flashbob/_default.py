"""The client that functions use when none is named: that of `use`, of `set_default_client`, or of FLASHBOB_SERVER."""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections.abc import Iterator

from flashbob import _config
from flashbob.client import Client

_lock = threading.Lock()
_chosen: Client | None = None  # guarded by _lock; set by set_default_client
_by_address: dict[tuple[int, str], Client] = {}  # guarded by _lock; by process, as clients do not outlive a fork
_in_context: contextvars.ContextVar[Client | None] = contextvars.ContextVar("flashbob_client", default=None)


def set_default_client(client: Client | None) -> None:
    """Makes every function that is given no client use this one, in all threads; None undoes it."""
    global _chosen
    with _lock:
        _chosen = client


@contextlib.contextmanager
def use(client: Client) -> Iterator[Client]:
    """Makes functions that are given no client use this one, within the block and its context."""
    token = _in_context.set(client)
    try:
        yield client
    finally:
        _in_context.reset(token)


def default_client() -> Client:
    """The client of the enclosing `use`, else of `set_default_client`, else one for FLASHBOB_SERVER."""
    client = _in_context.get()
    if client is not None:
        return client
    address = _config.server_address(None)
    with _lock:
        if _chosen is not None:
            return _chosen
        key = (os.getpid(), address)
        if key not in _by_address:
            _by_address[key] = Client(address)
        return _by_address[key]
