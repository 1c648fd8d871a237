"""What the benchmark's page says of searched settings that came near ours."""

from tests.benchmarks.matrix_search import Setting, near
from tests.benchmarks.matrix_sections import beating_near

from servingslo_lab.sim.scoring import Interval
from servingslo_lab.sim.summary import PolicySummary


def setting(share_ratio: float, hours: float) -> Setting:
    """What one setting gave on the search's seed."""
    return Setting("l4 azure-conv", "keda-raw:waiting=1", share_ratio, hours, hours / 10.0)


def summary(policy: str, share_ratio: float, hours: float) -> PolicySummary:
    """What a policy gave on the page's seeds."""

    def alone(value: float) -> Interval:
        return Interval(mean=value, half_width=None)

    return PolicySummary(
        scenario="l4 azure-conv",
        policy=policy,
        seeds=(1, 2),
        share_ratio=alone(share_ratio),
        replica_hours=alone(hours),
        relative_cost=alone(hours / 10.0),
        dollars=alone(hours),
        dollars_per_million_tokens=None,
        actions_per_hour=alone(0.0),
        worst_minute_ratio=1.0,
        recovery_seconds=0.0,
        rejected_ratio=0.0,
        lost_ratio=0.0,
        ttft_p99_seconds=None,
        tpot_p99_seconds=None,
    )


OURS = summary("servingslo", 0.991, 11.0)


def test_near_is_within_a_point_and_three_percent() -> None:
    """What is better than ours is near as well; what is much dearer or much worse is not."""
    found = [setting(0.985, 11.3), setting(0.999, 9.0), setting(0.97, 10.0), setting(0.999, 12.0)]
    assert near(found, 0.991, 11.0) == found[:2]


def test_a_setting_that_beats_ours_on_the_pages_seeds_is_named() -> None:
    """With how many came near, and what it reached."""
    found = [summary("a:x=1", 0.992, 10.9), summary("b:x=1", 0.98, 10.5)]
    assert beating_near(found, OURS) == "1 of 2 near ones: a:x=1 99.2 @ 1.09"


def test_near_settings_that_do_not_beat_ours_are_counted() -> None:
    """The one with the largest share stands for them; none came near is said, too."""
    found = [summary("a:x=1", 0.975, 10.4), summary("b:x=1", 0.98, 10.5)]
    assert beating_near(found, OURS) == "none of 2 near ones, b:x=1 98.0 @ 1.05"
    assert beating_near([], OURS) == "no near ones"
