# SPDX-License-Identifier: Apache-2.0
"""Canary: a fraction of the requests goes to another version."""

import hashlib
from typing import Self

from recsys.errors import UserError
from recsys.serve.client.connection import Endpoint
from recsys.serve.client.requests import Arrays

_HASH_BYTES = 8


class Canary:
    """Connections to two versions; one gets a fraction of the requests.

    As a context manager it closes them.

    Args:
        endpoint: connection to the model; its version gets the other requests, by default the
            highest served one besides the canary.
        version: version that is tried.
        fraction: of the requests, from 0 to 1.

    Raises:
        UserError: no other version is served.
        EndpointError: a version is not served.
    """

    def __init__(self, endpoint: Endpoint, version: int, fraction: float) -> None:
        others = [served for served in endpoint.served_versions if served != version]
        if not others:
            raise UserError(
                f"`canary_version` {version}: no other version is served; "
                "`recsys-recipes deploy` with `version_policy` latest:2 serves two"
            )
        self._fraction = fraction
        self._main = endpoint.again(endpoint.version or str(max(others)))
        try:
            self._tried = endpoint.again(str(version))
        except BaseException:
            self._main.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._main.close()
        self._tried.close()

    def choose(self, request: Arrays) -> Endpoint:
        """Returns the connection for a request, by a hash of its values."""
        digest = hashlib.blake2b(digest_size=_HASH_BYTES)
        for name in sorted(request):
            array = request[name]
            strings = array.dtype.hasobject
            digest.update(repr(array.tolist()).encode() if strings else array.tobytes())
        number = int.from_bytes(digest.digest(), "big") / 2 ** (8 * _HASH_BYTES)
        return self._tried if number < self._fraction else self._main
