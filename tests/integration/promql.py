"""Ask Prometheus, as people and dashboards do."""

from typing import Any

import requests


def series_of(url: str, expression: str) -> list[dict[str, Any]]:
    """The series that an expression has now. url: of Prometheus."""
    answer = requests.get(f"{url}/api/v1/query", params={"query": expression}, timeout=10).json()
    assert answer["status"] == "success", answer
    return list(answer["data"]["result"])
