"""Who evaluates the laws of one load: numpy, or the same laws compiled, where that is turned on.

The compiled form is the optional extra `compiled`. It costs a tenth of the time of numpy for a load
by itself, most of which is the calls, and gives the same percentiles, see the design note.
"""

from typing import TYPE_CHECKING, Protocol

from servingslo.models.objectives import LatencyMetric
from servingslo.models.occupancy import Occupancy
from servingslo.models.output_laws import GapMoments, OutputGaps, output_gaps
from servingslo.models.prompt_work import PromptWork, prompt_work
from servingslo.models.service_time import FloatArray
from servingslo.models.transform import TabulatedLaw
from servingslo.models.workload import Workload

if TYPE_CHECKING:
    from servingslo.models.judging import LoadLimits
    from servingslo.models.load_laws import EngineLaws


class RequestLaw(Protocol):
    """A law over requests, in seconds."""

    def quantile(self, probability: float) -> float:
        """Time in seconds that this share of requests does not exceed; probability in (0, 1)."""

    def share_within(self, seconds: float) -> float:
        """P(T ≤ t) for t in seconds."""


class Kernel(Protocol):
    """The laws of one engine configuration and one mix of requests, a load at a time.

    numbers: of the law of running sequences, as the kernel itself gave them.
    """

    def running(
        self, rate_per_second: float, replica_count: int, *, pooled: bool
    ) -> tuple[Occupancy, FloatArray]:
        """Law of the running sequences of a replica below saturation, and its numbers."""

    def first_token(self, rate_per_second: float, numbers: FloatArray) -> TabulatedLaw:
        """Law of the time to first token."""

    def gaps(self, rate_per_second: float, numbers: FloatArray) -> GapMoments:
        """Moments of the time per output token by output length."""

    def per_token(self, rate_per_second: float, numbers: FloatArray) -> RequestLaw:
        """Law of the time per output token."""

    def end_to_end(
        self, rate_per_second: float, numbers: FloatArray, first: TabulatedLaw
    ) -> RequestLaw:
        """Law of the end-to-end latency; first: of the time to first token."""

    def judged(
        self,
        rate_per_second: float,
        replica_count: int,
        limits: "LoadLimits",
        *,
        pooled: bool,
    ) -> list[float]:
        """As `judging.judged`, by the rate of a replica, below saturation."""

    def percentile(
        self, metric: LatencyMetric, share: float, rate_per_second: float, numbers: FloatArray
    ) -> float:
        """Seconds that this share of requests does not exceed."""

    def full_batch(self, tpot_seconds: float, most_sequences: int) -> int:
        """The full batch that serves most tokens to requests in time, see `full_batch`."""


class Maker(Protocol):
    """Makes kernels, and what they need of the lengths of a mix, sooner than numpy does."""

    def __hash__(self) -> int:
        """Makers are told apart, not compared."""

    def lengths(
        self, workload: Workload, prefill_per_token_seconds: float
    ) -> tuple[OutputGaps, PromptWork]:
        """`output_gaps` and `prompt_work` of these requests."""

    def kernel(self, engine: "EngineLaws") -> Kernel:
        """The kernel for an engine configuration and a mix."""


class _Chosen:
    """Who makes kernels; None: laws are evaluated by numpy."""

    maker: Maker | None = None


def choose_kernels(maker: Maker | None) -> None:
    """Let this maker make the kernels of all models prepared from now on; None: numpy."""
    _Chosen.maker = maker


def chosen_kernels() -> Maker | None:
    """Who makes kernels now; None: nobody."""
    return _Chosen.maker


def lengths_of(
    workload: Workload, prefill_per_token_seconds: float
) -> tuple[OutputGaps, PromptWork]:
    """Gaps between the tokens of these requests, and the prefill work of their prompts."""
    if _Chosen.maker is not None:
        return _Chosen.maker.lengths(workload, prefill_per_token_seconds)
    prompts = prompt_work(workload.prompt, workload.cached_ratio, prefill_per_token_seconds)
    return output_gaps(workload.output), prompts


def kernel_of(engine: "EngineLaws") -> Kernel | None:
    """The kernel for an engine configuration and a mix; None where numpy evaluates."""
    return None if _Chosen.maker is None else _Chosen.maker.kernel(engine)
