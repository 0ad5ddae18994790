"""``connect``: Ray, the workers, and the folder they share."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from taurank._checks import check_integer
from taurank._threads import worker_count
from taurank._types import Codes
from taurank.cluster.log import ClusterLog, read_log
from taurank.cluster.pool import WorkerPool, require_ray
from taurank.data.files import atomic_folder, check_local, known_kind, temporary_folder
from taurank.errors import InputError, first_line, plural
from taurank.learners import Learner
from taurank.learners.recommend import Request

USERS_PER_FILE = 1 << 16
FREE_SECONDS = 30.0  # the workers of a program that was killed take a moment to end


class Cluster:
    """A connection to a pool of workers."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool

    def __repr__(self) -> str:
        return f"Cluster({len(self.pool)} workers, storage '{self.pool.storage}')"

    def read_log(
        self, path: str | os.PathLike[str], users: Any = None, items: Any = None, times: Any = None
    ) -> ClusterLog:
        """A log from Parquet (a file, a glob or a folder that all machines reach), for use in this connection.

        The workers read every row once to check it and to build the catalog; the arguments are those of ``Log.read``.
        Afterwards the rows stay in their files until a fit or an evaluation reads what it needs.
        """
        return read_log(self.pool, path, (users, items, times))

    def write_recommendations(
        self, learner: Learner, folder: str | os.PathLike[str], users: Any = None, k: int = 10, *,
        history: Any = None, **options: Any,
    ) -> int:  # fmt: skip
        """``learner.write_recommendations`` by all workers, into a folder of Parquet files; the number of rows.

        The folder is there in full or not at all.
        """
        if known_kind(Path(folder)):
            raise InputError(f"'{folder}' is the name of a file, but a cluster writes a folder; name one.")
        request = Request(learner._serving(history, None), k, threads=1, **options)  # a worker is one core
        wanted = users if history is None or users is not None else history.users.values
        codes, ids = request.locate(wanted)
        with atomic_folder(folder) as temporary:
            shared, tasks = self.pool.put(request), []
            for number, low in enumerate(range(0, max(len(codes), 1), USERS_PER_FILE)):
                part = slice(low, low + USERS_PER_FILE)
                some = None if wanted is None else ids[part]
                tasks.append((temporary / f"part-{number:05d}.parquet", codes[part], some, shared))
            return sum(self.pool.map(_write_file, tasks))


def _write_file(path: Path, codes: Codes, ids: pa.Array | None, request: Request) -> int:
    """One file, for users at these positions (``ids`` None: all are known); the number of rows."""
    codes = np.array(codes)
    ids = request.learner.users.decode(codes) if ids is None else ids
    return request.write(path, request.batches_of(codes, ids))


@contextmanager
def connect(
    address: str | None = None, workers: int | None = None, *, storage: str | os.PathLike[str] | None = None
) -> Iterator[Cluster]:
    """Connect to a Ray cluster, start ``workers`` processes on it, and end them with the block.

    Parameters
    ----------
    address : None starts Ray on this machine for the time of the block, with token authentication; "auto" joins the
        cluster that this machine belongs to; "ray://host:10001" reaches one from outside (it needs ray[client])
    workers : how many (None: one for each free core); changes the speed, never a bit of a result
    storage : a folder that all machines reach, for models until they are saved; on one machine it may be left out

    Examples
    --------
    >>> import taurank as tr
    >>> with tr.cluster.connect(workers=2) as cluster:  # doctest: +SKIP
    ...     log = cluster.read_log("log/")
    ...     model = tr.DLCE(random_state=0).fit(log)
    ...     model.save("model")
    """
    if address is None:
        _prepare_own_ray()
    ray = require_ray()
    if workers is not None:
        check_integer("workers", workers)
    with ExitStack() as stack:
        if not ray.is_initialized():
            _start(ray, address, workers)
            stack.callback(ray.shutdown)
        count = _free_cores(ray, workers)
        folder = stack.enter_context(temporary_folder(_storage(ray, storage)))
        pool = WorkerPool(count, folder)
        stack.callback(pool.close)
        yield Cluster(pool)


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


def _prepare_own_ray() -> None:
    """Keep others out of a Ray of ours, and give it the priority of any program. Ray reads this when imported."""
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # else it listens on all interfaces
        if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":  # else any local user could run code in it
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of calls whose results nobody asks for any more


def _start(ray: Any, address: str | None, workers: int | None) -> None:
    options: dict[str, Any] = {"address": address}
    if address is None:
        cores = max(workers or 0, worker_count(None))
        options = {"address": "local", "num_cpus": cores, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    else:
        _check_reachable(address)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its FutureWarnings
            ray.init(log_to_driver=False, logging_level="ERROR", **options)
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
