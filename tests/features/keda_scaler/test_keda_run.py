"""The scaler's flags, and that it is served with them beside the running operator."""

import asyncio
import logging
import re
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from servingslo.cli.running.feature_flags import Serving
from servingslo.cli.running.switch import Switch
from servingslo.controller.registry import Registry
from servingslo.errors import InvalidInputError
from servingslo.features.keda_scaler.run import PART, ScalerFlags

PLAIN = ScalerFlags(keda_scaler_port=0, keda_scaler_plain_text=Switch.ON)


def test_without_a_port_nothing_is_started() -> None:
    """The default."""
    assert PART.options(ScalerFlags(), 4) is None
    assert PART.options(PLAIN, 1) == PLAIN


@pytest.mark.parametrize(
    ("flags", "deciders", "field"),
    [
        pytest.param(ScalerFlags(keda_scaler_port=0), 1, "certificate-file", id="unsaid"),
        pytest.param(
            replace(PLAIN, keda_scaler_client_ca_file=Path("ca.crt")), 1, "client-ca", id="plain"
        ),
        pytest.param(PLAIN, 2, "several pods decide", id="a pod knows its own counts alone"),
    ],
)
def test_what_cannot_be_served_is_refused(flags: ScalerFlags, deciders: int, field: str) -> None:
    """With the flag, before anything is started."""
    with pytest.raises(InvalidInputError, match=field):
        PART.options(flags, deciders)


async def test_it_answers_by_what_the_operator_knows(caplog: pytest.LogCaptureFixture) -> None:
    """A ScaledObject that no cluster has is not found; the port closes with the operator."""
    grpc = pytest.importorskip("grpc", reason="the extra `keda` is not installed")
    caplog.set_level(logging.INFO)
    async with AsyncExitStack() as stack:
        serving = Serving(
            client=SimpleNamespace(),
            namespaces=(),
            inventory=SimpleNamespace(scaled_objects=SimpleNamespace(get=lambda *_: None)),
            registry=Registry(),
            handed_over=lambda *_: None,
            leads=lambda: True,
            stack=stack,
        )
        await PART.start(PLAIN, serving)
        for _ in range(500):
            await asyncio.sleep(0.02)
            if port := re.search(r"scaler port=(\d+)", caplog.text):
                break
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port[1]}") as channel:
            asked = channel.unary_unary("/externalscaler.ExternalScaler/IsActive")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asked(b"\x0a\x03any\x12\x04team", timeout=10.0)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
