# SPDX-License-Identifier: Apache-2.0
"""Ends a server whose supervisor was killed.

A shell waits for the end of a pipe that this process alone holds open. A signal of the kernel for a
dead parent (PR_SET_PDEATHSIG) would reach the server, but none of its Python instances.
"""

import subprocess

_SCRIPT = 'read -r _; kill -9 "-$1"; rm -rf -- "/dev/shm/$2"* "$3"'


class Guard:
    """A process that kills a process group when this one dies.

    Args:
        group: id of the process group.
        shm_prefix: prefix of its segments in /dev/shm, which are removed.
        folder: folder to remove.
    """

    def __init__(self, group: int, shm_prefix: str, folder: str) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", _SCRIPT, "recipes-guard", str(group), shm_prefix, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends our process group leaves it alone
        )

    def dismiss(self) -> None:
        """Ends the guard, which then does nothing."""
        self._process.kill()
        self._process.communicate()
