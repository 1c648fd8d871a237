"""The configuration that a fleet's pods share, to which a service law belongs."""

from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.copying import replace
from servingslo.estimation.sample import PodSample

# Separates the products of a fleet on several kinds of cards.
CARD_SEPARATOR = " + "


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The key of a law: another template, image, card or limit may mean another law.

    gpu_product: of all cards, joined if they differ; None while no exporter reports it.
    """

    template_hash: str | None = None
    image: str | None = None
    gpu_product: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None

    def same_engine(self, other: "Configuration") -> bool:
        """Whether step times carry over: the same image, and a card in common as far as known."""
        mine, theirs = _cards(self), _cards(other)
        return self.image == other.image and (not mine or not theirs or bool(mine & theirs))

    def same_as(self, other: "Configuration") -> bool:
        """Return whether no known value differs; an unknown card does not differ."""
        unknown = self.gpu_product is None or other.gpu_product is None
        return self == other or (unknown and replace(self, gpu_product=other.gpu_product) == other)


def newest_pod(pods: Sequence[PodSample]) -> PodSample | None:
    """Return the youngest pod that is ready and has engines: its template is the one in force."""
    ready = [p for p in pods if p.ready and not p.deleting and p.engines]
    if not ready:
        return None
    return min(ready, key=lambda p: p.age_seconds if p.age_seconds is not None else float("inf"))


def fleet_configuration(
    pods: Sequence[PodSample],
) -> tuple[Configuration, frozenset[str]] | None:
    """Return the configuration in force and the names of its pods; None while no pod serves.

    Pods of one template on different cards are one fleet with one law.
    """
    newest = newest_pod(pods)
    if newest is None:
        return None
    made = _made_by_template(newest)
    alike = [p for p in pods if _made_by_template(p) == made]
    cards = {card for p in alike if p.ready and (card := p.gpu_product)}
    template_hash, image, max_num_seqs, max_num_batched_tokens = made
    configuration = Configuration(
        template_hash=template_hash,
        image=image,
        gpu_product=CARD_SEPARATOR.join(sorted(cards)) or None,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    return configuration, frozenset(p.name for p in alike)


def _made_by_template(pod: PodSample) -> tuple[str | None, str | None, int | None, int | None]:
    """Return what a pod's template decides: its hash, the image and both limits."""
    if not pod.engines:
        return pod.template_hash, pod.image, None, None
    engine = pod.engines[0]
    return pod.template_hash, pod.image, engine.max_num_seqs, engine.max_num_batched_tokens


def _cards(configuration: Configuration) -> frozenset[str]:
    product = configuration.gpu_product
    return frozenset(product.split(CARD_SEPARATOR)) if product else frozenset()
