"""``credo serve``: what is refused before a server starts."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest

from credo.serving import create_app
from credo.serving.options import TOKEN_VARIABLE


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if FastAPI were not installed."""
    original = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "fastapi":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setitem(sys.modules, "fastapi", None)


def test_without_the_extra_there_is_a_sentence(call, runs, without_extra) -> None:
    done = call("serve", "regression")
    assert done.exit_code == 1
    assert "a server needs the extra `serve`: pip install credo[serve]" in done.output


def test_the_package_is_imported_without_the_extra(without_extra) -> None:
    assert callable(create_app)


@pytest.mark.parametrize("token", ["short", "with a space in the token"])
def test_a_weak_token_is_refused(call, runs, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    done = call("serve", "regression")
    assert done.exit_code == 2
    assert token not in done.output


def test_the_token_is_no_option(call) -> None:
    assert "--token" not in call("serve", "--help").output
