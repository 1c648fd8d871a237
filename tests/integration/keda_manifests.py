"""What the pages about KEDA tell users to apply, and the scaler that it is for."""

import re
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parent / "data"
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = (HOW_TO / "keda.md", HOW_TO / "keda-scaler.md")
SCALED_OBJECTS = {"group": "keda.sh", "version": "v1alpha1", "plural": "scaledobjects"}


def documented(needle: str, namespace: str, name: str) -> dict[str, Any]:
    """The object of KEDA with this in it in the pages, for a workload of this namespace.

    A trigger alone stands in the pages' ScaledObject, as they say.
    """
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    text = text.replace("inference", namespace).replace("llama-chat", name)
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = yaml.safe_load(
        next(block for block in blocks if needle in block and "servingslo.dev" not in block)
    )
    if "kind" not in found:
        triggers = found
        found = documented("kind: ScaledObject", namespace, name)
        found["spec"] |= triggers
        del found["spec"]["pollingInterval"]
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
