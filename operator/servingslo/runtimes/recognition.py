"""Which runtime a workload's engines are read as: the one that is stated, else what they export."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognition:
    """What the engines of a workload are read as.

    runtime: None while that is not known. exported: the runtimes whose metrics its pods export, in
    the order of their names; empty while none does. ports: from which each pod's metrics are read,
    by its name, where that is told.
    """

    runtime: str | None = None
    exported: tuple[str, ...] = ()
    ports: Mapping[str, Collection[int]] = field(default_factory=dict)

    @property
    def ambiguous(self) -> bool:
        """Whether several are exported and none is stated."""
        return self.runtime is None and len(self.exported) > 1


NOT_RECOGNIZED = Recognition()
Recognize = Callable[[Sequence[str]], Recognition]
"""The recognition for the pods of these names."""


def recognized(stated: str | None, exported: Iterable[str]) -> Recognition:
    """The runtime that is stated, else the only one that is exported; nothing is assumed."""
    names = tuple(sorted(set(exported)))
    only = names[0] if len(names) == 1 else None
    return Recognition(runtime=stated or only, exported=names)
