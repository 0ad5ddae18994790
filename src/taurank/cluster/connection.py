"""``connect``: Ray, the workers, and the folder they share."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from taurank._checks import check_integer
from taurank._threads import worker_count
from taurank.cluster.pool import WorkerPool, require_ray
from taurank.data import remote
from taurank.data.files import check_local, temporary_folder
from taurank.errors import InputError, first_line, plural


class Cluster:
    """A connection: ``workers`` processes, and ``storage``, a folder that all machines reach."""

    def __init__(self, pool: WorkerPool, storage: Path) -> None:
        self.pool, self.storage = pool, storage
        self.open = True
        self._folders: list[Path] = []

    @property
    def workers(self) -> int:
        return len(self.pool)

    def __repr__(self) -> str:
        return f"Cluster({self.workers} workers, storage '{self.storage}')"

    def new_folder(self, name: str) -> Path:
        """An empty folder in the storage, for as long as the connection is open."""
        folder = self.storage / f"{name}-{os.getpid()}-{len(self._folders)}"
        folder.mkdir(parents=True)
        self._folders.append(folder)
        return folder

    def remove_folders(self) -> None:
        """Leave nothing in the storage; factors that are mapped from there can still be read on this machine."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def write_recommendations(self, request: Any, folder: Any, users: Any) -> int:
        from taurank.cluster.recommendations import write_recommendations

        return write_recommendations(self.pool, request, folder, users)


FREE_SECONDS = 30.0  # the workers of a program that was killed take a moment to end


@contextmanager
def connect(
    address: str | None = None, workers: int | None = None, *, storage: str | os.PathLike[str] | None = None
) -> Iterator[Cluster]:
    """Connect to a Ray cluster, start ``workers`` processes on it, and end them with the block.

    ``address`` None starts Ray on this machine for the time of the block, with token authentication; "auto" joins
    the cluster that this machine belongs to; "ray://host:10001" reaches one from outside (it needs ray[client]).
    ``workers`` (None: one for each free core) changes the speed, never a bit of a result. ``storage`` is a folder
    that all machines reach, for models until they are saved; on one machine it may be left out.
    """
    if address is None:
        _prepare_own_ray()
    ray = require_ray()
    if workers is not None:
        check_integer("workers", workers)
    if remote.engine() is not None:
        raise InputError("this process is connected to a cluster already; leave the first `with connect(…)` block.")
    with ExitStack() as stack:
        if not ray.is_initialized():
            _start(ray, address, workers)
            stack.callback(ray.shutdown)
        count = _free_cores(ray, workers)
        folder = _storage(ray, storage)
        place = folder if folder is not None else stack.enter_context(temporary_folder())
        pool = WorkerPool(count)
        cluster = Cluster(pool, place)
        stack.callback(cluster.remove_folders)
        stack.callback(pool.close)
        remote.set_engine(cluster)
        try:
            yield cluster
        finally:
            remote.set_engine(None)
            cluster.open = False


def _free_cores(ray: Any, workers: int | None) -> int:
    """How many workers to start: those asked for, else one for each free core. Ray itself would wait forever."""
    began, wanted, printed = time.monotonic(), workers or 1, False
    while True:
        cores, free = (int(count().get("CPU", 0)) for count in (ray.cluster_resources, ray.available_resources))
        if free >= wanted:
            return workers or free
        if cores < wanted:
            raise InputError(f"{wanted} workers need as many cores, and the cluster has {cores}; ask for fewer.")
        waited = time.monotonic() - began
        if waited > 1.0 and not printed and sys.stderr.isatty():
            print(f"Waiting for {plural(wanted, 'free core')} ({free} of {cores} are free) ...", file=sys.stderr)
            printed = True
        if waited > FREE_SECONDS:
            raise InputError(
                f"{wanted} workers need as many free cores, and {free} of the cluster's {cores} are free; "
                "ask for fewer, or wait until others have finished."
            )
        time.sleep(0.2)


def current() -> Cluster:
    """The open connection."""
    engine = remote.engine()
    if not isinstance(engine, Cluster):
        raise InputError("no cluster is connected; use `with taurank.cluster.connect(…):` around this.")
    return engine


def _prepare_own_ray() -> None:
    """Keep others out of a Ray of ours, and give it the priority of any program. Ray reads this when imported."""
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # else it listens on all interfaces
        if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":  # else any local user could run code in it
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_worker_niceness", "0")


def _start(ray: Any, address: str | None, workers: int | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        cores = max(workers or 0, worker_count(None))
        options |= {
            "address": "local",
            "num_cpus": cores,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
    else:
        options["address"] = address
        _check_reachable(address)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its FutureWarnings
            ray.init(**options)
    except Exception as error:  # an unreachable address, a wrong token, another version of Ray or Python
        raise InputError(f"Ray cannot be reached at {address or 'this machine'!r}: {first_line(error)}.") from error


def _check_reachable(address: str) -> None:
    """Ray itself would try for a minute and a half."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # such as "auto"
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"nothing answers at {address!r} ({first_line(error)}); is Ray running there, and is the port open?"
        ) from error


def _storage(ray: Any, storage: str | os.PathLike[str] | None) -> Path | None:
    if storage is None:
        machines = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        if len(machines) > 1:
            raise InputError(
                f"the cluster has {len(machines)} machines; name a folder that all of them reach: connect(storage=…)."
            )
        return None
    check_local(storage)
    folder = Path(storage).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the storage '{storage}' cannot be used: {error.strerror}.") from error
    return folder
