# SPDX-License-Identifier: Apache-2.0
"""Ports that a server can listen on, at later starts too."""

import contextlib
import random
import socket
from collections.abc import Iterable
from pathlib import Path

from recsys.serve.server.install import ServerError

_CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000


def url_host(host: str) -> str:
    """Returns a host for a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def address_family(host: str) -> socket.AddressFamily:
    """Returns the family of a host's address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def check_port(host: str, name: str, port: int) -> None:
    """Refuses a port that the server could not listen on.

    Another server there would answer for the new one until that gives up.
    """
    try:
        _bind(host, port, reuse=True)  # closed connections count not
    except OSError as error:
        raise ServerError(port_taken(host, name, port, error)) from error


def port_taken(host: str, name: str, port: int, reason: object) -> str:
    """Returns the message about a port that another program has."""
    return (
        f"`{name}` {port}: cannot listen on {url_host(host)}:{port} ({reason}); choose "
        "another port, or end the program that has it"
    )


def free_ports(host: str, names: Iterable[str]) -> dict[str, int]:
    """Returns a port for each name that nothing listens on.

    Not of those that the system gives to connections: one of these could have it at a restart.

    Raises:
        ServerError: no program can listen on the host.
    """
    try:
        _bind(host, 0)
    except OSError as error:
        raise ServerError(f"`host` {host}: cannot listen there: {error}") from error
    below = int(_CONNECTIONS.read_text().split()[0]) if _CONNECTIONS.exists() else 32_768
    candidates = range(_LOWEST, below) if below > 2 * _LOWEST else range(_LOWEST, 1 << 16)
    ports: dict[str, int] = {}
    tried = iter(random.sample(candidates, len(candidates)))
    for name in names:
        for port in tried:
            with contextlib.suppress(OSError):
                _bind(host, port)
                ports[name] = port
                break
    return ports


def _bind(host: str, port: int, *, reuse: bool = False) -> None:
    with socket.socket(address_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        probe.bind((host, port))
