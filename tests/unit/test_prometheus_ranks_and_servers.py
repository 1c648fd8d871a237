"""Pods of several ranks, and of several servers: each request counts once, each engine is one."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine_pages import (
    NAMESPACE,
    estimates,
    readings,
    sglang_page,
    triton_page,
    vllm_page,
)

from servingslo.adapters.prometheus.reading.servers import KEPT_READINGS, SeenServers, servers_of
from servingslo.runtimes import catalogue
from servingslo.runtimes.engines.sglang import SGLANG

TICKS = 5
_RATES = st.floats(0.5, 40.0)
_LABELS = ("job", "instance", "prometheus", "prometheus_replica")
quick = settings(max_examples=15, deadline=None)


def _target(pod: str = "chat-0", instance: str = "10.0.0.1:8000", job: str = "engines"):
    return {"pod": pod, "instance": instance, "job": job}


@quick
@given(ranks=st.integers(1, 16), rate=_RATES, realtime=st.booleans(), pods=st.integers(1, 3))
def test_requests_that_a_server_counts_once_are_counted_once(ranks, rate, realtime, pods) -> None:
    """However many ranks share them, demand is what comes to the front, and it is known."""
    names = [f"chat-{number}" for number in range(pods)]
    found = estimates(
        lambda seconds: [
            (_target(pod), sglang_page(rate * seconds, ranks, realtime=realtime)) for pod in names
        ],
        TICKS,
        names,
    )
    last = found[-1]
    assert last.arrival_rate_per_second == pytest.approx(pods * rate, rel=1e-3)
    assert last.engines_per_pod == ranks
    alone = estimates(lambda seconds: [(_target(), sglang_page(pods * rate * seconds, 1))], TICKS)
    assert last.prompt_tokens_mean == pytest.approx(alone[-1].prompt_tokens_mean)
    assert last.output_tokens_mean == pytest.approx(alone[-1].output_tokens_mean)
    assert not [estimate.doubts for estimate in found if estimate.doubts]
    assert not last.lost_families


_OF_SCHEDULER = ("running", "queue_reqs", "usage", "max_total", "realtime")


def _counted_by(label: str, rates: dict[str, float], seconds: float) -> str:
    """An SGLang server whose requests are counted under their own values of a label alone."""
    whole, lines = sum(rates.values()), []
    for line in sglang_page(whole * seconds, 1).splitlines():
        of_requests = not any(word in line.partition("{")[0] for word in _OF_SCHEDULER)
        for value, rate in rates.items() if of_requests else ():
            head, _, count = line.replace("{", f'{{{label}="{value}",').rpartition(" ")
            lines.append(f"{head} {float(count) * rate / whole}")
        lines += [] if of_requests else [line]
    return "\n".join(lines) + "\n"


def test_requests_that_sglang_counts_by_priority_are_added_up() -> None:
    """A gauge has its total beside those of each priority."""
    one = 'sglang:num_running_reqs{priority="1"} 1\n'
    page = partial(_counted_by, "priority", {"": 2.0, "1": 3.0, "7": 1.0})
    found = estimates(lambda seconds: [(_target(), page(seconds) + one)], TICKS)
    assert found[-1].arrival_rate_per_second == pytest.approx(6.0, rel=1e-3)
    assert found[-1].output_tokens_mean == pytest.approx(100.0, rel=0.05)
    assert not [e.doubts for e in found if e.doubts]


def test_a_label_of_requests_is_named_until_it_is_one_of_the_parts() -> None:
    """Else only the largest of its counts would be seen."""
    page = partial(_counted_by, "user", {"x": 1.0, "y": 3.0})
    *_, (_, metrics) = readings(lambda seconds: [(_target(), page(seconds))], 2)
    (engine,) = metrics.pods[NAMESPACE, "chat-0"].engines
    assert engine.generation_tokens_total is None
    assert engine.impossible_metrics[0].startswith(
        "two series of pod team/chat-0: no user and user=x"
    )
    assert engine.impossible_metrics[0].endswith("or the runtime's partLabels")
    catalogue.add([replace(SGLANG, part_labels=(*SGLANG.part_labels, "user"))])
    try:
        found = estimates(lambda seconds: [(_target(), page(seconds))], TICKS)
    finally:
        catalogue.add(())
    assert found[-1].arrival_rate_per_second == pytest.approx(4.0, rel=1e-3)


@quick
@given(ranks=st.integers(2, 8), lacking=st.integers(0, 7))
def test_a_rank_that_a_page_lacks_once_makes_no_requests(ranks, lacking) -> None:
    """The others' shares stay as they were."""

    def targets(seconds):
        page = sglang_page(10.0 * seconds, ranks)
        if seconds == 3600.0 + 2 * 15.0:
            cut = f'dp_rank="{lacking % ranks}"'
            page = "\n".join(line for line in page.splitlines() if cut not in line) + "\n"
        return [(_target(), page)]

    found = estimates(targets, 6)
    rates = [e.arrival_rate_per_second for e in found if e.arrival_rate_per_second is not None]
    assert max(rates) < 25.0
    assert rates[-1] == pytest.approx(10.0, rel=0.05)


