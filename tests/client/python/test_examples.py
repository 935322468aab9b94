"""The examples run in seconds and agree with plain PyTorch. Needs torch >= 2.1 (torch.func)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "client" / "python" / "examples"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.py") if path.name != "common.py")


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_agrees_with_plain_torch(name: str, server: str) -> None:
    environment = {**os.environ, "FLASHBOB_SERVER": server}
    run = subprocess.run(
        [sys.executable, FOLDER / name], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "bar " in run.stdout


def test_all_five_examples_are_found() -> None:
    assert len(EXAMPLES) == 5
