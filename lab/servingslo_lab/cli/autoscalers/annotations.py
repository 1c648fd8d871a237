"""What annotations of KEDA and AIBrix say about scaling.

Sources: KEDA v2.21 controllers/keda/hpa.go: a pause of one direction is `Disabled` in its HPA.
AIBrix "Supported PodAutoscaler annotations": its cooldown windows are stabilization windows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from servingslo.api.v1alpha1.behavior import MAX_WINDOW_SECONDS
from servingslo.errors import InvalidInputError
from servingslo.policy.hpa_behavior import SelectPolicy
from servingslo.units import parse_duration_seconds
from servingslo_lab.cli.autoscalers.shared import Metadata

_KEDA, _AIBRIX = "autoscaling.keda.sh/", "autoscaling.aibrix.ai/"
_KEDA_DOMAIN = "keda.sh"
_PAUSES = {f"{_KEDA}paused-scale-in": "scaleDown", f"{_KEDA}paused-scale-out": "scaleUp"}
_WINDOWS = {
    f"{_AIBRIX}scale-down-cooldown-window": "scaleDown",
    f"{_AIBRIX}scale-up-cooldown-window": "scaleUp",
}
_PAUSED = "mode Recommend changes nothing; to stop all decisions: mode Paused"
_OF_HPA = "about the HPA that KEDA makes; here none is made"
_TUNED = "tunes a rule that does not decide here; steps and windows are behavior"
# Of Go's strconv.ParseBool; any other value pauses.
_FALSE = frozenset({"0", "f", "F", "false", "False", "FALSE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One annotation. direction, rule: what of `behavior` says the same, None for nothing."""

    name: str
    value: str
    direction: str = ""
    rule: tuple[str, str | int] | None = None
    about: str = ""


def read(metadata: Metadata) -> Iterator[Setting]:
    """Each annotation of KEDA and AIBrix about scaling."""
    for name, value in metadata.annotated.items():
        if name in _PAUSES and value not in _FALSE:
            rule = "selectPolicy", SelectPolicy.DISABLED.value
            yield Setting(name=name, value=value, direction=_PAUSES[name], rule=rule)
        elif name in _WINDOWS:
            yield _window(name, value)
        elif name.startswith(_KEDA):
            yield Setting(name=name, value=value, about=_PAUSED)
        elif name.partition("/")[0].endswith(_KEDA_DOMAIN):
            yield Setting(name=name, value=value, about=_OF_HPA)
        elif _AIBRIX in name:
            yield Setting(name=name, value=value, about=_TUNED)


def _window(name: str, value: str) -> Setting:
    try:
        seconds = parse_duration_seconds(value, name)
    except InvalidInputError as error:
        return Setting(name=name, value=value, about=f"no duration; allowed: {error.allowed}")
    kept = min(round(seconds), MAX_WINDOW_SECONDS)
    rule = "stabilizationWindowSeconds", kept
    about = "" if kept == seconds else f"in whole seconds up to {MAX_WINDOW_SECONDS}: {kept}"
    return Setting(name=name, value=value, direction=_WINDOWS[name], rule=rule, about=about)
