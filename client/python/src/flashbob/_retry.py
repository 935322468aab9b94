"""When to try again: exponential back-off with jitter, or the server's own delay, within a bounded time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from flashbob.errors import FlashbobError


@dataclass(frozen=True)
class RetryPolicy:
    """How long and how often a request is tried.

    A request is tried again, with the same id, where the server gave a delay or could not be reached, or the stream was
    reset below the service: long enough by default for a server to be restarted.

    Attributes:
        max_elapsed: seconds after the first try past which none is made; 0 tries once.
        initial_delay: seconds before the second try.
        multiplier: of the delay from one try to the next.
        max_delay: seconds between tries at most, unless the server asks for more.
        jitter: the share by which a delay is lengthened at random, so that many clients do not come back at once.
        wait_for_quota: whether a full quota is waited for; not, where it is full of what the caller itself holds.
    """

    max_elapsed: float = 120.0
    initial_delay: float = 0.05
    multiplier: float = 2.0
    max_delay: float = 5.0
    jitter: float = 0.25
    wait_for_quota: bool = True


DEFAULT_RETRY = RetryPolicy()


@dataclass
class Retries:
    """The tries of one request. `elapsed` is told from outside, so that tests need no clock."""

    policy: RetryPolicy
    random: random.Random = field(default_factory=random.Random)
    tries: int = 0

    def delay_after(self, error: FlashbobError, elapsed: float, timeout: float | None) -> float | None:
        """Seconds to wait before the next try; None where there is to be none."""
        if not error.retriable or (error.reason == "QUOTA" and not self.policy.wait_for_quota):
            return None
        delay = min(self.policy.max_delay, self.policy.initial_delay * self.policy.multiplier**self.tries)
        delay *= 1 + self.policy.jitter * self.random.random()
        if error.retry_delay is not None:
            delay = max(delay, error.retry_delay)
        self.tries += 1
        if elapsed + delay > self.policy.max_elapsed:
            return None
        if timeout is not None and elapsed + delay >= timeout:
            return None
        return delay