@pytest.mark.parametrize("served_seconds", [60.0, 3600.0])
def test_counts_under_a_second_name_are_no_requests_of_now(served_seconds) -> None:
    """A page shows all counts once more for a while, first after some scrapes that failed."""

    def targets(seconds):
        tick = round((seconds - 3600.0) / 15.0)
        since = 15.0 * (tick - 2) if 3 <= tick < 9 else 0.0
        requests = 2.0 * (seconds - 3600.0 - since + served_seconds)
        names = ("m", "alias") if 9 <= tick < 12 else ("m",)
        pages = [vllm_page(requests, labels=f'engine="0",model_name="{name}"') for name in names]
        yield _target(), "".join(pages), 2.0 + since

    told = [e.arrival_rate_per_second for e in estimates(targets, 20)]
    assert max(rate for rate in told if rate is not None) == pytest.approx(4.0, rel=1e-3)
    assert told[-1] == pytest.approx(2.0, rel=1e-3)


def test_the_first_requests_of_another_model_are_counted() -> None:
    """Its counts are few beside those of the others."""

    def targets(seconds):
        later = max(seconds - 3600.0 - 60.0, 0.0)
        pages = [vllm_page(2.0 * seconds, labels='engine="0",model_name="m"')]
        if later:
            pages.append(vllm_page(3.0 * later, labels='engine="0",model_name="n"'))
        yield _target(), "".join(pages)

    told = [e.arrival_rate_per_second for e in estimates(targets, 8)]
    assert told[1:] == pytest.approx([2.0] * 4 + [5.0] * 3, rel=1e-3)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(
    ("label", "values", "page"),
    [
        ("engine", ("0", "1"), vllm_page),
        ("model_name", ("a", "b"), lambda n, labels: vllm_page(n, labels=f'engine="0",{labels}')),
        ("model", ("m", "n"), lambda n, labels: triton_page(n).replace('model="m"', labels)),
        ("version", ("1", "2"), lambda n, labels: triton_page(n).replace('version="1"', labels)),
    ],
)
def test_a_label_that_the_target_has_too_still_tells_engines_apart(
    moved, label, values, page
) -> None:
    """Prometheus writes the pod's label there, and the page's with `exported_` before it."""
    own = f"exported_{label}" if moved else label
    target = _target() | ({label: "production"} if moved else {})

    def targets(seconds):
        pages = [
            page(n * seconds, labels=f'{own}="{v}"') for n, v in zip((2, 3), values, strict=True)
        ]
        yield target, "".join(pages)

    found = estimates(targets, TICKS)
    assert found[-1].arrival_rate_per_second == pytest.approx(5.0, rel=1e-3)
    assert not [e.doubts for e in found if e.doubts]


_PROXIED = {15020, 9088, 8443}
_PORT = st.integers(1024, 65535).filter(lambda port: port not in _PROXIED)
_PORTS = st.lists(_PORT, min_size=2, max_size=4, unique=True)
_TICK = st.integers(0, TICKS - 1)


@quick
@given(
    ports=_PORTS,
    rates=st.lists(st.floats(0.5, 20.0), min_size=4, max_size=4),
    jobs=st.integers(1, 2),
    away=st.tuples(_TICK, st.integers(0, 3)),
    order=st.permutations(range(4)),
)
def test_servers_of_one_pod_are_counted_each(ports, rates, jobs, away, order) -> None:
    """By one job or two, in any order, and while one of them is not scraped."""

    def targets(seconds):
        tick = round((seconds - 3600.0) / 15.0)
        found = [
            (
                _target(instance=f"10.0.0.1:{port}", job=f"job-{job}"),
                vllm_page(100_000.0 * place + rates[place] * seconds),
            )
            for place, port in enumerate(ports)
            for job in range(jobs)
            if (tick, place) != away
        ]
        return [found[place] for place in order if place < len(found)] + found[4:]

    found = estimates(targets, TICKS + 3)
    whole = sum(rates[: len(ports)])
    told = [e.arrival_rate_per_second for e in found if e.arrival_rate_per_second is not None]
    assert told[-1] == pytest.approx(whole, rel=1e-3)
    assert max(told) < 2.1 * whole
    assert not [e.doubts for e in found if e.doubts]
    assert found[-1].engines_per_pod == len(ports)


