"""Help and exit codes of all commands."""

from __future__ import annotations

import pytest

from credo.errors import InputError
from credo.tabular import methods

COMMANDS = ("fit", "predict", "evaluate", "explain", "compare", "report", "reproduce")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_the_shared_options(call, command):
    result = call(command, "--help")
    assert result.exit_code == 0
    for words in (f"Example: credo {command} ", "--json", "--quiet"):
        assert words in result.stdout


@pytest.mark.parametrize("command", ["fit", "compare"])
def test_help_lists_all_methods(call, command):
    shown = call(command, "--help").stdout
    assert all(name in shown for name in methods.names())


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_arguments_are_usage_errors(call, command):
    result = call(command)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [(InputError("x must be y."), 1, "credo: x must be y.\n"), (KeyboardInterrupt(), 130, "")],
)
def test_exit_codes(call, monkeypatch, error, code, printed):
    def fail(path):
        raise error

    monkeypatch.setattr("credo.tabular.runs.open_run", fail)
    result = call("report", "run")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", printed)
