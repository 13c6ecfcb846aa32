# SPDX-License-Identifier: Apache-2.0
"""Explains why a cluster starts no executor.

Spark itself waits forever and logs nothing. A standalone master reports its workers over the
driver's RPC connection, as it does for its web page. For YARN and Kubernetes the message names
their tools.
"""

import dataclasses
import socket
from typing import Any

from preproc.files.errors import PreprocError
from preproc.spark.settings import parse_spark_size
from recsys.sizes import format_bytes

_DEFAULT_EXECUTOR_MEMORY = "1g"
_CONNECT_S = 10
_MESSAGES = "org.apache.spark.deploy.DeployMessages$"


@dataclasses.dataclass(frozen=True, slots=True)
class Worker:
    """Cores and memory (bytes) of a standalone cluster's worker, total and free."""

    cores: int
    memory: int
    free_cores: int
    free_memory: int


def check_master(master: str) -> None:
    """Refuses a standalone master if none of its addresses accepts a connection.

    Raises:
        PreprocError: no master answers; Spark itself would retry for a minute and print Java's
            error.
    """
    if not master.startswith("spark://"):
        return
    reason = ""
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        except (OSError, ValueError) as error:
            reason = str(error)
        else:
            return
    raise PreprocError(
        f"no Spark master answers at {master} ({reason}); start it "
        "(sbin/start-master.sh), or name another `master`",
        setting="master",
    )


def explain(context: Any) -> str:
    """Explains why a connected SparkContext has no executor, as far as is known."""
    master = context.master
    conf = context.getConf()
    memory = conf.get("spark.executor.memory", _DEFAULT_EXECUTOR_MEMORY)
    memory_bytes = parse_spark_size("spark.executor.memory", memory)
    cores = int(conf.get("spark.executor.cores", "1"))
    if master.startswith("yarn"):
        return (
            "YARN granted no container; see `yarn application -status "
            f"{context.applicationId}`, and request less than the queue's largest container"
        )
    if master.startswith("k8s://"):
        return "no executor pod started; see `kubectl get pods` and `kubectl describe pod`"
    if not master.startswith("spark://"):
        return "no task started"
    try:
        workers = standalone_workers(context, master)
    except Exception as error:  # noqa: BLE001  (Spark's inner interface; the report must not fail)
        return f"the workers of {master} could not be queried ({type(error).__name__})"
    return explain_workers(workers, cores, memory_bytes)


def explain_workers(workers: list[Worker], cores: int, memory: int) -> str:
    """Explains why no worker starts an executor of `cores` and `memory` bytes."""
    need = f"an executor needs {cores} core(s) and {format_bytes(memory)}"
    if not workers:
        return f"{need}; no worker is registered. Start workers, or check `master`"
    large = max(workers, key=lambda w: (w.memory, w.cores))
    if all(w.memory < memory or w.cores < cores for w in workers):
        return (
            f"{need}; the largest of {len(workers)} worker(s) has {large.cores} core(s) and "
            f"{format_bytes(large.memory)}. Lower `executor_memory` or `executor_cores`, or give "
            "the workers more"
        )
    if all(w.free_memory < memory or w.free_cores < cores for w in workers):
        return (
            f"{need}; the workers have that much, but other applications use it. Wait for them, or "
            "request less"
        )
    return (
        f"{need}, and a worker has that free, but no executor stays alive; see the logs of the "
        "workers (can they reach the driver? spark.driver.host)"
    )


def standalone_workers(context: Any, master: str) -> list[Worker]:
    """Requests the live workers of a standalone master."""
    jvm = context._jvm
    loader = jvm.Thread.currentThread().getContextClassLoader()

    def java_class(name: str) -> Any:
        return jvm.java.lang.Class.forName(name, True, loader)

    request = java_class(_MESSAGES + "RequestMasterState$").getField("MODULE$").get(None)
    answer = jvm.scala.reflect.ClassTag.apply(java_class(_MESSAGES + "MasterStateResponse"))
    rpc = jvm.org.apache.spark.SparkEnv.get().rpcEnv()
    address = jvm.org.apache.spark.rpc.RpcAddress.fromSparkURL(master.split(",")[0])
    state = rpc.setupEndpointRef(address, "Master").askSync(request, answer)
    return [
        Worker(w.cores(), w.memory() << 20, w.coresFree(), w.memoryFree() << 20)
        for w in state.workers()
        if w.isAlive()
    ]
