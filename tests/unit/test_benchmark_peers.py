"""The tables of real peers: which row is first, who wins it, and what is stored."""

from tests.benchmarks import peers_page
from tests.benchmarks.peers import PeerRun, first_rows, peer_rows, planned, settings_of
from tests.benchmarks.peers_page import lines_of, page_tables, readme_table, results, stored

from servingslo_lab.sim.policies import OURS

PEER = "real:hpa"


def run(row: str, policy: str, share: float, hours: float, seed: int = 61) -> PeerRun:
    """A run that is kept."""
    return PeerRun(row=row, policy=policy, seed=seed, share_ratio=share, replica_hours=hours)


def grid(row: str, share: float, hours: float) -> list[PeerRun]:
    """A peer at every setting; each reaches a little more, for more hours."""
    return [
        run(row, policy, share + 0.01 * place, hours + place)
        for place, policy in enumerate(settings_of(PEER))
    ]


def test_a_row_that_a_peer_wins_comes_first_after_recorded_traffic():
    """It keeps the promise for less; a share above the target earns ours nothing."""
    runs = [run("a", OURS, 0.99, 10.0), *grid("a", 0.9, 12.0)]
    runs += [run("b", OURS, 0.999, 10.0), *grid("b", 0.99, 9.9)]
    runs += [run("h100 azure-conv", OURS, 0.99, 10.0), *grid("h100 azure-conv", 0.5, 12.0)]
    found = results(lines_of(runs))
    assert [row.ours.row for row in found] == ["h100 azure-conv", "b", "a"]
    assert [row.winner.policy for row in found] == [OURS, PEER, OURS]


def test_the_best_is_the_cheapest_setting_that_keeps_the_promise():
    """Of 0.97, 0.98, 0.99 and more for more hours each; with none the largest share."""
    (row,) = results(lines_of([run("a", OURS, 0.5, 1.0), *grid("a", 0.97, 12.0)]))
    assert (row.best[0].in_slo_percent, row.best[0].replica_hours) == (99.0, 14.0)
    assert row.default[0].in_slo_percent == 97.0
    (row,) = results(lines_of([run("a", OURS, 0.5, 1.0), *grid("a", 0.5, 12.0)]))
    assert row.best[0].in_slo_percent == 54.0


def test_who_breaks_the_promise_wins_no_row():
    """Even at a hundredth of the hours, or with a larger share than ours."""
    for share in (0.05, 0.9):
        (row,) = results(lines_of([run("a", OURS, 0.68, 11.0), *grid("a", share, 0.1)]))
        assert row.winner is None
        assert "no one keeps it on 1" in "\n".join(page_tables([row]))


def test_figures_of_fewer_seeds_have_a_star_and_are_not_in_readme():
    """A mean over fewer seeds than ours has is another traffic."""
    ours = [run("a", OURS, 0.99, 10.0, seed=seed) for seed in (61, 62)]
    (row,) = results([*lines_of(ours), *lines_of([run("a", PEER, 1.0, 12.0)])])
    assert "hpa 100.0 @ 12.0*" in "\n".join(page_tables([row]))
    (other,) = results(lines_of([*ours, *(run("a", PEER, 0.5, 9.0, seed=s) for s in (61, 62))]))
    assert "@ 9.0*" not in "\n".join(page_tables([other]))
    assert "| hpa 50.0 @ 9.0 |" in "\n".join(readme_table([other]))


def test_a_later_call_replaces_the_lines_of_its_rows_and_peers(tmp_path, monkeypatch):
    """Other rows and other peers stay."""
    monkeypatch.setattr(peers_page, "DATA", tmp_path / "peers.csv")
    (tmp_path / "peers.csv").write_text("row\n", encoding="utf-8")
    peers_page.store_runs([run("a", OURS, 0.9, 10.0), *grid("a", 0.9, 12.0)])
    peers_page.store_runs([run("a", OURS, 0.95, 9.0), run("b", OURS, 0.9, 8.0)])
    assert [line.replica_hours for line in stored() if line.policy == OURS] == [9.0, 8.0]
    assert len(stored()) == 2 + len(settings_of(PEER))


def test_the_plan_has_every_standard_trace_and_every_unseen_row():
    """Recorded traffic on measured step times first, and defaults before the grid."""
    rows = list(peer_rows())
    assert {"h100 flash", "l4 long-mix", "h100 agents", "a100 noisy crowds"} <= set(rows)
    assert rows[: len(first_rows())] == list(first_rows())
    assert all(first_rows()[name].fleet.steps is not None for name in rows[:3])
    assert not any("knobs" in row for row in rows)
    plan = list(planned(["h100 flash"], [PEER], (61,)))
    assert [policy for _, policy, _ in plan] == [OURS, *settings_of(PEER)]
