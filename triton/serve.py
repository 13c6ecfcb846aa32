# SPDX-License-Identifier: Apache-2.0
"""Runs a Triton server on a model repository.

    .venv-triton/bin/python triton/serve.py --repository REPO

It listens on free ports of 127.0.0.1 by default, prints them when all models are ready, or the
reason why one is not, and ends with Ctrl-C or SIGTERM. Arguments after -- are passed on to
tritonserver.
"""

import dataclasses
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from absl import flags

import _triton_shadow  # noqa: F401  (before torch: keeps this folder from posing as the compiler)
from recsys import program
from recsys.errors import FAILED
from recsys.flags import define_flags as define_settings
from recsys.flags import values_from_flags
from recsys.serve.server.install import ServerError
from recsys.serve.server.process import ServerSettings, TritonServer
from recsys.settings import section_from_dict, setting
from recsys.train.interruption import StopRequest

_WATCH_S = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """Settings of this program alone."""

    ready_timeout_s: float = setting(300.0, "Give up loading after this long")
    log_file: Path | None = setting(None, "Log of the server; by default in the temporary folder")


SECTIONS: dict[type, str] = {ServerSettings: "server", ServeOptions: "program"}
"""Sections of the flags -> their headings."""


def define_flags() -> flags.FlagValues:
    """Returns the flags of this command, unparsed."""
    values = program.new_flags()
    define_settings(values, SECTIONS)
    return values


def run(flag_values: flags.FlagValues, arguments: Sequence[str]) -> int:
    """Runs the server until a signal; returns 1 if it fails."""
    values, _ = values_from_flags(flag_values, SECTIONS)
    options = section_from_dict(ServeOptions, values)
    settings = section_from_dict(ServerSettings, values | {"arguments": tuple(arguments)})
    log_file = options.log_file
    if log_file is None:
        log_file = Path(tempfile.mkdtemp(prefix="recipes-serve-")) / "server.log"
    with StopRequest() as stop, TritonServer(settings, log_file) as server:
        return serve(server, stop, options.ready_timeout_s)


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments: list[str] = []
    return program.run_command(
        lambda values: run(values, arguments), define_flags(), argv, __doc__, arguments=arguments
    )


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
    return 0 if server.stop() == 0 else FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv))
