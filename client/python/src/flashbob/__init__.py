"""Exact derivatives of softmax attention, first and second order, computed by a FlashBoB server.

`flashbob.torch.scaled_dot_product_attention` and `flashbob.jax.attention` are differentiable functions of those
libraries; `flashbob.Client`, `flashbob.AsyncClient` and `flashbob.numpy` work on numpy arrays. The server is that of
FLASHBOB_SERVER, of `flashbob.use(client)`, or one that `flashbob.local()` starts on this machine.
"""

from flashbob._calls import Backward, DoubleBackward, Forward, Jvp
from flashbob._default import default_client, set_default_client, use
from flashbob._retry import RetryPolicy
from flashbob._wire import Reply, Timings
from flashbob.aio import AsyncClient
from flashbob.client import Cancellation, Client
from flashbob.errors import (
    BadSpecError,
    CancelledError,
    CredentialsError,
    DeadlineError,
    FlashbobError,
    HandleNotFoundError,
    OverloadedError,
    ProtocolError,
    TooLargeError,
    UnavailableError,
    UnsupportedProblemError,
)
from flashbob.handles import Stored
from flashbob.local_server import local
from flashbob.problem import Problem, make_problem

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Backward",
    "BadSpecError",
    "Cancellation",
    "CancelledError",
    "Client",
    "CredentialsError",
    "DeadlineError",
    "DoubleBackward",
    "FlashbobError",
    "Forward",
    "HandleNotFoundError",
    "Jvp",
    "OverloadedError",
    "Problem",
    "ProtocolError",
    "Reply",
    "RetryPolicy",
    "Stored",
    "Timings",
    "TooLargeError",
    "UnavailableError",
    "UnsupportedProblemError",
    "default_client",
    "local",
    "make_problem",
    "set_default_client",
    "use",
]
