"""Tensors that lie on the server, and how they are let go.

A `Stored` owns its handle: when the last reference to it dies, or `release` is called, the handle goes to a `Reaper`,
which deletes in batches on a thread of its own, because finalizers run wherever the garbage collector happens to be.
What is never deleted (this process was killed) ends with its lease.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

from flashbob._tensors import HostTensor


class Release(Protocol):
    """What takes a handle to delete; called from finalizers, so it neither blocks nor raises."""

    def __call__(self, handle: str, /) -> None:
        """Takes the handle."""


class Stored:
    """A tensor that lies on the server under a handle.

    Attributes:
        name: which tensor it is, in the contract's words.
        handle: the server's name for it.
        dtype: "bf16", "fp16", "fp32" or "fp64".
        shape: its extents.

    Safe to share between threads; `release` may be called any number of times.
    """

    def __init__(
        self,
        name: str,
        handle: str,
        dtype: str,
        shape: tuple[int, ...],
        *,
        release: Release | None = None,
        local: Callable[[], HostTensor | None] | None = None,
    ) -> None:
        self.name = name
        self.handle = handle
        self.dtype = dtype
        self.shape = shape
        self._local = local
        self._owner: Stored | None = None
        self._finalizer = weakref.finalize(self, release, handle) if release is not None else None
        if self._finalizer is not None:
            # At the interpreter's exit the client that would delete is going too; it flushes what it has.
            self._finalizer.atexit = False

    def local_copy(self) -> HostTensor | None:
        """The same tensor in this process's memory, to send again where the handle is gone; None if there is none."""
        return self._local() if self._local is not None else None

    def with_local(self, local: Callable[[], HostTensor | None]) -> Stored:
        """The same stored tensor, with another source to send it again from; keeps this one alive."""
        other = Stored(self.name, self.handle, self.dtype, self.shape, local=local)
        other._owner = self
        return other

    def release(self) -> None:
        """Lets the server free it."""
        if self._finalizer is not None:
            self._finalizer()

    def __repr__(self) -> str:
        return f"Stored({self.name} {self.dtype} {list(self.shape)}, {self.handle!r})"


class Reaper:
    """Deletes handles in batches on one daemon thread, started with the first handle.

    `add` may be called from any thread and from finalizers. `delete` is the blocking call that deletes a batch; what it
    raises is dropped, since the lease ends what was not deleted.
    """

    BATCH = 256

    def __init__(self, delete: Callable[[Sequence[str]], object]) -> None:
        self._delete = delete
        # SimpleQueue.put is reentrant: a finalizer may run in the middle of another put.
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # guarded by _lock
        self._closed = False  # guarded by _lock

    def start(self) -> None:
        """Starts the thread where it does not run yet; called before the first handle is handed out."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="flashbob-reaper", daemon=True)
                self._thread.start()

    def add(self, handle: str) -> None:
        """Takes a handle to delete."""
        self._queue.put(handle)

    def close(self, timeout: float = 5.0) -> None:
        """Deletes what was added so far and ends the thread, within `timeout` seconds."""
        with self._lock:
            thread, self._closed = self._thread, True
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(timeout)

    def _run(self) -> None:
        ending = False
        while not ending:
            batch = [self._queue.get()]
            while len(batch) < self.BATCH and not self._queue.empty():
                batch.append(self._queue.get())
            handles = [handle for handle in batch if handle is not None]
            ending = len(handles) < len(batch)
            if handles:
                try:
                    self._delete(handles)
                except Exception:
                    # The lease ends what was not deleted.
                    continue
