"""The blocking client: every operation, retries, deadlines, cancellation, the tensor store."""

from __future__ import annotations

import gc
import importlib.util
import threading
from typing import Any

import flashbob
import flashbob.numpy as fb
import grpc
import numpy as np
import pytest
from conftest import WAIT_SECONDS, wait_until
from fake_server import FakeServer, RefusalError
from flashbob.problem import PROBED, Problem
from reference import attention

Array = np.ndarray[Any, Any]
FAST = flashbob.RetryPolicy(initial_delay=0.001, max_delay=0.01)


def _tensors(rng: np.random.Generator, names: str = "q k v do", dtype: Any = np.float64) -> dict[str, Array]:
    shapes = {"q": (2, 4, 7, 5), "k": (2, 2, 9, 5), "v": (2, 2, 9, 3), "o": (2, 4, 7, 3)}
    return {name: rng.standard_normal(shapes[name[-1]]).astype(dtype) for name in names.split()}


def _close(got: Array | None, expected: Array, bar: float = 1e-12) -> None:
    assert got is not None
    assert got.shape == expected.shape
    assert np.linalg.norm(got - expected) <= bar * max(1.0, float(np.linalg.norm(expected)))


OPTIONS = [
    {},
    {"causal": True},
    {"causal": "bottom-right"},
    {"window": (2, 1)},
    {"window": (1, 0), "alignment": "bottom-right", "scale": 0.3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("layout", ["BHND", "BNHD"])
def test_every_operation_equals_the_formulas(
    client: flashbob.Client, rng: np.random.Generator, options: dict[str, Any], layout: str
) -> None:
    x = _tensors(rng, "q k v do uq uk uv tdo")
    problem = flashbob.make_problem(**options)
    known = {
        "window": problem.window,
        "bottom_right": problem.alignment == "bottom-right",
        "scale": problem.scale,
        "probed": PROBED,
    }
    sent = {n: np.ascontiguousarray(a.swapaxes(1, 2)) if layout == "BNHD" else a for n, a in x.items()}

    def check(got: Any, operation: str, names: str) -> None:
        inputs = {n: x[n] for n in names.split()}
        if operation == "jvp":
            inputs = {n.replace("u", "t", 1) if n[0] == "u" else n: a for n, a in inputs.items()}
        for name, value in attention(operation, inputs, **known).items():
            array = getattr(got, name)
            _close(array if layout == "BHND" or name in ("lse", "tlse") else array.swapaxes(1, 2), value)

    rest = {**options, "layout": layout}
    q, k, v, do = (sent[n] for n in ("q", "k", "v", "do"))
    check(client.forward(q, k, v, **rest), "forward", "q k v")
    check(client.backward(q, k, v, do, **rest), "backward", "q k v do")
    u = {n: sent[n] for n in ("uq", "uk", "uv")}
    check(client.double_backward(q, k, v, do, **u, **rest), "double_backward", "q k v do uq uk uv")
    check(client.double_backward(q, k, v, do, uk=u["uk"], **rest), "double_backward", "q k v do uk")
    t = {"t" + n[1]: a for n, a in u.items()}
    check(client.jvp(q, k, v, **t, **rest), "jvp", "q k v uq uk uv")
    check(client.jvp(q, k, v, **t, do=do, tdo=sent["tdo"], **rest), "jvp", "q k v do uq uk uv tdo")


def test_packed_sequences_equal_each_alone(client: flashbob.Client, rng: np.random.Generator) -> None:
    lengths_q, lengths_k = [3, 0, 5], [4, 2, 6]
    starts_q, starts_k = np.cumsum([0, *lengths_q], dtype=np.int32), np.cumsum([0, *lengths_k], dtype=np.int32)
    q, do = rng.standard_normal((2, 8, 4, 5))
    k, v = rng.standard_normal((2, 12, 2, 5))
    got = client.backward(q, k, v, do, causal="bottom-right", cu_seqlens_q=starts_q, cu_seqlens_k=starts_k)
    for b in range(3):
        rows_q, rows_k = slice(starts_q[b], starts_q[b + 1]), slice(starts_k[b], starts_k[b + 1])
        one = client.backward(
            *(a[None, rows] for a, rows in ((q, rows_q), (k, rows_k), (v, rows_k), (do, rows_q))),
            causal="bottom-right",
            layout="BNHD",
        )
        _close(got.dq[rows_q], one.dq[0])
        _close(got.dk[rows_k], one.dk[0])


def test_probes_equal_each_alone(client: flashbob.Client, rng: np.random.Generator) -> None:
    x = _tensors(rng)
    uq, uv = rng.standard_normal((3, *x["q"].shape)), rng.standard_normal((3, *x["v"].shape))
    got = client.double_backward(*x.values(), uq=uq, uv=uv, probes=3)
    for p in range(3):
        one = client.double_backward(*x.values(), uq=uq[p], uv=uv[p])
        for name in one._fields:
            _close(getattr(got, name)[p], getattr(one, name))


# Debian has no ml_dtypes, numpy's bfloat16: there it is not tested.
LOW = ["float32", "float16", *(["bfloat16"] if importlib.util.find_spec("ml_dtypes") else [])]


@pytest.mark.parametrize("dtype", LOW)
def test_outputs_have_the_inputs_dtype_and_its_accuracy(
    client: flashbob.Client, bars: dict[str, float], rng: np.random.Generator, dtype: str
) -> None:
    kind = importlib.import_module("ml_dtypes").bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    q, k, v = (rng.standard_normal((1, 4, 64, 32)).astype(kind) for _ in range(3))
    got = client.forward(q, k, v)
    exact = attention(
        "forward", {n: a.astype(np.float64) for n, a in zip("qkv", (q, k, v), strict=True)}, probed=PROBED
    )
    assert got.o.dtype == kind
    assert got.lse.dtype == np.float32
    error = np.linalg.norm(got.o.astype(np.float64) - exact["o"]) / np.linalg.norm(exact["o"])
    assert error <= bars[dtype]


def test_any_strides_and_empty_tensors_are_served(client: flashbob.Client, rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((9, 7, 4, 2)).transpose(3, 2, 1, 0) for _ in range(3))
    _close(client.forward(q, k, v).o, client.forward(*(a.copy() for a in (q, k, v))).o)
    _close(client.forward(q[:, :, ::2, ::-1], k[..., ::-1], v).o, client.forward(q[:, :, ::2], k, v).o)
    _close(client.forward(q.astype(">f8"), k, v).o, client.forward(q, k, v).o)
    empty = client.forward(q[:, :, :0], k, v)
    assert empty.o.shape == (2, 4, 0, 9)


def test_bad_input_raises_with_its_numbers(client: flashbob.Client, rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((1, 2, 5, 4)) for _ in range(3))
    with pytest.raises(TypeError, match="int64"):
        client.forward(q.astype(np.int64), k, v)
    with pytest.raises(flashbob.UnsupportedProblemError, match="256"):
        client.forward(*(np.zeros((1, 1, 2, 300)) for _ in range(3)))
    with pytest.raises(ValueError, match="nan"):
        client.forward(q, k, v, scale=float("nan"))
    with pytest.raises(ValueError, match="cu_seqlens"):
        client.forward(q, k, v, cu_seqlens_q=[0, 5])


def test_numpy_functions_use_the_client_of_the_block(fake: FakeServer, rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((1, 2, 5, 4)) for _ in range(3))
    with flashbob.Client(fake.address) as mine, flashbob.use(mine):
        fb.forward(q, k, v)
    assert fake.calls["compute forward"] == 1


def test_environment_names_server_and_token(
    fake: FakeServer, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHBOB_SERVER", fake.address)
    monkeypatch.setenv("FLASHBOB_TOKEN", "secret")
    with flashbob.Client() as mine:
        mine.forward(*(rng.standard_normal((1, 2, 5, 4)) for _ in range(3)))
    assert fake.metadata[0]["authorization"] == "Bearer secret"


def test_token_in_clear_text_to_another_machine_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="clear text"):
        flashbob.Client("example.invalid:50051", token="secret").close()


def test_refused_work_is_tried_again_under_the_same_id(fake: FakeServer, rng: np.random.Generator) -> None:
    x = [rng.standard_normal((1, 2, 5, 4)) for _ in range(3)]
    fake.failures = [
        RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", 0.001),
        RefusalError(grpc.StatusCode.UNAVAILABLE, "draining", "DRAINING", 0.001),
        RefusalError(grpc.StatusCode.UNAVAILABLE, "no details", ""),
        RefusalError(grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 1", ""),
    ]
    with flashbob.Client(fake.address, retry=FAST) as mine:
        mine.forward(*x)
    assert len(fake.request_ids) == 5
    assert len(set(fake.request_ids)) == 1


def test_errors_that_no_retry_helps_are_raised_at_once(fake: FakeServer, rng: np.random.Generator) -> None:
    fake.failures = [RefusalError(grpc.StatusCode.FAILED_PRECONDITION, "9 GB of 8 GB", "TOO_LARGE")]
    with flashbob.Client(fake.address) as mine, pytest.raises(flashbob.TooLargeError, match="9 GB of 8 GB") as caught:
        mine.forward(*(rng.standard_normal((1, 2, 5, 4)) for _ in range(3)))
    assert caught.value.metadata == {"told": "7"}
    assert fake.calls["Compute"] == 1


def test_server_that_is_not_there_is_unavailable() -> None:
    with (
        flashbob.Client("127.0.0.1:1", retry=None) as mine,
        pytest.raises(flashbob.UnavailableError),
    ):
        mine.info()


def test_timeout_bounds_the_call_and_its_retries(fake: FakeServer, rng: np.random.Generator) -> None:
    fake.hold.clear()
    with flashbob.Client(fake.address) as mine, pytest.raises(flashbob.DeadlineError):
        mine.forward(*(rng.standard_normal((1, 2, 5, 4)) for _ in range(3)), timeout=0.2)


def test_cancellation_ends_the_call_here_and_there(fake: FakeServer, rng: np.random.Generator) -> None:
    fake.hold.clear()
    cancellation = flashbob.Cancellation()
    x = [rng.standard_normal((1, 2, 5, 4)) for _ in range(3)]
    with flashbob.Client(fake.address) as mine:
        canceller = threading.Thread(target=lambda: (fake.entered.wait(WAIT_SECONDS), cancellation.cancel()))
        canceller.start()
        with pytest.raises(flashbob.CancelledError):
            mine.forward(*x, cancellation=cancellation)
        canceller.join()
        assert fake.cancelled.wait(WAIT_SECONDS)
        with pytest.raises(flashbob.CancelledError):
            mine.forward(*x, cancellation=cancellation)
    assert fake.calls["Compute"] == 1


def test_progress_is_reported(fake: FakeServer, rng: np.random.Generator) -> None:
    told: list[tuple[float, float]] = []
    with flashbob.Client(fake.address, progress=lambda done, total: told.append((done, total))) as mine:
        mine.forward(*(rng.standard_normal((1, 2, 5, 4)) for _ in range(3)))
    assert told == [(50.0, 100.0)]


def test_reply_says_where_the_time_went(fake: FakeServer, rng: np.random.Generator) -> None:
    x = _tensors(rng, "q k v")
    with flashbob.Client(fake.address) as mine:
        reply = mine.compute("forward", Problem(), x, outputs=["lse"])
    assert list(reply.tensors) == ["lse"]
    assert reply.timings.compute == pytest.approx(0.001)
    assert reply.device == "fake"


def test_stored_tensors_compute_like_sent_ones_and_go_with_their_last_reference(
    fake: FakeServer, rng: np.random.Generator
) -> None:
    x = _tensors(rng, "q k v")
    with flashbob.Client(fake.address) as mine:
        stored = mine.put(x)
        sent = fake.bytes_received
        _close(mine.forward(**stored).o, mine.forward(**x).o, 0)
        assert fake.bytes_received == 2 * sent
        np.testing.assert_array_equal(mine.get([stored["v"], stored["q"]])[1], x["q"])
        assert len(fake.store) == 3
        del stored
        gc.collect()
        wait_until(lambda: not fake.store, "handles outlive their last reference")


def test_kept_output_is_an_input_of_the_next_call(fake: FakeServer, rng: np.random.Generator) -> None:
    x = _tensors(rng)
    do = x.pop("do")
    with flashbob.Client(fake.address) as mine:
        stored = mine.put(x)
        reply = mine.compute("forward", Problem(), stored, keep=["o", "lse"])
        assert not reply.tensors
        kept = {name: mine.keep(name, output) for name, output in reply.kept.items()}
        _close(mine.backward(**stored, do=do, **kept).dq, mine.backward(**x, do=do).dq, 0)
    assert not fake.store


def test_calls_take_turns_on_several_servers_and_stored_tensors_stay_on_one(rng: np.random.Generator) -> None:
    servers = [FakeServer() for _ in range(3)]
    addresses = ",".join(server.address for server in servers)

    def asked(method: str) -> list[int]:
        return [server.calls[method] for server in servers]

    try:
        x = _tensors(rng, "q k v")
        do = _tensors(rng, "do")["do"]
        with flashbob.Client(f"ipv4:{addresses}") as client:
            # Turns are taken from when all three are connected.
            wait_until(lambda: bool(client.forward(**x)) and min(asked("Compute")) > 0, "a server gets no calls")
            before = asked("Compute")
            for _ in range(30):
                client.forward(**x)
            assert [now - then for now, then in zip(asked("Compute"), before, strict=True)] == [10, 10, 10]

            before = asked("Compute")
            stored = client.put(x)
            for _ in range(6):
                client.backward(**stored, do=do)
            assert sorted(now - then for now, then in zip(asked("Compute"), before, strict=True)) == [0, 0, 6]
    finally:
        for server in servers:
            server.stop()


def test_handles_that_a_restart_lost_are_sent_again(fake: FakeServer, rng: np.random.Generator) -> None:
    x = _tensors(rng)
    do = x.pop("do")
    with flashbob.Client(fake.address) as mine:
        stored = mine.put(x)
        reply = mine.compute("forward", Problem(), stored, keep=["o", "lse"])
        kept = {name: mine.keep(name, output) for name, output in reply.kept.items()}
        fake.forget_handles()
        again = mine.compute("backward", Problem(), {**stored, **kept, "do": do})
        assert again.resent
        _close(again.tensors["dk"], mine.backward(**x, do=do).dk, 0)


def test_lost_handle_without_a_copy_here_is_an_error(fake: FakeServer, rng: np.random.Generator) -> None:
    x = _tensors(rng, "q k v")
    with flashbob.Client(fake.address) as mine:
        stored = mine.put(x, local={})
        fake.forget_handles()
        with pytest.raises(flashbob.HandleNotFoundError):
            mine.forward(**stored)


def test_forgotten_client_lets_its_handles_go(fake: FakeServer, rng: np.random.Generator) -> None:
    mine = flashbob.Client(fake.address)
    stored = mine.put(_tensors(rng, "q k v"))
    del stored, mine
    gc.collect()
    wait_until(lambda: not fake.store, "handles outlive a client that was never closed")


def _settled(client: flashbob.Client) -> int:
    """What the tenant holds once nothing is in flight: a request's own memory is counted too, and freed after it."""
    wait_until(lambda: client.info().tenant.in_flight == 0, "a request that was answered stays in flight")
    return client.info().tenant.used_bytes


def test_handles_serve_a_whole_chain_and_are_freed_with_it(client: flashbob.Client, rng: np.random.Generator) -> None:
    x = _tensors(rng, "q k v do uq uk uv")
    u = {name: x.pop(name) for name in ("uq", "uk", "uv")}
    do = x.pop("do")
    plain = client.double_backward(**x, do=do, **u, causal=True)
    wait_until(lambda: _settled(client) == 0, "the server holds what earlier tests let go")
    stored = client.put({**x, "do": do})
    reply = client.compute(
        "forward", flashbob.make_problem(causal=True), {n: stored[n] for n in "qkv"}, keep=["o", "lse"]
    )
    kept = {name: client.keep(name, output) for name, output in reply.kept.items()}
    assert _settled(client) > 0
    for got, expected in zip(client.double_backward(**stored, **kept, **u, causal=True), plain, strict=True):
        _close(got, expected)
    np.testing.assert_array_equal(client.get([stored["k"]])[0], x["k"])
    del stored, kept
    gc.collect()
    wait_until(lambda: _settled(client) == 0, "the server holds what nobody refers to")
