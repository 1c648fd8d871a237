"""The runtimes of the administrator's page: one that is added, and what is changed of others."""

import re
from pathlib import Path

import yaml

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "other-engines.md"
ADDED, CHANGED = (
    yaml.safe_load(block)["runtimes"]
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
)
(NAME,) = ADDED
