"""What an engine can have done in a window, where no law of it is known yet."""

import pytest

from servingslo.estimation.windows.plausible import impossible

SECONDS = 15.0


@pytest.mark.parametrize(
    ("between_seconds", "slots", "can_be"),
    [
        pytest.param(900.0, 64.0, True, id="nearly-full"),
        pytest.param(1_500.0, 64.0, True, id="full-and-gaps-from-before"),
        pytest.param(2_561.0, 64.0, False, id="counters-doubled"),
        pytest.param(2_561.0, 256.0, True, id="more-slots"),
        pytest.param(2_561.0, None, True, id="slots-unknown"),
    ],
)
def test_sequences_decode_in_slots(
    between_seconds: float, slots: float | None, can_be: bool
) -> None:
    """Between two of its tokens a sequence has a slot for as long."""
    said = impossible(
        {"inter_token_seconds": between_seconds, "generation_tokens": 1e5},
        seconds=SECONDS,
        requests_held=2.0,
        slots=slots,
        law=None,
    )
    assert (said == "") is can_be
    assert can_be or "between tokens" in said
