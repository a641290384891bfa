"""Packs on a Dask cluster: the local executor, once in each thread of each Dask worker.

A Dask worker runs a pack in a worker process of its own, as the local executor does, with the same limits of time and
memory. So a method that dies or hangs never takes the Dask worker down, and its status says why. The tables come back
over the wire as the bytes of their files and are stored by this process: the workers need not see the result folder. A
Dask worker that is lost all the same has its packs run elsewhere, by Dask first and then in halves.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import secrets
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bilevelbench.discovery.registry import Registry, registry
from bilevelbench.errors import BilevelbenchError, InvalidInput
from bilevelbench.execute.executor import (
    Done,
    Execution,
    Executor,
    as_json,
    from_json,
    refuse_objects,
    store_result,
)
from bilevelbench.execute.local import LocalExecutor
from bilevelbench.execute.retry import ATTEMPTS, RetryPolicy, lost
from bilevelbench.plan.packs import Pack
from bilevelbench.processes import ignore_sigint_in_children
from bilevelbench.results.packs import pack_paths, read_record, read_tables
from bilevelbench.results.store import Store

try:
    import dask
    from distributed import Client, KilledWorker, LocalCluster, Worker, WorkerPlugin, as_completed, get_worker
    from distributed.comm.core import connect
except ImportError as missing:
    raise InvalidInput(f'--executor dask needs Dask ({missing}); pip install "bilevelbench[dask]"') from None

#: Seconds to reach a scheduler.
_CONNECT = 8

#: What a Dask worker says: what became of the pack and the files to store (of several packs if it was split), as plain
#: data; or a sentence.
Answer = dict[str, list[Any]] | str


class DaskExecutor(Executor):
    """On the cluster of `scheduler`, an address; without one in `jobs` Dask workers on this machine, over loopback."""

    def __init__(self, execution: Execution, registry: Registry) -> None:
        super().__init__(execution, registry)
        self._stack = ExitStack()
        self._client: Client | None = None
        self._crew = ""

    @property
    def capacity(self) -> int:
        return self.execution.workers if self.execution.scheduler is None else 1  # a cluster may grow at any time

    @classmethod
    def check(cls, execution: Execution) -> None:
        if execution.timed:
            raise InvalidInput("--timed runs one trial at a time on this machine; leave out --executor dask")
        if execution.jobs is not None and execution.scheduler is not None:
            raise InvalidInput(
                f"--jobs {execution.jobs}: the cluster at {execution.scheduler} has workers of its own; leave out --jobs"
            )
        if execution.jobs == 0:
            raise InvalidInput(
                "--jobs 0 runs in this process; give --jobs 1 or more Dask workers, or leave out --executor"
            )

    def where(self, packs: int) -> str:
        if self.execution.scheduler is not None:
            return f"on the Dask cluster at {self.execution.scheduler}"
        jobs = min(self.execution.workers, packs)
        return f"in {jobs} Dask worker{'' if jobs == 1 else 's'}"

    def close(self, at_once: bool) -> None:
        self._stack.close()
        self._client = None

    def __call__(self, packs: Sequence[Pack], store: Store) -> Iterator[Done]:
        refuse_objects(packs)
        if not packs:
            return
        try:
            yield from self._run(self._started(len(packs)), packs, store)
        except BaseException:  # also when the caller stops listening: nobody computes for nobody
            self.close(at_once=True)
            raise

    def _started(self, packs: int) -> Client:
        """The client of the cluster, which the first call starts or connects to."""
        if self._client is None:
            if self.execution.scheduler is None:
                client = self._stack.enter_context(_local(min(self.execution.workers, packs)))
            else:
                client = self._stack.enter_context(_connected(self.execution.scheduler))
            limits = Execution(
                jobs=1, memory=self.execution.memory, grace=self.execution.grace, isolate=self.execution.isolate
            )
            self._crew = self._stack.enter_context(_crew(client, limits))
            self._client = client
        wanted, cluster = min(self.execution.workers, packs), self._client.cluster  # None if it is not ours
        if cluster is not None and wanted > len(cluster.plan):
            cluster.scale(wanted)
        return self._client

    def _run(self, client: Client, packs: Sequence[Pack], store: Store) -> Iterator[Done]:
        waiting: dict[str, Pack] = {}
        ready = as_completed(loop=client.loop)
        retry = RetryPolicy()

        def submit(pack: Pack) -> None:
            # A key of its own: under a common one, Dask would hand out the answer of an earlier attempt.
            key = f"bilevelbench-{secrets.token_hex(8)}"
            waiting[key] = pack
            ready.add(client.submit(work_there, as_json(pack), self._crew, key=key))

        for pack in packs:
            submit(pack)
        for future in ready:
            pack = waiting.pop(future.key)
            if future.cancelled():
                raise self._without_scheduler(len(packs))
            try:
                error = future.exception()
                answer: Any = None if error is not None else future.result()
            # it may also go while it hands over an answer
            except (OSError, CancelledError, asyncio.CancelledError) as broken:
                raise self._without_scheduler(len(packs)) from broken
            if error is None:
                yield from _stored(answer, store)
            elif isinstance(error, KilledWorker):
                again = retry.again(pack, killed=True)  # Dask blames also what only waited at a worker that died
                for part in again:
                    submit(part)
                if not again:
                    yield store_result(lost(pack[0], _loss(error)), pack, store, self.registry)
            else:
                raise InvalidInput(
                    f"the Dask workers cannot run a pack ({type(error).__name__}: {error}); install the same versions of "
                    "bilevelbench, its plugins and Dask there as here"
                )
            future.release()

    def _without_scheduler(self, packs: int) -> BilevelbenchError:
        return BilevelbenchError(
            f"the Dask scheduler was lost while packs ran {self.where(packs)}; what was finished is stored, and the same "
            "command continues from there when the scheduler is back"
        )


def _loss(error: KilledWorker) -> str:
    deaths = ATTEMPTS * (error.allowed_failures + 1)
    return f"was lost with its Dask worker {deaths} times, the last time at {error.last_worker.address}"


def _stored(answer: Answer, store: Store) -> Iterator[Done]:
    if isinstance(answer, str):
        raise InvalidInput(answer)
    for record, tables in answer["packs"]:
        store.place(record, tables)
    for done in answer["done"]:
        yield Done(**done)


# ---------------------------------------------------------------------------------------------------- the cluster


@contextmanager
def _local(jobs: int) -> Iterator[Client]:
    with tempfile.TemporaryDirectory(prefix="bilevelbench-dask-", ignore_cleanup_errors=True) as scratch:
        # Children that are started later ignore Ctrl-C as well, because a thread that is started here starts them. A
        # pack waits at the scheduler and not at a worker, which may die. Nobody looks at the profiles that Dask would
        # take of its workers a hundred times per second.
        quiet = {"distributed.scheduler.worker-saturation": 1.0, "distributed.worker.profile.enabled": False}
        with ignore_sigint_in_children(), dask.config.set(quiet):
            cluster = LocalCluster(
                n_workers=jobs,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": False},
                memory_limit=0,  # it would be that of the Dask worker, and the packs are in another process
                local_directory=scratch,
                silence_logs=logging.CRITICAL,  # we report deaths ourselves
            )
            client = Client(cluster)
        with cluster, client:
            yield client


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # we report a lost connection ourselves
    try:
        asyncio.run(asyncio.wait_for(_greet(address), _CONNECT))
        client = Client(address, timeout=_CONNECT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"no Dask scheduler answers at {address!r} ({error or type(error).__name__}); give its address as it prints "
            "it when it starts, such as tcp://192.0.2.1:8786, or leave --scheduler out"
        ) from None
    with client:
        yield client


async def _greet(address: str) -> None:
    """Before the client does, whose time limit does not hold for something that listens and never answers."""
    comm = await connect(address)
    comm.abort()


# ---------------------------------------------------------------------------------------------------- on a Dask worker


@contextmanager
def _crew(client: Client, limits: Execution) -> Iterator[str]:
    """The name of a `Crew` on each Dask worker, also on those that come later; at the end its processes go."""
    name = f"bilevelbench-{secrets.token_hex(8)}"  # two runs may share a cluster
    client.register_plugin(Crew(limits), name=name)
    try:
        yield name
    finally:
        with suppress(Exception):  # a cluster that is gone has no processes
            client.unregister_worker_plugin(name)


class Crew(WorkerPlugin):
    """The worker processes of a Dask worker: one for each of its threads, started when needed and kept for the next pack."""

    def __init__(self, limits: Execution) -> None:
        self.limits = limits

    def setup(self, worker: Worker) -> None:
        process = multiprocessing.current_process()
        if process.daemon:  # as Dask's nannies start their workers; only others may have processes of their own
            process.daemon = False
        self.own = threading.local()
        self.all: list[LocalExecutor] = []

    def teardown(self, worker: Worker) -> None:
        for executor in self.all:
            executor.close(at_once=True)

    def run(self, pack: Pack, store: Store) -> list[Done]:
        if not hasattr(self.own, "executor"):
            self.own.executor = LocalExecutor(self.limits, registry())
            self.all.append(self.own.executor)
        return list(self.own.executor([pack], store))


def work_there(dumps: list[dict[str, Any]], crew: str) -> Answer:
    """Run one pack on the Dask worker that this is called on."""
    worker = get_worker()
    ours = worker.plugins[crew]
    assert isinstance(ours, Crew)
    with tempfile.TemporaryDirectory(dir=worker.local_directory, ignore_cleanup_errors=True) as folder:
        try:
            done = ours.run(from_json(dumps), Store(folder))
            return {"done": [asdict(one) for one in done], "packs": list(_files(Path(folder)))}
        except BilevelbenchError as error:
            return f"Dask worker {worker.address}: {error}"


def _files(folder: Path) -> Iterator[tuple[dict[str, Any], list[bytes]]]:
    for path in pack_paths(folder):
        record = read_record(path)
        yield record, read_tables(path, record)