@quick
@given(
    jobs=st.integers(1, 4),
    rate=_RATES,
    hosts=st.lists(st.sampled_from(["10.0.0.1", "chat-0.svc", "[::1]"]), min_size=4, max_size=4),
)
def test_scrapes_of_one_server_stay_one_engine(jobs, rate, hosts) -> None:
    """Whatever the jobs are, and however each writes the host: a pod has each port once."""
    found = estimates(
        lambda seconds: [
            (_target(job=f"job-{job}", instance=f"{hosts[job]}:8000"), vllm_page(rate * seconds))
            for job in range(jobs)
        ],
        TICKS,
    )
    assert found[-1].arrival_rate_per_second == pytest.approx(rate, rel=1e-3)
    assert found[-1].engines_per_pod == 1


@quick
@given(
    ports=_PORTS,
    rate=st.floats(0.5, 4.0),
    late=st.lists(st.floats(0.0, 44.0), min_size=4, max_size=4),
    true_age=st.booleans(),
    jobs=st.booleans(),
)
def test_one_page_at_several_ports_is_one_engine(ports, rate, late, true_age, jobs) -> None:
    """Also where a proxy shows it later, by two jobs, and whether or not its age tells so."""

    def targets(seconds):
        for place, port in enumerate(ports):
            behind = late[place] if place else 0.0
            labels = _target(instance=f"10.0.0.1:{port}", job=f"job-{place if jobs else 0}")
            page = vllm_page(rate * (seconds - behind))
            yield labels, page, 2.0 + (behind if true_age else 0.0)

    found = estimates(targets, 14)
    assert found[-1].arrival_rate_per_second == pytest.approx(rate, rel=1e-3)
    assert found[-1].engines_per_pod == 1
    assert not [e.doubts for e in found if e.doubts]


@quick
@given(
    warm=st.sampled_from([0.0, 1.0, 5.0]),
    rates=st.tuples(st.floats(0.5, 2.0), st.floats(4.0, 8.0)),
    still=st.booleans(),
)
def test_two_engines_that_have_served_the_same_are_two(warm, rates, still) -> None:
    """Both idle, at nothing or at what their probes asked, and then with requests of their own."""
    begin = 3600.0 + 4 * 15.0

    def targets(seconds):
        for port, rate in zip((8000, 8001), (rates[0], 0.0 if still else rates[1]), strict=True):
            served = warm + rate * max(seconds - begin, 0.0)
            yield _target(instance=f"10.0.0.1:{port}"), vllm_page(served, running=float(rate > 0))

    found = estimates(targets, 24)
    assert {e.engines_per_pod for e in found[:5]} == {2}
    assert found[-1].engines_per_pod == 2
    whole = rates[0] + (0.0 if still else rates[1])
    assert found[-1].arrival_rate_per_second == pytest.approx(whole, rel=1e-3)


def test_engines_that_share_requests_are_soon_told_apart() -> None:
    """Turn about, for two hours, so that their counts of requests differ by one at most."""
    merged = []
    random, seen = Random(7), SeenServers()  # noqa: S311
    pages = {f":{port}": {("requests", ""): 0.0} for port in (8000, 8001)}
    means = {("prompt", ""): 5.5, ("output", ""): 4.5, ("ttft", "sum"): -2.0}
    for _ in range(480):
        for page in pages.values():
            page["requests", ""] += 15.0
            for name, mean in means.items():
                more = sum(random.lognormvariate(mean, 0.8) for _ in range(15))
                page[name] = page.get(name, 0.0) + more
        told = {server: dict(page) for server, page in pages.items()}
        seen.first_of(("n", "p"), "0", told)
        # Once more the same, as where readings come oftener than scrapes.
        first = seen.first_of(("n", "p"), "0", told)
        merged.append(first[":8001"] == ":8000")
    assert not any(merged[20:])


