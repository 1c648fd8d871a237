"""`servingslo backtest` on prefill and decode pools: both are steered, paid for and shown."""

import json
import re

import pytest
from tests.unit.cli_backtests import OBJECTIVES, backtest_of, chat_trace
from tests.unit.cli_calls import MANIFEST

from servingslo.traces.trace import read_trace
from servingslo_lab.sim.policies import IN_POOLS, policy_of
from servingslo_lab.sim.pools.fleet import PoolsSpec, read_fleet_or_pools
from servingslo_lab.sim.pools.replay import best_pair, costs_of
from servingslo_lab.sim.scoring import Objectives

POOLS = """\
prefill: {engine: l4-small, price_per_hour: 2.0}
decode: {engine: l4-small, initial_replicas: 2, max_replicas: 9, price_per_hour: 0.5}
transfer: {fixed_seconds: 0.01}
"""


@pytest.fixture
def trace(tmp_path):
    """Six minutes of chat, then three times as much."""
    return chat_trace(tmp_path / "requests.csv", slow_count=720, fast_count=2160)


@pytest.fixture
def pools(tmp_path):
    """The file of both pools."""
    path = tmp_path / "pools.yaml"
    path.write_text(POOLS)
    return path


@pytest.fixture
def call(cli, trace, pools, tmp_path):
    """A backtest of the trace on the pools."""
    return backtest_of(cli, trace, pools, tmp_path)


def test_both_pools_are_told_and_add_up(call):
    """Replica-hours are the sum of both, dollars at the price of each; the share is one."""
    arguments = (*OBJECTIVES, "--policy", "servingslo", "--policy", "static", "--seeds", "2")
    told = json.loads(call(*arguments, "-o", "json").out)
    table = call(*arguments).out

    assert told["engine"] == "l4-small for prefill, l4-small for decode"
    for policy in told["policies"]:
        prefill, decode = (pool["replica_hours"]["mean"] for pool in policy["pools"])
        assert [pool["name"] for pool in policy["pools"]] == ["prefill", "decode"]
        assert policy["replica_hours"]["mean"] == pytest.approx(prefill + decode)
        assert policy["dollars"]["mean"] == pytest.approx(2.0 * prefill + 0.5 * decode)
        assert policy["share_ratio"]["mean"] > 0.9
        assert f"{prefill:.2f}±" in table
    assert re.search("PREFILL-H +DECODE-H", table)
    assert "ORACLE" not in table


def test_the_page_shows_both_pools(call, tmp_path):
    """Replicas and queues of each over time, and whose decision is which."""
    page = tmp_path / "report.html"
    call(*OBJECTIVES, "--policy", "servingslo", "--policy", "knative", "--html", page)
    text = page.read_text()

    for label in ("ready replicas", "waiting requests"):
        for pool in ("prefill", "decode"):
            assert f"{label}, {pool}" in text
    assert "<th>POOL</th>" in text.replace(' class="l"', "")
    assert text.count("<svg") == 8
    for pool in ("prefill", "decode"):
        assert f'<td class="l">{pool}</td>' in text


def test_a_resource_bounds_each_pool(call, tmp_path):
    """Its largest count holds for either; a pool may have a lower one."""
    manifest = tmp_path / "slo.yaml"
    manifest.write_text(MANIFEST.replace("{max: 8}", "{max: 3}"))
    call("-f", manifest, "--policy", "hpa-busy", "-o", "json")
    (outcome,) = (json.loads(path.read_text()) for path in (tmp_path / "kept").glob("*.json"))
    most = {pool["name"]: max(pool["ready"]) for pool in outcome["timeline"]["pools"]}

    assert most["prefill"] <= 3
    assert most["decode"] <= 3


