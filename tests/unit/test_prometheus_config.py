"""What the administrator may configure, and the queries that follow from it."""

import pytest

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.queries import build_queries
from servingslo.errors import InvalidInputError
from servingslo.runtimes.catalogue import CATALOGUE
from servingslo.runtimes.profile import MetricKind

URL = "http://prometheus:9090"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"url": "prometheus:9090"}, "--prometheus-url", id="no-scheme"),
        pytest.param({"url": "file:///etc/passwd"}, "--prometheus-url", id="not-http"),
        pytest.param({"url": "http://me:secret@prometheus"}, "no credentials", id="credentials"),
        pytest.param({"url": "http://me:secret@[::1"}, "--prometheus-url", id="half-an-address"),
        pytest.param({"url": "ftp://me:secret@a"}, "http://", id="other-scheme"),
        pytest.param({"pod_label": 'pod"}'}, "--prometheus-pod-label", id="injected-label"),
        pytest.param({"source_labels": ("job", "a b")}, "source label", id="source-label"),
        pytest.param({"namespaces": ('a"} or up',)}, "--namespace", id="injected-namespace"),
        pytest.param({"timeout_seconds": 0.0}, "--prometheus-timeout-seconds", id="no-time"),
        pytest.param(
            {"basic_auth_username": "me"}, "--prometheus-password-file", id="user-without-password"
        ),
        pytest.param(
            {
                "bearer_token_file": "t",
                "basic_auth_username": "me",
                "basic_auth_password_file": "p",
            },
            "--prometheus-username-file",
            id="two-credentials",
        ),
    ],
)
def test_a_bad_configuration_is_refused_with_field_and_range(settings, message):
    """Nothing starts with a configuration that cannot work or would leak."""
    with pytest.raises(InvalidInputError, match=message) as refused:
        PrometheusConfig(**{"url": URL, **settings})
    assert "secret" not in str(refused.value)


def test_every_name_of_every_profile_is_asked_for_and_created_series_are_not():
    """All alternatives of all metrics are in the queries, whole, and nothing by prefix."""
    queries = build_queries(CATALOGUE, PrometheusConfig(url=URL))
    for known in CATALOGUE:
        for metric in known.metrics:
            text = {
                MetricKind.GAUGE: " ".join(queries.gauges),
                MetricKind.COUNTER: " ".join(queries.counters),
                MetricKind.HISTOGRAM: " ".join(queries.histograms),
            }[metric.kind]
            suffix = "_bucket" if metric.kind is MetricKind.HISTOGRAM else ""
            for name in metric.names:
                assert any(f"{before}{name}{suffix}" in text for before in '|"')
    whole = " ".join((*queries.gauges, *queries.counters, *queries.histograms))
    assert "_created" not in whole
    assert ".*" not in whole


def test_an_operator_of_some_namespaces_asks_for_their_engines_alone():
    """Every query of engines names them, whole, under the administrator's label."""
    config = PrometheusConfig(url=URL, namespace_label="ns", namespaces=("team-a", "team-b"))
    queries = build_queries(CATALOGUE, config)
    for promql in (*queries.gauges, *queries.counters, *queries.histograms):
        assert 'ns=~"team-a|team-b"' in promql
    ages = " ".join(queries.ages)
    assert ages.count('pod!=""') == ages.count('pod!="", ns=~"team-a|team-b"') > 0


def test_queries_are_fixed_by_profiles_and_configuration():
    """The same configuration gives the same few queries, one for each histogram field."""
    config = PrometheusConfig(url=URL)
    queries = build_queries(CATALOGUE, config)
    assert queries == build_queries(CATALOGUE, config)
    assert len(queries.histograms) == 11
