# SPDX-License-Identifier: Apache-2.0
"""Ends a server whose supervisor was killed.

A shell waits for the end of a pipe that this process alone holds open. A signal of the kernel for a
dead parent (PR_SET_PDEATHSIG) would reach the server, but none of its Python instances.
"""

import subprocess

_SCRIPT = 'read -r _; kill -9 "-$1"; rm -rf -- "/dev/shm/$2"* "$3"'


def start_guard(group: int, shm_prefix: str, folder: str) -> "subprocess.Popen[bytes]":
    """Starts a process that kills a group when this one dies.

    Args:
        group: id of the process group.
        shm_prefix: of its segments in /dev/shm, which are removed.
        folder: to remove.
    """
    return subprocess.Popen(
        ["sh", "-c", _SCRIPT, "recipes-guard", str(group), shm_prefix, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what ends our process group leaves it alone
    )
