"""What the page about KEDA tells users to apply, and the scaler that it is for."""

import re
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parent / "data"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "keda.md"
SCALED_OBJECTS = {"group": "keda.sh", "version": "v1alpha1", "plural": "scaledobjects"}


def documented(needle: str, namespace: str, name: str) -> dict[str, Any]:
    """The object of KEDA with this in it in the page, for a workload of this namespace."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    text = next(block for block in blocks if "keda.sh/v1alpha1" in block and needle in block)
    found: dict[str, Any] = yaml.safe_load(
        text.replace("inference", namespace).replace("llama-chat", name)
    )
    return found


def scaler_settings(port: int) -> tuple[str, ...]:
    """The operator's settings for an external scaler with the certificate of loopback."""
    return (
        f"--keda-scaler-port={port}",
        f"--keda-scaler-certificate-file={DATA / 'loopback.pem'}",
        f"--keda-scaler-key-file={DATA / 'loopback.pem'}",
    )
