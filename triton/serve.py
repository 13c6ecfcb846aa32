# SPDX-License-Identifier: Apache-2.0
"""Runs a Triton server on a model repository.

    .venv-triton/bin/python triton/serve.py --repository REPO

It listens on free ports of 127.0.0.1 by default, prints them when all models are ready, or the
reason why one is not, and ends with Ctrl-C or SIGTERM.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import _triton_shadow  # noqa: F401  (before torch: keeps this folder from posing as the compiler)
from recsys.errors import as_flags
from recsys.serve.server.install import ServerError
from recsys.serve.server.process import ServerSettings, TritonServer
from recsys.train.interruption import StopRequest

_WATCH_S = 0.2


def argument_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--repository", type=Path, required=True, help="folder of models (triton/deployer.py)")
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 is every network")
    add("--http_port", type=int, default=0, help="0 takes a free one")
    add("--grpc_port", type=int, default=0, help="0 takes a free one")
    add("--metrics_port", type=int, default=0, help="0 takes a free one")
    add("--models", default="", help="names to load, with commas between; default: all")
    add("--poll_secs", type=int, default=0, help="look for new versions this often; 0: never")
    add("--threads", type=int, help="CPU threads of an instance; default: cores / instances")
    add(
        "--cache_mib", type=int, default=16, help="response cache, for models deployed with --cache"
    )
    add("--ready_timeout_s", type=float, default=300.0, help="give up loading after this long")
    add("--log_file", type=Path, help="log of the server; default: in the temporary folder")
    add("arguments", nargs="*", help="after --: arguments passed on to tritonserver")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the server until a signal; returns 1 if it fails."""
    options = argument_parser().parse_args(arguments)
    log_file = options.log_file
    if log_file is None:
        log_file = Path(tempfile.mkdtemp(prefix="recipes-serve-")) / "server.log"
    try:
        settings = ServerSettings(
            repository=options.repository,
            host=options.host,
            http_port=options.http_port,
            grpc_port=options.grpc_port,
            metrics_port=options.metrics_port,
            models=tuple(filter(None, options.models.split(","))),
            poll_secs=options.poll_secs,
            threads=options.threads,
            cache_mib=options.cache_mib,
            arguments=tuple(options.arguments),
        )
        with StopRequest() as stop, TritonServer(settings, log_file) as server:
            return serve(server, stop, options.ready_timeout_s)
    except ServerError as error:
        print(f"serve: {as_flags(str(error))}", file=sys.stderr)
        return 1


def serve(server: TritonServer, stop: StopRequest, ready_timeout_s: float) -> int:
    """Waits for the models, prints their address, waits for a signal."""
    print(f"Loading {server.settings.repository} ...", flush=True)
    server.wait_ready(ready_timeout_s, lambda: stop.signal_name is not None)
    if stop.signal_name is None:
        for model in server.models():
            print(f"  {model['name']} version {model.get('version', '-')}: {model.get('state')}")
        print(
            f"HTTP http://{server.http_url}  gRPC {server.grpc_url}  metrics "
            f"http://{server.metrics_url}/metrics\nlog {server.log_file}\n"
            "Ready. Ctrl-C stops it.",
            flush=True,
        )
    while stop.signal_name is None:
        if server.poll() is not None:
            raise ServerError(f"the server ended by itself; its log is {server.log_file}")
        time.sleep(_WATCH_S)
    print(f"{stop.signal_name}: stopping (a client that keeps its connection open may delay it)")
    return 0 if server.stop() == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
