# SPDX-License-Identifier: Apache-2.0
"""Canary: sends a fraction of the requests to another version."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator

from recsys.errors import UserError
from recsys.serve.client.connection import Endpoint
from recsys.serve.client.requests import Arrays

_HASH_BYTES = 8


@contextlib.contextmanager
def canary(
    endpoint: Endpoint, version: int, fraction: float
) -> Iterator[Callable[[Arrays], Endpoint]]:
    """Connects to two versions and yields a function that chooses one for each request.

    Args:
        endpoint: connection to the model; its version gets the other requests. By default that is
            the highest served version other than the canary.
        version: the canary, the version to try.
        fraction: fraction of the requests, from 0 to 1; always the same requests.

    Raises:
        UserError: no other version is served.
        EndpointError: a version is not served.
    """
    others = [served for served in endpoint.served_versions if served != version]
    if not others:
        raise UserError(
            f"`canary_version` {version}: no other version is served; "
            "`recsys-recipes deploy` with `version_policy` latest:2 serves two",
            settings=("canary_version", "version_policy"),
        )
    with (
        endpoint.again(endpoint.version or str(max(others))) as main,
        endpoint.again(str(version)) as tried,
    ):
        yield lambda request: tried if _position(request) < fraction else main


def _position(request: Arrays) -> float:
    """Hashes the values of a request to a number in [0, 1)."""
    digest = hashlib.blake2b(digest_size=_HASH_BYTES)
    for name in sorted(request):
        array = request[name]
        strings = array.dtype.hasobject
        digest.update(repr(array.tolist()).encode() if strings else array.tobytes())
    return int.from_bytes(digest.digest(), "big") / (1 << 8 * _HASH_BYTES)
