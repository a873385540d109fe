"""Replicas: the service of `aggml.serve` as a deployment of Ray Serve.

``ray.serve.run(aggml.ray.service(["model.gguf"], replicas=(1, 4)))``

Each replica is a whole service with its own models, cores and continuous batches. Ray Serve's proxy
passes requests on and streams answers. Ray Serve starts replicas by the number of requests, or by
tokens (scaling.py). Several replicas get a deployment in front, which gives a prompt to the replica
with the longest beginning of it (front.py, router.py). Here: the deployments. Not here: the service
(aggml.serve), a model in stages (pipeline.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ray import serve
from ray.serve.config import RequestRouterConfig

from aggml import InvalidArgument
from aggml.process.paths import user_path
from aggml.ray.front import Behind, Front
from aggml.ray.scaling import Replica
from aggml.serve import Limits
from aggml.serve.http import Options
from aggml.serve.http.app import application

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ray.serve import Application

__all__ = ["build", "service"]


def service(
    models: Sequence[str | os.PathLike[str]],
    *,
    replicas: int | tuple[int, int] = 1,
    tokens: int | None = None,
    threads: int = 1,
    resources: dict[str, float] | None = None,
    devices: Sequence[str] = (),
    limits: Limits | None = None,
    deadline: float = 120.0,
    drain: float = 30.0,
    imbalance: int | None = None,
    **options: Any,  # noqa: ANN401 members of another class
) -> Application:
    """An application for ``ray.serve.run``: OpenAI's routes over HTTP, computed by replicas.

    Args:
        models: model files, at these paths on every node.
        replicas: how many; or the fewest and the most. Between these Ray Serve chooses so that each
            replica has about as many requests under way as it has slots.
        tokens: how many tokens of prompts and answers a replica may owe before Ray Serve adds
            replicas, so that long requests count for more. None: only requests count.
        threads: cores of each replica, which Ray reserves.
        resources: further resources of each replica, such as ``{"GPU": 1}``.
        devices: names of aggml devices, which share each model; none: the best one of the node.
        limits: slots, context, memory for keys and values, queue of each replica.
        deadline: seconds for a request that does not give its own deadline.
        drain: seconds for which a replica that is being removed may continue its requests.
        imbalance: a replica that has the beginning of a prompt is preferred while it has fewer than
            so many requests more than the least busy one; None: half of its slots.
        options: further members of `aggml.serve.http.Options`, such as ``api_key``, ``aliases`` and
            ``adapters``. Files are at the same paths on every node; shares of clients (``rate``,
            ``concurrency``) are counted in each replica.

    Raises:
        InvalidArgument: replicas below 1, or the most below the fewest; tokens below 1, or
            without two numbers of replicas; imbalance below 1.
    """
    fewest, most = replicas if isinstance(replicas, tuple) else (replicas, replicas)
    if not 1 <= fewest <= most:
        raise InvalidArgument(
            f"[service] replicas is {replicas}: give numbers of 1 or more, the smaller one first"
        )
    if tokens is not None and (tokens < 1 or fewest == most):
        raise InvalidArgument(
            f"[service] tokens is {tokens}: give 1 or more, together with replicas=(fewest, most)"
        )
    if imbalance is not None and imbalance < 1:
        raise InvalidArgument(f"[service] imbalance is {imbalance}, must be 1 or more")
    each = limits or Limits()
    if options.get("api_key_file") is not None:
        options["api_key_file"] = user_path(options["api_key_file"]).resolve()
    adapters = options.get("adapters", {})
    options["adapters"] = {name: _at_full_path(given) for name, given in adapters.items()}
    of_each = Options(
        models=[user_path(x).resolve() for x in models], devices=devices, threads=threads,
        limits=each, deadline=deadline, drain=drain, collect_seldom=True, **options,
    )  # fmt: skip
    given: dict[str, Any] = {
        "name": "aggml",
        # Requests wait for a slot in the replica, which answers 503 when its queue is full.
        "max_ongoing_requests": each.sequences + each.max_waiting,
        "graceful_shutdown_timeout_s": drain,
        "ray_actor_options": {"num_cpus": threads, **_actor(resources or {})},
        **_scaling_options(fewest, most, each.sequences, tokens),
    }
    bound: Application
    if most == 1:
        # The application is built in the replica, because a model cannot be sent there.
        alone = serve.ingress(lambda: application(of_each))(Replica)
        bound = serve.deployment(**given)(alone).bind()
        return bound
    router = RequestRouterConfig(
        request_router_class=cast("Any", "aggml.ray.router:ByPrefix"),
        request_router_kwargs={"imbalance": imbalance or max(1, each.sequences // 2)},
    )
    behind = serve.deployment(**given, request_router_config=router)(Behind).bind(of_each)
    bound = serve.deployment(
        name="front",
        max_ongoing_requests=most * (each.sequences + each.max_waiting),
        graceful_shutdown_timeout_s=drain,
        # On the head node, which has Serve's controller and Ray's own state: if that node dies,
        # everything ends in any case.
        ray_actor_options={"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}},
    )(serve.ingress()(Front)).bind(behind)
    return bound


def _at_full_path(given: Any) -> Any:  # noqa: ANN401 a path, or a path and a scale
    """An adapter whose path is the same in every process."""
    if isinstance(given, (tuple, list)):
        path, scale = given
        return user_path(path).resolve(), scale
    return user_path(given).resolve()


def _scaling_options(fewest: int, most: int, slots: int, tokens: int | None) -> dict[str, Any]:
    """Ray Serve's options for the number of replicas."""
    if fewest == most:
        return {"num_replicas": most}
    config: dict[str, Any] = {
        "min_replicas": fewest, "max_replicas": most, "target_ongoing_requests": slots,
    }  # fmt: skip
    if tokens is not None:
        config["policy"] = {
            "policy_function": "aggml.ray.scaling:ByTokens",
            "policy_kwargs": {"tokens": tokens, "requests": slots},
        }
    return {"autoscaling_config": config}


def build(given: dict[str, Any]) -> Application:
    """`service` for a configuration file of Ray Serve: ``import_path: aggml.ray.replicas:build``.

    Args:
        given: ``args`` of the file: arguments of `service`, and of `Limits` under ``limits``.
    """
    limits = Limits(**given.get("limits", {}))
    replicas = given.get("replicas", 1)
    others = {k: v for k, v in given.items() if k not in {"limits", "replicas", "models"}}
    return service(
        given["models"],
        replicas=tuple(replicas) if isinstance(replicas, list) else replicas,
        limits=limits,
        **others,
    )


def _actor(resources: dict[str, float]) -> dict[str, Any]:
    """Resources as options of a Ray actor."""
    named = {"GPU": "num_gpus", "memory": "memory"}
    found: dict[str, Any] = {named[k]: v for k, v in resources.items() if k in named}
    return found | {"resources": {k: v for k, v in resources.items() if k not in named}}
