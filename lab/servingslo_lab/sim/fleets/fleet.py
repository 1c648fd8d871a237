"""The definition of a simulated fleet: engines, gateway, pod starts and failures, costs.

A fleet file is YAML with the fields of `FleetSpec`; everything has a default.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from servingslo.api.refusals import first_refusal
from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.parsing import OnceLoader, parsed_yaml, yaml_problem
from servingslo_lab.sim.fleets.engine_kinds import engine_kind
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.replicas.engine import Scheduling
from servingslo_lab.sim.replicas.layout import new_engine
from servingslo_lab.sim.replicas.step_table import StepTable

Read = TypeVar("Read")
_Positive = Annotated[float, Field(gt=0)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0)]
_NotNegative = Annotated[float, Field(ge=0)]
_AtLeastOne = Annotated[int, Field(ge=1)]
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """Time from the order of a pod until it is ready: lognormal, or constant for variation 0."""

    mean_seconds: _NotNegative = 90.0
    variation_ratio: _NotNegative = 0.2

    def drawn(self, normal: float) -> float:
        """The time of one start, in seconds, from a standard normal number."""
        sigma2 = math.log1p(self.variation_ratio**2)
        return self.mean_seconds * math.exp(math.sqrt(sigma2) * normal - sigma2 / 2)


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """Nodes of one replica each, ordered by pods that wait for one and by what is kept free.

    start: from the order of a node until a pod begins its own start there. idle_seconds: after
    which a node that nothing needs goes; cluster-autoscaler waits 10 minutes by default.
    """

    start: ColdStart = ColdStart(mean_seconds=240.0)
    idle_seconds: _NotNegative = 60.0


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpec:
    """How long clients wait, and how they retry.

    A refused, lost or aborted request is sent again up to `retries` times, after a backoff that
    doubles with each attempt and is shortened at random by up to jitter_ratio. None for a client
    that waits forever.
    Source: openai-python `_constants.py` and `_base_client.py`, whose timeout is 600 s.
    """

    first_token_timeout_seconds: _Positive | None = None
    timeout_seconds: _Positive | None = None
    retries: _Count = 2
    backoff_seconds: _Positive = 0.5
    largest_backoff_seconds: _Positive = 8.0
    jitter_ratio: _Share = 0.25


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSpec:
    """A class of requests with a lane of its own at the gateway, named in the trace's `class`.

    workers: that send its requests, each one at a time, as a job does; None if they are sent when
    they arrive. backoff_seconds: after which a worker sends a refused request again. paced: a
    dispatcher sends them at the rate that the autoscaler says, none before it says one.
    """

    name: str
    workers: _AtLeastOne | None = None
    backoff_seconds: _Positive = 1.0
    paced: bool = False


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPods:
    """Pods whose steps take `factor` times as long: each with this probability, for life."""

    share_ratio: _Share = 0.0
    factor: _Positive = 1.5


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Ready pods that vanish without warning, as spot instances do, several at a time.

    events_per_hour: of the whole fleet, Poisson. lost_ratio: share of the ready pods that one event
    takes, rounded, at least one pod. Replacements are ordered at once.
    """

    events_per_hour: _Positive
    lost_ratio: _Share = 0.0


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Slowing:
    """Steps of all pods get slower over time: `factor` times as long after the given seconds."""

    factor: _Positive = 1.0
    seconds: _Positive = 3600.0

    def factor_at(self, seconds: float) -> float:
        """Factor of the step time at this time; linear until the end."""
        return 1.0 + (self.factor - 1.0) * min(seconds / self.seconds, 1.0)


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBatching:
    """Engines that serve batches of whole requests, as Triton does, up to max_num_seqs each.

    instances: batches at a time. max_queue_delay_seconds: longest wait for a full batch.
    """

    instances: _AtLeastOne = 1
    max_queue_delay_seconds: _NotNegative = 0.0


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """A fleet of equal engines behind one gateway.

    engine: name of a kind of the catalogue; law, limits and price_per_hour (dollars) replace the
    kind's values. steps: measured step times, which replace the law. max_queued: bound on running +
    waiting of each engine. cached_ratio: share of every prompt in the prefix cache, for requests
    without a session. scheduling: how an engine orders its queue. dynamic_batching: None for
    continuous batching. clients: None for clients that wait forever and send once. drain: a removed
    pod finishes its requests, within drain_seconds if set. classes: with a lane each; without any,
    a trace's classes mean nothing.
    mean_seconds_to_failure: of one pod, exponential; its replacement is ordered at once. spot: pods
    that vanish several at a time, None for never.
    gpu_quota: pods beyond it stay pending. nodes: that have to be ordered and are paid instead of
    pods; None if they are there. scrape_interval_seconds: interval of the autoscaler's
    observations; each shows the scrape of scrape_lag_seconds before.
    """

    engine: str = "h100-8b"
    law: ServiceLaw | None = None
    steps: StepTable | None = None
    limits: EngineLimits | None = None
    price_per_hour: _NotNegative | None = None
    max_queued: _AtLeastOne | None = None
    cached_ratio: _Share = 0.0
    initial_replicas: _Count = 1
    max_replicas: _Count | None = None
    gpu_quota: _Count | None = None
    nodes: NodeSpec | None = None
    cold_start: ColdStart = ColdStart()
    routing: Routing = Routing.LEAST_LOADED
    scheduling: Scheduling = Scheduling.FCFS
    dynamic_batching: DynamicBatching | None = None
    clients: ClientSpec | None = None
    slow_pods: SlowPods = SlowPods()
    slowing: Slowing = Slowing()
    drain: bool = True
    drain_seconds: _NotNegative | None = None
    mean_seconds_to_failure: _Positive | None = None
    spot: Spot | None = None
    scrape_interval_seconds: _Positive = 15.0
    scrape_lag_seconds: _NotNegative = 5.0
    classes: tuple[ClassSpec, ...] = ()

    @property
    def engine_law(self) -> ServiceLaw:
        """The applied service law."""
        return self.law or engine_kind(self.engine).law

    @property
    def engine_limits(self) -> EngineLimits:
        """The applied limits."""
        return self.limits or engine_kind(self.engine).limits

    @property
    def dollars_per_hour(self) -> float:
        """Price of one replica."""
        kind_price = engine_kind(self.engine).price_per_hour
        return kind_price if self.price_per_hour is None else self.price_per_hour


