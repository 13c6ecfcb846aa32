# SPDX-License-Identifier: Apache-2.0
"""Ports that a server can listen on, also after a restart."""

import random
import socket
from collections.abc import Iterable
from pathlib import Path

from recsys.serve.server.install import ServerError

_CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000


def url_host(host: str) -> str:
    """Returns a host as URLs spell it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def family_of(host: str) -> socket.AddressFamily:
    """Returns the address family of a host."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def check_port(host: str, name: str, port: int) -> None:
    """Refuses a port of another program, which would answer instead of the new server."""
    if error := _refusal(host, port, reuse=True):  # closed connections do not count
        raise ServerError(
            f"`{name}` {port}: cannot listen on {url_host(host)}:{port} ({error}); choose "
            "another port, or stop the program that is using it",
            setting=name,
        ) from error


def free_ports(host: str, names: Iterable[str]) -> dict[str, int]:
    """Returns a free port for each name.

    The ports lie outside the range that the system gives to connections. Otherwise a connection
    could take one during a restart. A drawn port is reserved until this process ends, because its
    server listens only seconds later, and another one that starts meanwhile must not draw it.

    Raises:
        ServerError: no program can listen on the host.
    """
    if error := _refusal(host, 0):
        raise ServerError(f"`host` {host}: cannot listen there: {error}", setting="host") from error
    below = int(_CONNECTIONS.read_text().split()[0]) if _CONNECTIONS.exists() else 32_768
    candidates = range(_LOWEST, below if below > 2 * _LOWEST else 1 << 16)
    shuffled = random.sample(candidates, len(candidates))
    drawn = (port for port in shuffled if not _refusal(host, port) and _reserve(port))
    return dict(zip(names, drawn, strict=False))


def _reserve(port: int) -> bool:
    """Reserves a port; returns False if a running process has reserved it.

    The reservation is an abstract socket name, which the kernel frees when the process ends.
    """
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0recsys-recipes port {port}")
    except OSError:
        mark.close()
        return False
    mark.detach()
    return True


def _refusal(host: str, port: int, *, reuse: bool = False) -> OSError | None:
    """Returns why no program can listen on a port; None if it is free."""
    try:
        with socket.socket(family_of(host), socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            probe.bind((host, port))
    except OSError as error:
        return error
    return None