def test_a_static_pair_meets_the_share_with_nothing_to_spare(trace, pools):
    """One less of the pool that was made small last does not meet it, and more is not cheaper."""
    spec, requests = read_fleet_or_pools(pools), read_trace(trace)
    assert isinstance(spec, PoolsSpec)
    objectives = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.99)
    pair = best_pair(spec, requests, objectives, most=(50, 50), seed=1)

    assert pair is not None
    assert objectives.share_of(pair.result.result) >= 0.99
    bounds = (pair.prefill, pair.decode)
    again = best_pair(spec, requests, objectives, most=bounds, seed=1)
    assert again is not None
    assert (again.prefill, again.decode) == bounds
    assert sum(one.dollars for one in costs_of(spec, again.result)) == pytest.approx(
        (2.0 * pair.prefill + 0.5 * pair.decode) * requests.duration_seconds / 3600.0
    )
    fewer = (pair.prefill, pair.decode - 1), (pair.prefill - 1, pair.decode)
    assert all(
        best_pair(spec, requests, objectives, most=most, seed=1) is None
        for most in fewer
        if min(most) > 0
    )


@pytest.mark.parametrize("name", [name for name in IN_POOLS if name != "static"])
def test_every_policy_for_pools_runs_on_both(call, name):
    """It decides for a prefill pool, whose answers have one token, and for a decode pool."""
    told = json.loads(call(*OBJECTIVES, "--policy", name, "-o", "json").out)

    (one,) = told["policies"]
    assert all(pool["replica_hours"]["mean"] > 0 for pool in one["pools"])
    assert policy_of(name).label == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            "prefill: {engine: l4-small}\n", ("decode is missing", "other pool"), id="one"
        ),
        pytest.param("transfer: {}\n", ("prefill is missing",), id="no pool"),
        pytest.param(
            "prefill: {max_replicas: 0}\ndecode: {}\n", ("prefill.max_replicas", "1 or"), id="count"
        ),
        pytest.param(
            "prefill: {}\ndecode: {engine: a100}\n", ("decode.engine", "'a100'"), id="engine"
        ),
        pytest.param(
            "prefill: {}\ndecode: {}\nengine: l4-small\n", ("engine", "no such"), id="both forms"
        ),
        pytest.param(
            "prefill: {}\ndecode: {cold_start: {mean_seconds: -1}}\n",
            ("decode.cold_start.mean_seconds", "-1"),
            id="cold start",
        ),
        pytest.param(
            "prefill: {scrape_lag_seconds: 15}\ndecode: {}\n",
            ("prefill.scrape_lag_seconds", "15"),
            id="scrape lag",
        ),
        pytest.param("prefill: 3\ndecode: {}\n", ("prefill", "3"), id="no fleet"),
    ],
)
def test_bad_pools_are_named_with_their_field(cli, trace, tmp_path, text, words):
    """File, pool, field, value and what is allowed."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(text)
    called = cli("backtest", "--trace", trace, *OBJECTIVES, "--fleet", fleet)

    assert called.refuses("fleet.yaml", *words), called.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            (*OBJECTIVES, "--against-oracle"), ("--against-oracle", "one pool"), id="oracle"
        ),
        pytest.param(
            (*OBJECTIVES, "--policy", "wva-v2"), ("--policy", "'wva-v2'", "hpa-kv"), id="rule"
        ),
        pytest.param(
            (*OBJECTIVES, "--policy", "servingslo+knobs"), ("--policy", "servingslo"), id="knobs"
        ),
        pytest.param((*OBJECTIVES, "--policy", "hpa-kv:tuned"), ("hpa-kv", "'tuned'"), id="tuned"),
        pytest.param(("--objective", "ttft:p99:1s"), ("objective of decode", "tpot"), id="no tpot"),
        pytest.param(
            ("--objective", "tpot:p99:50ms"), ("objective of prefill", "ttft"), id="no ttft"
        ),
        pytest.param(
            (*OBJECTIVES, "--objective", "latency:p99:9s"), ("'latency'", "one of them"), id="both"
        ),
    ],
)
def test_what_pools_do_not_have_is_named(call, tmp_path, arguments, words):
    """Before anything runs."""
    called = call(*arguments)

    assert called.refuses(*words), called.err
    assert not (tmp_path / "kept").exists()


def test_requests_with_sessions_are_refused(cli, pools, tmp_path):
    """Pools do not serve them; it is said before anything runs."""
    path = tmp_path / "sessions.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens,session\n0,9,9,0\n70,9,9,0\n")
    called = cli("backtest", "--trace", path, "--fleet", pools, *OBJECTIVES)

    assert called.refuses("sessions", "without sessions"), called.err
