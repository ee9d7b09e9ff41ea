"""Export without its optional libraries."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import credo
from credo.errors import InputError


def test_without_the_extra_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    model = credo.MAP(nn.Linear(2, 1), credo.Gaussian(0.1))
    with pytest.raises(InputError, match=r"needs the extra `onnx`: pip install credo\[onnx\]"):
        model.export(tmp_path / "model.onnx", torch.zeros(2, 2))
