"""Textbook forms of dynamic batches, which models and simulations are held against.

A window opens at the first arrival. A filled batch arrives as an Erlang stream, so Allen–Cunneen
waits have C_a² = 1/B; without a delay the server is the greedy one.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln
from tests.textbook.queueing import mgc_wait_seconds

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import FloatArray

# A batching window takes at most this share of the latency objective.
# Source: Machine Learning Systems (V. J. Reddi), chapter "Model Serving", batching window.
WINDOW_SHARE_OF_OBJECTIVE = 0.3
# States of the greedy chain: six full batches, and at least so many.
# Measured: twice as many move the response by 2e-5 at utilization 0.9 and 0.3 % at 0.98.
_GREEDY_STATES_PER_BATCH = 6
_GREEDY_LEAST_STATES = 64
# Eight such falls are 3e-4 of the tail; up to a utilization of 0.996.
_GREEDY_TAIL, _GREEDY_MOST_STATES = 4.0, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLaw:
    """Service time of a whole batch: T_svc(B) = fixed + per request·B, in seconds.

    Source: Machine Learning Systems, appendix "Inference Foundations", equation 1.
    """

    fixed_seconds: float
    per_request_seconds: float

    def service_seconds(self, batch_count: float) -> float:
        """Duration of one batch, in seconds."""
        return self.fixed_seconds + self.per_request_seconds * batch_count

    def throughput_per_second(self, batch_count: float) -> float:
        """Requests per second with batches of this size back to back, B/T_svc(B)."""
        return batch_count / self.service_seconds(batch_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResponse:
    """Times of a request in a dynamic batcher, in seconds; inf where unstable.

    utilization: λ·T_svc(B)/B. wait: for the server. formation: for the batch to fill.
    response: wait + formation + service.
    """

    utilization: float
    wait_seconds: float
    formation_seconds: float
    service_seconds: float
    response_seconds: float


def batch_response(
    law: BatchLaw,
    arrival_rate_per_second: float,
    batch_count: int,
    window_seconds: float = math.inf,
) -> BatchResponse:
    """Response of a dynamic batcher, nearer to simulation than the textbook form.

    The window opens at the first arrival, so E[B] = min(B_max, 1 + λ·T_max), formation is
    (B − 1)/(2λ), and the wait is Allen–Cunneen's with C_a² = 1/B. A window of 0 is the greedy
    server. Against simulation (λ = 100/s, 50 ms + 0.5 ms·B): within 5 % at B = 8, 1 % from 16 on.
    Source: A. O. Allen, Probability, Statistics and Queueing Theory (1990), Allen–Cunneen, with the
    dispersion 1/B of an Erlang stream.
    """
    _arriving(arrival_rate_per_second)
    if window_seconds <= 0.0:
        return greedy_batch_response(law, arrival_rate_per_second, batch_count)
    size = min(float(batch_count), 1.0 + arrival_rate_per_second * window_seconds)
    service = law.service_seconds(size)
    utilization = arrival_rate_per_second * service / size
    formation = (size - 1.0) / (2.0 * arrival_rate_per_second)
    wait = math.inf
    if utilization < 1.0:
        wait = mgc_wait_seconds(service, utilization, 1, 1.0 / size, 0.0)
    return BatchResponse(
        utilization=utilization,
        wait_seconds=wait,
        formation_seconds=formation,
        service_seconds=service,
        response_seconds=wait + formation + service,
    )


def greedy_batch_response(
    law: BatchLaw, arrival_rate_per_second: float, batch_count: int
) -> BatchResponse:
    """Response of a server that takes all who wait, up to batch_count, whenever it is free.

    Embedded chain at service starts: what is left plus Poisson arrivals during a service, or one
    request after an idle time; mean number in system by renewal reward, then Little's law.
    Truncated where six full batches wait, or what the queue seldom exceeds: near saturation its
    tail falls by e for every 1/(2·(1 − ρ)) requests.
    Source: bulk service, N. T. J. Bailey, On queueing processes with bulk service, J. R. Stat. Soc.
    B 16 (1954); by an embedded chain.
    """
    _arriving(arrival_rate_per_second)
    utilization = arrival_rate_per_second * law.service_seconds(batch_count) / batch_count
    if utilization >= 1.0:
        return BatchResponse(
            utilization=utilization,
            wait_seconds=math.inf,
            formation_seconds=0.0,
            service_seconds=law.service_seconds(batch_count),
            response_seconds=math.inf,
        )
    tail = min(_GREEDY_TAIL / (1.0 - utilization), _GREEDY_MOST_STATES)
    states = max(
        _GREEDY_LEAST_STATES, _GREEDY_STATES_PER_BATCH * batch_count, batch_count + int(tail)
    )
    number: FloatArray = np.arange(1.0, states + 1.0)
    taken = np.minimum(number, batch_count)
    service = law.fixed_seconds + law.per_request_seconds * taken
    share = _stationary(number - taken, arrival_rate_per_second * service)
    idle = float(
        share[number == taken] @ np.exp(-arrival_rate_per_second * service[number == taken])
    )
    cycle = float(share @ service) + idle / arrival_rate_per_second
    held = float(share @ (number * service + 0.5 * arrival_rate_per_second * service**2))
    batch_mean = float(share @ taken)
    served = float((share * taken) @ service) / batch_mean
    response = held / cycle / arrival_rate_per_second
    return BatchResponse(
        utilization=float(share @ service) / cycle,
        wait_seconds=response - served,
        formation_seconds=0.0,
        service_seconds=served,
        response_seconds=response,
    )


def _stationary(left: FloatArray, arrivals_mean: FloatArray) -> FloatArray:
    """Stationary law of the number at service starts (1 to states) of the greedy server."""
    states = len(left)
    count = np.arange(states + 1)
    logs = count * np.log(arrivals_mean)[:, None] - arrivals_mean[:, None] - gammaln(count + 1.0)
    arrived = np.exp(logs)
    chain = np.zeros((states, states))
    for row in range(states):
        start = int(left[row])
        # Column k holds number k + 1; an empty system starts again with one request.
        reach = states - start
        values = arrived[row, : reach + 1]
        if start == 0:
            chain[row, :reach] += values[1 : reach + 1]
            chain[row, 0] += values[0]
        else:
            chain[row, start - 1 :] += values
        chain[row, -1] += max(0.0, 1.0 - chain[row].sum())
    # One of the equations follows from the others; that the law sums to 1 takes its place.
    system = chain.T - np.eye(states)
    system[-1] = 1.0
    target = np.zeros(states)
    target[-1] = 1.0
    solution: FloatArray = np.maximum(np.linalg.solve(system, target), 0.0)
    share: FloatArray = solution / solution.sum()
    return share


def _arriving(arrival_rate_per_second: float) -> None:
    if not arrival_rate_per_second > 0.0:
        raise InvalidInputError("arrival_rate_per_second", arrival_rate_per_second, "above 0")


def window_limit_seconds(objective_seconds: float) -> float:
    """Longest window for a latency objective, 30 % of it.

    Source: Machine Learning Systems (V. J. Reddi), chapter "Model Serving", batching window.
    """
    return WINDOW_SHARE_OF_OBJECTIVE * objective_seconds


def adaptive_window_seconds(
    queue_count: float,
    target_batch_count: float,
    arrival_rate_per_second: float,
    objective_seconds: float,
) -> float:
    """Window for what waits now: 0 when the batch is there, else the time it takes to come.

    At most 30 % of the objective. Source: Machine Learning Systems, chapter "Model Serving".
    """
    if queue_count >= target_batch_count:
        return 0.0
    _arriving(arrival_rate_per_second)
    missing = (target_batch_count - queue_count) / arrival_rate_per_second
    return min(missing, window_limit_seconds(objective_seconds))
