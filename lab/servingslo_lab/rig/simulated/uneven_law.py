"""Deviations of a simulated engine from its law, as in real engines, which no fit matches fully."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from servingslo.errors import InvalidInputError

UNEVEN_ANNOTATION = "rig.servingslo.dev/uneven"
"""Annotation of pods: `slowness=1.2,jitter=0.2,above=16,step=3`, each of them optional."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenLaw:
    """Factors on the time of a step.

    slowness: of every step. jitter: standard deviation of the factor's logarithm, drawn again every
    few steps. above, step: with more than `above` running sequences, a step takes `step` times as
    long, as with a kernel for larger batches, or graphs that were not captured.
    """

    slowness: float = 1.0
    jitter: float = 0.0
    above: float = float("inf")
    step: float = 1.0

    def factor(self, running: float, source: random.Random) -> float:
        """The factor for the next steps."""
        scatter = source.lognormvariate(0.0, self.jitter) if self.jitter else 1.0
        return self.slowness * scatter * (self.step if running > self.above else 1.0)


def uneven_law(annotations: Mapping[str, str]) -> UnevenLaw | None:
    """The deviations in a pod's annotations; None if there are none.

    Raises: InvalidInputError for an invalid factor.
    """
    text = annotations.get(UNEVEN_ANNOTATION)
    if not text:
        return None
    try:
        pairs = (word.split("=") for word in text.split(","))
        return UnevenLaw(**{name: float(value) for name, value in pairs})
    except (ValueError, TypeError) as error:
        allowed = "name=number, of slowness, jitter, above and step"
        raise InvalidInputError(UNEVEN_ANNOTATION, text, allowed) from error
