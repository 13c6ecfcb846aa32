# SPDX-License-Identifier: Apache-2.0
"""Runs a Triton server on a model repository.

    recsys-recipes serve --repository REPO

By default it listens for HTTP on a free port of 127.0.0.1. It prints its addresses when the models
are loaded, and the reason if one cannot be loaded. Ctrl-C or SIGTERM stops it. A server that dies
is restarted, and a model with a dead instance is loaded again. Arguments after -- are passed on to
tritonserver.
"""

import dataclasses
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from recsys import program
from recsys.flags import values_from_flags
from recsys.interruption import StopRequest
from recsys.serve.server.health import HealthEndpoint
from recsys.serve.server.install import python_with_server
from recsys.serve.server.ports import url_host
from recsys.serve.server.process import (
    LOG_FOLDER_NAME,
    ServerSettings,
    TritonServer,
    raise_file_limit,
)
from recsys.serve.server.supervisor import Supervisor, SupervisorSettings
from recsys.settings import section_from_dict, setting


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """Settings of only this program."""

    log_file: Path | None = setting(
        None,
        "Log of the server; by default in the temporary folder, and removed after a stop without "
        "an error",
    )


SECTIONS: dict[type, str] = {
    ServerSettings: "server",
    SupervisorSettings: "supervision",
    ServeOptions: "program",
}
"""Sections of the flags -> their headings."""


def run(flag_values: flags.FlagValues, arguments: Sequence[str], words: Sequence[str]) -> int:
    """Runs the server until a signal; returns the exit status.

    Args:
        flag_values: the parsed flags.
        arguments: those for the server.
        words: the whole command line, for the Python of another environment that has the server.
    """
    values, _ = values_from_flags(flag_values, SECTIONS)
    options = section_from_dict(SupervisorSettings, values)
    settings = section_from_dict(ServerSettings, values | {"arguments": tuple(arguments)})
    log_file = section_from_dict(ServeOptions, values).log_file
    if (python := python_with_server()) is not None:
        # -P: the current folder may have modules that would shadow others.
        os.execv(python, [str(python), "-P", "-m", "recsys_recipes", "serve", *words[1:]])
    raise_file_limit()
    # It listens before the other ports are drawn: one of them could be its port otherwise.
    health = HealthEndpoint(settings.host, options.health_port)
    settings = settings.with_ports()  # the same ports after each restart
    temporary = None
    if log_file is None:
        temporary = Path(tempfile.mkdtemp(prefix=LOG_FOLDER_NAME.format(pid=os.getpid())))
        log_file = temporary / "server.log"
    health_url = f"http://{url_host(settings.host)}:{health.port}/healthz"

    def print_addresses(server: TritonServer) -> None:
        http = f"HTTP http://{server.http_url}  " if server.http_url else ""
        grpc = f"gRPC {server.grpc_url}  " if server.grpc_url else ""
        program.print_line(
            f"{http}{grpc}metrics http://{server.metrics_url}/metrics  health {health_url}"
        )
        if grpc and is_ended_by_cancelled_calls(core := server.core()):
            program.print_line(
                "warning: gRPC clients that cancel calls, for example by a deadline, can end this "
                f"server (core {core}; fixed in 2.58, release 25.05); HTTP clients cannot"
            )
        program.print_line(f"log {server.log.file}\nReady. Ctrl-C stops it.")

    with StopRequest() as stop, health:
        program.print_line(f"Loading {settings.repository} (health {health_url}) ...")
        say = program.print_with_flags
        supervisor = Supervisor(
            settings, options, log_file, health, say, lambda: bool(stop.signal_name)
        )
        supervisor.run(print_addresses)
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)
    return 0


def is_ended_by_cancelled_calls(core: str) -> bool:
    """Returns True if a version of Triton has the gRPC bugs that release 25.05 fixed."""
    numbers = core.split(".")
    return all(map(str.isdecimal, numbers[:2])) and tuple(map(int, numbers[:2])) < (2, 58)


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments: list[str] = []
    return program.run_command(
        lambda values: run(values, arguments, argv),
        program.new_flags(SECTIONS),
        argv,
        __doc__,
        arguments=arguments,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
