"""Ask the rig's Prometheus, as people and dashboards do."""

from typing import Any

import requests

from servingslo_lab.rig.cluster import Rig


def series_of(rig: Rig, expression: str) -> list[dict[str, Any]]:
    """The series that an expression has now."""
    answer = requests.get(
        f"{rig.prometheus_url}/api/v1/query", params={"query": expression}, timeout=10
    ).json()
    assert answer["status"] == "success", answer
    return list(answer["data"]["result"])
