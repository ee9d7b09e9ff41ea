"""Optional libraries: what to install where one is missing."""

from __future__ import annotations

from credo.errors import InputError


def missing_extra(feature: str, extra: str, error: ImportError) -> InputError:
    """The error for a feature whose optional library cannot be imported.

    Args:
        feature: the feature, the subject of the sentence.
        extra: the name of the extra that installs the library.
        error: what the import raised.
    """
    return InputError(f"{feature} needs the extra `{extra}`: pip install credo[{extra}] ({error})")
