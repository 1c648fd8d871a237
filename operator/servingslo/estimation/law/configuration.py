"""What the pods of a fleet have in common, which is what a service law belongs to."""

from collections.abc import Sequence

from servingslo.estimation.law.fit import CARD_SEPARATOR, Configuration
from servingslo.estimation.sample import PodSample


def newest_pod(pods: Sequence[PodSample]) -> PodSample | None:
    """The youngest pod that is ready and has engines: its template is the one in force."""
    ready = [p for p in pods if p.ready and not p.deleting and p.engines]
    if not ready:
        return None
    return min(ready, key=lambda p: p.age_seconds if p.age_seconds is not None else float("inf"))


def fleet_configuration(
    pods: Sequence[PodSample],
) -> tuple[Configuration, frozenset[str]] | None:
    """The configuration in force and the names of its pods; None while no pod serves.

    Pods of one template on other cards are one fleet, and the law is that of all of them.
    """
    newest = newest_pod(pods)
    if newest is None:
        return None
    made = _made_by_template(newest)
    alike = [p for p in pods if _made_by_template(p) == made]
    cards = {card for p in alike if p.ready and (card := p.gpu_product)}
    configuration = Configuration(
        template_hash=made.template_hash,
        image=made.image,
        gpu_product=CARD_SEPARATOR.join(sorted(cards)) or None,
        max_num_seqs=made.max_num_seqs,
        max_num_batched_tokens=made.max_num_batched_tokens,
    )
    return configuration, frozenset(p.name for p in alike)


def _made_by_template(pod: PodSample) -> Configuration:
    """What the pod template makes of a pod, without the card that it was given."""
    engine = pod.engines[0] if pod.engines else None
    return Configuration(
        template_hash=pod.template_hash,
        image=pod.image,
        max_num_seqs=engine.max_num_seqs if engine else None,
        max_num_batched_tokens=engine.max_num_batched_tokens if engine else None,
    )
