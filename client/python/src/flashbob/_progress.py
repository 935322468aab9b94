"""Progress of long calls: the caller's function, or a tqdm bar where tqdm is installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from flashbob._wire import Progress

# False or None: none. True: a tqdm bar. A function: told (done, total) in floating-point operations.
ProgressOption = bool | Progress | None

_BAR_AFTER_SECONDS = 1.0


class _Bar:
    """A bar that appears once the call has taken a second, so that short calls do not flicker."""

    def __init__(self, tqdm: Any, title: str) -> None:
        self._tqdm = tqdm
        self._title = title
        self._start = time.monotonic()
        self._bar: Any = None

    def report(self, done: float, total: float) -> None:
        if self._bar is None:
            if time.monotonic() - self._start < _BAR_AFTER_SECONDS:
                return
            self._bar = self._tqdm(total=total, desc=self._title, unit="FLOP", unit_scale=True, leave=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def progress_reporter(option: ProgressOption, title: str) -> tuple[Progress | None, Callable[[], None]]:
    """(what to tell, what to call at the end)."""
    if option is None or option is False:
        return None, _nothing
    if option is not True:
        return option, _nothing
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None, _nothing
    bar = _Bar(tqdm, title)
    return bar.report, bar.close


def _nothing() -> None:
    pass
