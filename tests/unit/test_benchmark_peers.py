"""The table of real peers: whose row is first, what is best, and what is not shown."""

from tests.benchmarks.peers import PeerRun, peer_rows, planned, settings_of
from tests.benchmarks.peers_page import page_tables, results

from servingslo_lab.sim.policies import OURS

PEER = "real:hpa"


def run(row: str, policy: str, share: float, hours: float, seed: int = 61) -> PeerRun:
    """A run that is kept."""
    return PeerRun(row=row, policy=policy, seed=seed, share_ratio=share, replica_hours=hours)


def grid(row: str, share: float, hours: float, peer: str = PEER) -> list[PeerRun]:
    """A peer at every setting; each reaches a little more, for more hours."""
    return [
        run(row, policy, share + 0.01 * place, hours + place)
        for place, policy in enumerate(settings_of(peer))
    ]


def test_a_row_that_a_peer_wins_comes_first():
    """It reaches the target for less; a share above the target earns ours nothing."""
    runs = [run("a", OURS, 0.99, 10.0), *grid("a", 0.9, 12.0)]
    runs += [run("b", OURS, 0.999, 10.0), *grid("b", 0.99, 9.9)]
    assert [row.row for row in results(runs)] == ["b", "a"]


def test_no_best_is_shown_of_a_part_of_the_grid_or_of_other_seeds():
    """A mean over fewer seeds than ours has is another traffic."""
    partial = [run("a", OURS, 0.99, 10.0), *grid("a", 0.97, 12.0)[:-1]]
    (row,) = results(partial)
    assert PEER in row.defaults
    assert row.best == {}
    other = [run("a", OURS, 0.99, 10.0, seed=62), run("a", OURS, 0.99, 10.0)]
    (row,) = results([*other, *grid("a", 0.97, 12.0)])
    assert row.defaults == {}
    assert "hpa" not in "\n".join(page_tables([row]))


def test_a_peer_that_serves_less_wins_no_row():
    """Even at a hundredth of the hours: 7 % of requests in SLO is no service."""
    runs = [run("a", OURS, 0.68, 11.0), *grid("a", 0.05, 0.1)]
    (row,) = results(runs)
    assert min(one.price for one in row.best.values()) < row.ours.price
    assert not row.is_won_by_a_peer


def test_the_plan_has_every_standard_trace_and_every_unseen_row():
    """Nine traces on two cards, and defaults before the grid."""
    rows = list(peer_rows())
    assert {"h100 flash", "l4 long-mix", "h100 agents", "a100 noisy crowds"} <= set(rows)
    assert not any("knobs" in row for row in rows)
    plan = list(planned(["h100 flash"], [PEER], (61,)))
    assert [policy for _, policy, _ in plan] == [OURS, *settings_of(PEER)]
