"""`servingslo backtest` on prefill and decode pools: both are steered, paid for and shown."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.unit.cli_backtests import OBJECTIVES, backtest_of, chat_trace

from servingslo_lab.sim.pools.cluster import simulate_pools
from servingslo_lab.sim.pools.fleet import PoolsSpec, read_fleet_or_pools
from servingslo_lab.sim.pools.hindsight import best_counts
from servingslo_lab.sim.pools.replay import costs_of
from servingslo_lab.sim.pools.scaling import Constant
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.traces.trace import read_trace

ROOT = Path(__file__).parents[2]
POOLS = """\
pools:
- {name: prefill, role: Prefill, engine: l4-small, price_per_hour: 2.0}
- name: decode
  role: Decode
  engine: l4-small
  initial_replicas: 2
  max_replicas: 9
  price_per_hour: 0.5
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


def test_a_resource_with_pools_bounds_each_by_its_name(cli, call, trace, tmp_path):
    """Each pool of the manifest has its own largest count; the fleet must have the same pools."""
    manifest = ROOT / "examples/16-prefill-decode/servingslo.yaml"
    text = manifest.read_text()
    assert "max: 12" in text
    stated = tmp_path / "slo.yaml"
    stated.write_text(text.replace("max: 12", "max: 2").replace("max: 8", "max: 1"))
    told = json.loads(call("-f", stated, "--policy", "servingslo", "-o", "json").out)
    assert [pool["name"] for pool in told["policies"][0]["pools"]] == ["prefill", "decode"]
    (outcome,) = (json.loads(path.read_text()) for path in (tmp_path / "kept").glob("*.json"))
    most = {pool["name"]: max(pool["ready"]) for pool in outcome["timeline"]["pools"]}
    assert most == {"prefill": 1, "decode": 2}
    for fleet in ("l4-small", tmp_path / "variants.yaml"):
        (tmp_path / "variants.yaml").write_text(VARIANTS)
        called = backtest_of(cli, trace, fleet, tmp_path)("-f", stated)
        assert called.refuses("--fleet", "prefill (Prefill)", "decode (Decode)"), called.err


def test_a_static_pair_is_the_cheapest_that_meets_the_share(tmp_path, pools):
    """No pair that is cheaper meets it, however its money is divided."""
    path = chat_trace(tmp_path / "more.csv", slow_count=4000, fast_count=12000)
    spec, requests = read_fleet_or_pools(pools), read_trace(path)
    assert isinstance(spec, PoolsSpec)
    objectives = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.99)
    most = {"prefill": 50, "decode": 50}
    best = best_counts(spec, requests, objectives, most=most, seed=1)

    assert best is not None
    assert objectives.share_of(best.result.result) >= 0.99
    again = best_counts(spec, requests, objectives, most=best.counts, seed=1)
    assert again is not None
    assert again.counts == best.counts
    dollars = 2.0 * best.counts["prefill"] + 0.5 * best.counts["decode"]
    assert sum(one.dollars for one in costs_of(spec, again.result)) == pytest.approx(
        dollars * requests.duration_seconds / 3600.0
    )
    cheaper = [
        {"prefill": prefill, "decode": math.ceil((dollars - 2.0 * prefill) / 0.5) - 1}
        for prefill in range(1, 50)
        if dollars - 2.0 * prefill > 0.5
    ]
    assert len(cheaper) > 2
    for counts in cheaper:
        held = spec.with_fleets(
            {n: replace(f, initial_replicas=counts[n]) for n, f in spec.fleets.items()}
        )
        found = simulate_pools(held, requests, Constant(counts), seed=1).result
        assert objectives.share_of(found) < 0.99


VARIANTS = """\
pools:
- {name: fast, engine: h100-8b, price_per_hour: 4.0, max_replicas: 9}
- {name: slow, engine: l4-small, price_per_hour: 1.0, max_replicas: 9}
"""


def test_variants_have_one_gateway_and_their_own_policies(cli, trace, tmp_path):
    """All policies for them run; the cheapest single card has no replica of the other."""
    fleet = tmp_path / "variants.yaml"
    fleet.write_text(VARIANTS)
    call = backtest_of(cli, trace, fleet, tmp_path)
    told = json.loads(call(*OBJECTIVES, "--policy", "optimum", "-o", "json").out)
    assert told["engine"] == "h100-8b for fast, l4-small for slow"
    told = json.loads(call(*OBJECTIVES, "-o", "json").out)
    found = {one["policy"]: one for one in told["policies"]}
    assert list(found) == ["servingslo", "servingslo-each", "keda-slo", "static", "static-single"]
    hours = [pool["replica_hours"]["mean"] for pool in found["static-single"]["pools"]]
    assert min(hours) == 0.0 < max(hours)
    assert found["static"]["dollars"]["mean"] <= found["static-single"]["dollars"]["mean"]
    refused = call(*OBJECTIVES, "--policy", "ratio")
    assert refused.refuses("--policy", "'ratio'", "Combined", "static-single"), refused.err


@pytest.mark.parametrize("name", ["ratio", "servingslo-each", "static-single", "optimum"])
def test_policies_of_several_pools_need_several(cli, trace, tmp_path, name):
    """One pool has no ratio and no mixture."""
    called = backtest_of(cli, trace, "l4-small", tmp_path)(*OBJECTIVES, "--policy", name)
    assert called.refuses("--policy", f"'{name}'", "several pools"), called.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("max_replicas: 0", ("d.max_replicas", "1 or"), id="count"),
        pytest.param("engine: a100", ("d.engine", "'a100'"), id="engine"),
        pytest.param(
            "cold_start: {mean_seconds: -1}", ("cold_start.mean_seconds", "-1"), id="cold start"
        ),
        pytest.param("scrape_lag_seconds: 15", ("d.scrape_lag_seconds", "15"), id="scrape lag"),
        pytest.param("role: Prefill", ("pools.role", "one Decode"), id="roles"),
        pytest.param("draining: 3", ("draining", "no such"), id="unknown"),
    ],
)
def test_bad_pools_are_named_with_their_field(cli, trace, tmp_path, text, words):
    """File, pool, field, value and what is allowed."""
    fleet = tmp_path / "fleet.yaml"
    second = {"name": "d", "role": "Decode"} | yaml.safe_load(text)
    fleet.write_text(yaml.safe_dump({"pools": [{"name": "p", "role": "Prefill"}, second]}))
    called = cli("backtest", "--trace", trace, *OBJECTIVES, "--fleet", fleet)

    assert called.refuses("fleet.yaml", *words), called.err
