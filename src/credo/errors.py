"""The errors that credo raises."""

from __future__ import annotations

from collections.abc import Iterable

from credo._text import closest_names


class CredoError(Exception):
    """The base of every error raised on purpose by credo."""


class InputError(CredoError, ValueError):
    """An argument, a data set or a network that cannot be used as given."""


class UnsupportedError(CredoError, NotImplementedError):
    """A combination that is meaningful but that credo does not offer."""


class DivergenceError(CredoError, ArithmeticError):
    """Training became NaN or infinite; the model is back at its last good state."""


class BoundError(CredoError, ArithmeticError):
    """A bound decreased in a step that can only increase it: the steps do not belong to one objective."""


class LoadError(CredoError, ValueError):
    """A saved run that is damaged, was not written by credo, or does not match the network."""


def unknown_name(kind: str, name: object, valid: Iterable[str]) -> InputError:
    """An error for a name that does not exist, with the nearest ones that do.

    Args:
        kind: what the name is a name of, in words ("estimator", "parameter pattern").
        name: the name that was given.
        valid: the names that exist.
    """
    names = [str(v) for v in valid]
    near = closest_names(str(name), names)
    shown = names if len(names) <= 12 else [*names[:12], "…"]
    hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else f"choose from {', '.join(shown)}."
    return InputError(f"unknown {kind} {name!r}: {hint}")


def missing_extra(feature: str, extra: str, error: ImportError) -> InputError:
    """The error for a feature whose optional library cannot be imported.

    Args:
        feature: the feature, the subject of the sentence.
        extra: the name of the extra that installs the library.
        error: what the import raised.
    """
    return InputError(f"{feature} needs the extra `{extra}`: pip install credo[{extra}] ({error})")
