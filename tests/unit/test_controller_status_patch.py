"""Patches of a status: it is put right after a write without an answer, taken or not."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.controller_fakes import NAME, Operator, record_of

from servingslo.controller.reporting.outage import Outages
from servingslo.controller.reporting.status_writer import StatusWriter
from servingslo.errors import ClusterUnavailableError

SEEN = {"replicas": {"current": 2, "desired": 2}, "predicted": {"utilization": 0.5}}


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "lost"])
@pytest.mark.parametrize(
    "tried",
    [
        pytest.param({"replicas": None}, id="without-counts"),
        pytest.param({"replicas": {"current": 3, "ready": 3}}, id="other-counts"),
        pytest.param({"predicted": None, "replicas": {"ready": 1}}, id="two-fields"),
    ],
)
async def test_after_an_unanswered_write_the_status_is_what_was_wanted(
    tried: Mapping[str, Any], taken: bool
) -> None:
    """What was there before, and is wanted again, is written: the server may have lost it."""
    operator = Operator()
    record = record_of()
    operator.apply(record)
    resources, uid = operator.resources, record.ref.uid
    writer = StatusWriter(operator.adapters, Outages())
    writer.begin(record.ref, {}, 0.0)
    await writer.want(uid, {**SEEN, "reason": "DemandMet"})
    before = dict(resources.status())
    take = resources.patch_status

    async def cut(*arguments: Any) -> None:
        if taken:
            await take(*arguments)
        raise ClusterUnavailableError("connection reset")

    resources.patch_status = cut
    await writer.want(uid, {**SEEN, **tried, "reason": "ClusterUnavailable"})
    assert (resources.status(NAME) != before) is taken
    resources.patch_status = take
    await writer.want(uid, {**SEEN, "reason": "DemandMet"})
    assert resources.status(NAME) == before
    count = len(resources.patches)
    await writer.want(uid, {**SEEN, "reason": "DemandMet"})
    assert len(resources.patches) == count
