"""The runtime of a workload's engines: the stated one, else the one of their metrics."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognition:
    """The recognized runtime of a workload's engines.

    runtime: None while not known. exported: the runtimes whose metrics its pods export, in the
    order of their names; empty if there are none. ports: the metrics ports of each pod, by its
    name, if known.
    """

    runtime: str | None = None
    exported: tuple[str, ...] = ()
    ports: Mapping[str, Collection[int]] = field(default_factory=dict)

    @property
    def ambiguous(self) -> bool:
        """Whether metrics of several runtimes are exported and none is stated."""
        return self.runtime is None and len(self.exported) > 1


NOT_RECOGNIZED = Recognition()
Recognize = Callable[[Sequence[str]], Recognition]
"""The recognition for the pods of these names."""


def recognized(stated: str | None, exported: Iterable[str]) -> Recognition:
    """The stated runtime, else the only exported one; no runtime is assumed."""
    names = tuple(sorted(set(exported)))
    only = names[0] if len(names) == 1 else None
    return Recognition(runtime=stated or only, exported=names)
