"""Classes by name: how a saved configuration is turned back into an object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from credo.errors import CredoError, LoadError, unknown_name

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Registry(Mapping[str, type[T]], Generic[T]):
    """A read-only mapping from names to the classes registered under them.

    A configuration is a mapping that JSON can hold: ``"name"`` and the keyword arguments of the constructor. A
    registered class has a ``get_config`` method that returns these arguments, with or without ``"name"``, or ``None``
    if JSON cannot hold them.

    Args:
        kind: what the classes are, in words, for errors ("likelihood").
        error: the class of the errors that :meth:`lookup` and :meth:`build` raise.

    Example:
        >>> shapes = Registry("shape")
        >>> @shapes.register
        ... class Circle:
        ...     def __init__(self, radius):
        ...         self.radius = radius
        ...
        ...     def get_config(self):
        ...         return {"radius": self.radius}
        >>> shapes.describe(Circle(2.0))
        {'name': 'Circle', 'radius': 2.0}
        >>> shapes.build({"name": "Circle", "radius": 2.0}).radius
        2.0
    """

    def __init__(self, kind: str, error: type[CredoError] = LoadError) -> None:
        self.kind = kind
        self.error = error
        self._classes: dict[str, type[T]] = {}

    def __getitem__(self, name: str) -> type[T]:
        return self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)

    def register(self, cls: C, name: str | None = None) -> C:
        """Register a class and return it, so that this can be used as a decorator.

        Args:
            cls: the class.
            name: the name to register it under; ``None``: the name of the class.

        Returns:
            ``cls``.
        """
        self._classes[name or cls.__name__] = cls
        return cls

    def lookup(self, name: object) -> type[T]:
        """Return the class registered under a name.

        Args:
            name: the name.

        Returns:
            The class.

        Raises:
            CredoError: ``error`` if nothing is registered under this name, with the nearest names.
        """
        if not isinstance(name, str) or name not in self._classes:
            raise self.error(str(unknown_name(self.kind, f"{name!s:.100}", self._classes)))
        return self._classes[name]

    def build(self, config: object) -> T:
        """Build an object from its configuration.

        Args:
            config: a mapping with ``"name"`` and the constructor's keyword arguments.

        Returns:
            The object.

        Raises:
            CredoError: ``error`` if the name is not registered or the constructor rejects the arguments.
        """
        if not isinstance(config, Mapping) or "name" not in config:
            raise self.error(f"the configuration of a {self.kind} must be a mapping with a 'name', got {config!r:.200}")
        cls = self.lookup(config["name"])
        try:
            return cls(**{key: value for key, value in config.items() if key != "name"})
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise self.error(f"{self.kind} {config['name']!r} cannot be built as configured: {error}") from error

    def name_of(self, obj: object) -> str | None:
        """Return the name of an object's class.

        Args:
            obj: any object.

        Returns:
            The registered name, or ``None`` if the class is not registered; a subclass of a registered class is not.
        """
        return next((name for name, cls in self._classes.items() if cls is type(obj)), None)

    def describe(self, obj: Any) -> dict[str, Any] | None:
        """Return the configuration from which :meth:`build` makes an equal object.

        Args:
            obj: an object with ``get_config``.

        Returns:
            The configuration, or ``None`` if its class is not registered or ``get_config`` returns ``None``.
        """
        name = self.name_of(obj)
        config = None if name is None else obj.get_config()
        return None if config is None else {"name": name, **config}
