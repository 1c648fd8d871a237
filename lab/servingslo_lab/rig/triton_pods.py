"""Triton behind pods: its server for each pod, requests to it, and its limits."""

import json
import random
from collections.abc import Callable

from servingslo_lab.rig.pod_servers import Place, Question
from servingslo_lab.rig.triton import TritonModel, TritonServer
from servingslo_lab.rig.waiting import http_get

HTTP_PORT = 8000
_BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]})


def triton_behind(*models: TritonModel) -> Callable[[Place], TritonServer]:
    """Makes a pod's server of these models, at Triton's default port."""
    return lambda place: TritonServer(
        work_dir=place.work_dir,
        family=place.family,
        models=models,
        address=place.address,
        port=HTTP_PORT,
    )


def infer(model: str) -> Callable[[random.Random], Question]:
    """Makes requests to a model, all of them equal."""
    question = Question(f"/v2/models/{model}/infer", _BODY)
    return lambda _numbers: question


def max_batch_size(url: str, model: str) -> int | None:
    """max_batch_size in a model's current configuration; None if the server does not answer."""
    page = http_get(f"{url}/v2/models/{model}/config")
    return None if page is None else int(json.loads(page)["max_batch_size"])
