"""What the page about KEDA tells users to apply, and the scaler that it is for."""

import re
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parent / "data"
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGE = HOW_TO / "keda.md"
SCALED_OBJECTS = {"group": "keda.sh", "version": "v1alpha1", "plural": "scaledobjects"}


def documented(needle: str, namespace: str, name: str) -> dict[str, Any]:
    """The object of KEDA with this in it in the page, for a workload of this namespace."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    text = next(block for block in blocks if "keda.sh/v1alpha1" in block and needle in block)
    found: dict[str, Any] = yaml.safe_load(
        text.replace("inference", namespace).replace("llama-chat", name)
    )
    return found


def documented_for_kserve(namespace: str, scaler_port: int) -> list[dict[str, Any]]:
    """The LLMInferenceService and the ServingSLO of the page about KServe, for a scaler here."""
    text = (HOW_TO / "kserve.md").read_text("utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    there = "servingslo-operator-keda.servingslo-system.svc:6000"
    assert there in block
    block = block.replace(there, f"127.0.0.1:{scaler_port}")
    return list(
        yaml.safe_load_all(block.replace("namespace: inference", f"namespace: {namespace}"))
    )


def scaler_settings(port: int) -> tuple[str, ...]:
    """The operator's settings for an external scaler with the certificate of loopback."""
    return (
        f"--keda-scaler-port={port}",
        f"--keda-scaler-certificate-file={DATA / 'loopback.pem'}",
        f"--keda-scaler-key-file={DATA / 'loopback.pem'}",
    )