_FLEET: TypeAdapter[FleetSpec] = TypeAdapter(FleetSpec)


def check_engine(fleet: FleetSpec) -> None:
    """Raises: InvalidInputError for unknown engines, or engines that would not start."""
    for name, seconds in asdict(fleet.engine_law).items():
        least = 0.0 if name != "step_fixed_seconds" else math.ulp(0.0)
        if not least <= seconds < math.inf:
            allowed = f"seconds {'≥' if least == 0 else '>'} 0"
            raise InvalidInputError(f"law.{name}", seconds, allowed)
    if not fleet.engine_limits.kv_capacity_tokens < math.inf:
        capacity = fleet.engine_limits.kv_capacity_tokens
        raise InvalidInputError("limits.kv_capacity_tokens", capacity, "a number of tokens")
    try:
        new_engine(fleet.engine_law, fleet.engine_limits)
    except InvalidInputError as error:
        raise InvalidInputError(f"limits.{error.field}", error.value, error.allowed) from error


def read_fleet(path: Path) -> FleetSpec:
    """The fleet in a YAML file.

    Raises: InvalidInputError naming file, field, value and the allowed values.
    """

    def checked(document: object) -> FleetSpec:
        fleet = _FLEET.validate_python(document)
        check_engine(fleet)
        return fleet

    return read_yaml(path, "fleet", checked)


def read_yaml(path: Path, name: str, validated: Callable[[object], Read]) -> Read:
    """The validated content of a YAML file; an empty file counts as an empty mapping.

    name: of the content, for the message about an unreadable file.

    Raises: InvalidInputError naming file, field, value and the allowed values.
    """
    try:
        document = parsed_yaml(path.read_text(encoding="utf-8"), OnceLoader)
        return validated({} if document is None else document)
    except OSError as error:
        raise InvalidInputError(name, str(path), f"a readable file ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(name, str(path), "YAML, as UTF-8") from error
    except yaml.YAMLError as error:
        raise InvalidInputError(name, str(path), f"YAML ({yaml_problem(error)})") from error
    except ValidationError as error:
        raise first_refusal(error, str(path)) from error
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error.field}", error.value, error.allowed) from error
