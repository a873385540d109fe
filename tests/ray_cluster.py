"""Clusters of several nodes, which are processes of this machine, for tests.

A module of tests that imports this one is skipped where Ray is not installed.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("ray.util", reason="Ray is not installed: pip install 'aggml[ray]'")

STORE = 128 << 20  # bytes of each node's object store
#: How often a node is started, at most. Ray gives the processes of a node 15 s to begin, which
#: cannot be changed; on two cores with thirty busy processes they take 10 to 20.
STARTS = 4


def cluster(folder: Path, nodes: int = 2) -> Iterator[Any]:
    """A cluster whose nodes have 4 CPUs each, this process connected to it as a driver."""
    import ray
    from ray.cluster_utils import Cluster

    class PatientCluster(Cluster):
        def add_node(self, *args: Any, **options: Any) -> Any:
            for _ in range(STARTS - 1):
                try:
                    return super().add_node(*args, **options)
                except Exception as error:  # Ray has no class for it
                    if "timed out during startup" not in str(error):
                        raise
            return super().add_node(*args, **options)

    os.environ["AGGML_RAY_CACHE"] = str(folder / "cache")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    head: Any = {
        "num_cpus": 4,
        "object_store_memory": STORE,
        "include_dashboard": False,
        "resources": {"head": 8},
    }
    made: Any = PatientCluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes - 1):
            made.add_node(num_cpus=4, object_store_memory=STORE)
        ray.init(address=made.address, log_to_driver=False, logging_level=logging.ERROR)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        with warnings.catch_warnings():  # sockets that Ray's driver has left open
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@contextmanager
def served(application: Any) -> Iterator[str]:
    """The address of an application of Ray Serve, where every request finds it.

    Ray starts a proxy on each node that has a replica. All nodes are this machine and share the
    port, so that a request could reach a proxy that did not know its routes yet and answered 404.
    Therefore only the head node has a proxy here, and it is asked until it knows its routes.
    """
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    options = {"host": "127.0.0.1", "port": port}
    serve.start(proxy_location="HeadOnly", http_options=options)
    try:
        serve.run(application)
        health, missing = f"{url}/health", httpx.codes.NOT_FOUND
        # the proxy signals nothing when it learns its routes
        wait_until(lambda: httpx.get(health, timeout=300).status_code != missing, 400)
        yield url
    finally:
        serve.shutdown()  # type: ignore[no-untyped-call]


def replica_actor(replica: str) -> Any:
    """The actor of a replica of Ray Serve."""
    import ray

    names: Any = ray.util.list_named_actors(all_namespaces=True)
    for name in names:
        if replica in name["name"]:
            return ray.get_actor(name["name"], namespace=name["namespace"])
    raise AssertionError(f"no actor is called {replica}")


def store_in_use() -> float:
    """Bytes in use in all object stores together."""
    import ray

    have: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    left: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return have["object_store_memory"] - left["object_store_memory"]
