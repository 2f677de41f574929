"""Registries map names to classes. The names can be listed without torch, which the classes import."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Maps names to classes or other objects; each is imported on first use.

    Registry("net", {"full": "nets.full.FullResNet"})["full"]
    """

    def __init__(self, what: str, homes: Mapping[str, str]) -> None:
        """`what` kind of thing the names denote, and `homes` with "module.attribute" for every name."""
        self.what, self.homes = what, dict(homes)

    def __getitem__(self, name: str) -> T:
        module, _, attribute = self.homes[name].rpartition(".")
        found: T = getattr(importlib.import_module(module), attribute)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.homes)

    def __len__(self) -> int:
        return len(self.homes)

    def __contains__(self, name: object) -> bool:
        return name in self.homes

    def find(self, name: str) -> T:
        """The object with this name; raises a ValueError that lists the names."""
        if name not in self:
            raise ValueError(f"{self.what} is {name!r}; choose from {', '.join(self)}")
        return self[name]