@pytest.mark.parametrize("rate", [0.4, 2.0, 50.0])
@pytest.mark.parametrize("up_seconds", [100.0, 7200.0])
def test_a_page_at_two_ports_is_never_doubled_for_long(rate, up_seconds) -> None:
    """Each port is scraped at its own time, so no page is ever seen twice."""

    def targets(seconds):
        for port, late in ((8000, 0.0), (8080, 4.0)):
            served = rate * (up_seconds + seconds - 3600.0 - late)
            yield _target(instance=f"10.0.0.1:{port}"), vllm_page(served), 2.0 + late

    found = estimates(targets, 8)
    assert {e.engines_per_pod for e in found[3:]} == {1}
    told = [e.arrival_rate_per_second for e in found]
    assert told[3:] == pytest.approx([rate] * 5, rel=1e-3)


def test_engines_of_equal_counts_are_two_by_their_gauges() -> None:
    """A load test gives each the same requests; what runs at the time differs."""

    def targets(seconds):
        tick = (seconds - 3600.0) // 15.0
        for place, port in enumerate((8000, 8001)):
            running = 1.0 + (3 * tick + place) % 7
            yield _target(instance=f"10.0.0.1:{port}"), vllm_page(2.0 * seconds, running=running)

    found = estimates(targets, 6)
    assert {e.engines_per_pod for e in found} == {2}
    assert found[-1].arrival_rate_per_second == pytest.approx(4.0, rel=1e-3)


@pytest.mark.parametrize(
    ("sources", "servers"),
    [
        pytest.param(["a/10.0.0.1:1"], [":1"], id="one"),
        pytest.param(["a/10.0.0.1:1", "a/10.0.0.1:2"], [":1", ":2"], id="two-ports"),
        pytest.param(["a/10.0.0.1:1", "b/10.0.0.2:1"], [":1", ":1"], id="new-address"),
        pytest.param(["a/10.0.0.1:1", "b/chat-0"], [":1", ":1"], id="relabelled"),
        pytest.param(["a/h:1", "a/h:2", "b/chat-0"], [":1", ":2", None], id="of-any"),
        pytest.param(["a/10.0.0.1:1", "b/10.0.0.1:15020"], [":1", ":1"], id="istio-merged"),
        pytest.param(["a/10.0.0.1:8080", "a/10.0.0.1:9088"], [":8080", ":8080"], id="kserve"),
        pytest.param(["a/10.0.0.1:8000", "b/10.0.0.1:8443"], [":8000", ":8000"], id="kube-rbac"),
        pytest.param(["a/10.0.0.1:8443"], [""], id="proxied-alone"),
        pytest.param(["a/chat-0", "b/chat-0"], ["", ""], id="no-port"),
        pytest.param(["a/chat-0", "b/node-7"], ["", ""], id="two-names-of-two-jobs"),
        pytest.param(["a/left", "a/right"], ["left", "right"], id="two-names-of-one-job"),
        pytest.param(["a/http://h:1/metrics", "a/[::1]:2"], [":1", ":2"], id="addresses"),
        pytest.param(["a/"], [""], id="none"),
    ],
)
def test_a_server_is_told_by_its_port(sources, servers) -> None:
    """And by the whole instance where it has none."""
    each = [(*one.split("/", 1), "", "") for one in sources]
    told = servers_of(each, _LABELS)
    assert [told[one] for one in each] == servers


def test_without_an_instance_label_a_pod_has_one_server() -> None:
    """An administrator may have chosen other source labels."""
    assert servers_of([("a",), ("b",)], ("job",)) == {("a",): "", ("b",): ""}


def test_an_engine_keeps_its_name_while_the_other_server_is_away() -> None:
    """Else the counters of one would be set against the other's."""
    names = []
    for _, metrics in readings(
        lambda seconds: [
            (_target(instance=f"10.0.0.1:{port}"), vllm_page(port * seconds))
            for port in (8000, 8001) if (seconds, port) != (3615.0, 8000)
        ],
        3,
    ):  # fmt: skip
        names.append([e.engine for e in metrics.pods[NAMESPACE, "chat-0"].engines])
    assert names == [["0@:8000", "0@:8001"], ["0@:8001"], ["0@:8000", "0@:8001"]]


def test_pods_that_are_gone_are_forgotten() -> None:
    """A cluster's pods come and go for months."""
    seen = SeenServers()
    seen.see(("n", "a"), ":1", "0")
    seen.see(("n", "a"), ":2", "0")
    for _ in range(KEPT_READINGS + 1):
        assert seen.name(("n", "a"), ":1", "0") == "0@:1"
        seen.begin()
    assert seen.name(("n", "a"), ":1", "0") == "0"
