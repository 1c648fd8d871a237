"""Profiles of gateways: the administrator's overrides, and what is refused."""

import pytest

from servingslo.errors import InvalidInputError
from servingslo.runtimes.gateway_catalogue import GATEWAYS, gateway_profile
from servingslo.runtimes.gateways import GatewayField


def test_none_reads_no_gateway() -> None:
    """The default."""
    assert gateway_profile("none") is None


@pytest.mark.parametrize("known", GATEWAYS, ids=lambda known: known.name)
def test_every_profile_counts_requests_first(known) -> None:
    """The first metric counts all requests and tells the age; no metric adds to nothing."""
    assert gateway_profile(known.name) == known
    assert GatewayField.REQUESTS in known.metrics[0].fields
    assert all(metric.names and (metric.fields or metric.less) for metric in known.metrics)
    added = {field for metric in known.metrics for field in metric.fields}
    assert {field for metric in known.metrics for field in metric.less} <= added
    assert GatewayField.ERRORS in added


def test_overrides_replace_the_profile_s_own() -> None:
    """Labels, reporter and pattern, each by itself."""
    istio = gateway_profile("istio", workload_label="dest", reporter="waypoint")
    assert istio is not None
    assert (istio.workload_label, istio.namespace_label) == (
        "dest",
        "destination_workload_namespace",
    )
    assert 'reporter="waypoint"' in istio.matchers
    assert not any("source" in matcher for matcher in istio.matchers)
    envoy = gateway_profile("envoy-gateway", pattern="(?P<namespace>[^.]+)[.](?P<name>.+)")
    assert envoy is not None
    assert envoy.pattern.startswith("(?P<namespace>[^.]+)")


@pytest.mark.parametrize(
    ("name", "overrides", "field"),
    [
        pytest.param("nginx", {}, "gateway.profile", id="unknown"),
        pytest.param("istio", {"workload_label": 'a"} or b{'}, "labels.workload", id="label"),
        pytest.param("istio", {"namespace_label": "a b"}, "labels.namespace", id="namespace-label"),
        pytest.param("istio", {"reporter": "sidecar"}, "gateway.reporter", id="reporter"),
        pytest.param("envoy-gateway", {"reporter": "source"}, "gateway.reporter", id="not-istio"),
        pytest.param("istio", {"pattern": "(?P<name>x)"}, "gateway.pattern", id="not-envoy"),
        pytest.param("envoy-gateway", {"pattern": "("}, "gateway.pattern", id="no-pattern"),
        pytest.param("envoy-gateway", {"pattern": "(?P<name>x)"}, "namespace and name", id="group"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, overrides: dict[str, str], field: str) -> None:
    """With the name of the setting and what is allowed."""
    with pytest.raises(InvalidInputError, match=field):
        gateway_profile(name, **overrides)
