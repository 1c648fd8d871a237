"""The gateways that can be chosen for a cluster, with the administrator's overrides."""

import re
from dataclasses import replace

from servingslo.errors import InvalidInputError
from servingslo.runtimes.gateways import (
    ENVOY_GATEWAY,
    INFERENCE_EXTENSION,
    ISTIO,
    GatewayProfile,
)

NO_GATEWAY = "none"
_LABEL_NAME = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_]*$")
# Istio's reporters: a client's proxy or an ingress gateway, the server's proxy, a waypoint.
REPORTERS = ("source", "destination", "waypoint")

GATEWAYS: tuple[GatewayProfile, ...] = (ISTIO, ENVOY_GATEWAY, INFERENCE_EXTENSION)


def gateway_profile(
    name: str,
    *,
    workload_label: str = "",
    namespace_label: str = "",
    reporter: str = "",
    pattern: str = "",
) -> GatewayProfile | None:
    """The profile of that name with the administrator's overrides, '' for none; None for 'none'.

    Raises: InvalidInputError for an unknown name, or an override that is malformed or unused by the
    profile.
    """
    if name == NO_GATEWAY:
        return None
    found = next((known for known in GATEWAYS if known.name == name), None)
    if found is None:
        allowed = ", ".join((*(known.name for known in GATEWAYS), NO_GATEWAY))
        raise InvalidInputError("gateway.profile", name, allowed)
    for field, label in (("workload", workload_label), ("namespace", namespace_label)):
        if label and not _LABEL_NAME.match(label):
            raise InvalidInputError(f"gateway.labels.{field}", label, "a label name: [a-zA-Z0-9_]+")
    if pattern:
        _check_pattern(found, pattern)
    if reporter:
        found = replace(found, matchers=_reported_by(found, reporter))
    return replace(
        found,
        workload_label=workload_label or found.workload_label,
        namespace_label=namespace_label or found.namespace_label,
        pattern=pattern or found.pattern,
    )


def _reported_by(profile: GatewayProfile, reporter: str) -> tuple[str, ...]:
    if reporter not in REPORTERS:
        raise InvalidInputError("gateway.reporter", reporter, ", ".join(REPORTERS))
    if profile is not ISTIO:
        raise InvalidInputError("gateway.reporter", reporter, f"only with {ISTIO.name}")
    return (f'reporter="{reporter}"', *profile.matchers[1:])


def _check_pattern(profile: GatewayProfile, pattern: str) -> None:
    if profile is not ENVOY_GATEWAY:
        raise InvalidInputError("gateway.pattern", pattern, f"only with {ENVOY_GATEWAY.name}")
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise InvalidInputError("gateway.pattern", pattern, "a regular expression") from error
    if not {"namespace", "name"} <= groups.keys():
        raise InvalidInputError(
            "gateway.pattern", pattern, "a pattern with the groups namespace and name"
        )
