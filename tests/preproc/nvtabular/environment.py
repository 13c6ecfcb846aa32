# SPDX-License-Identifier: Apache-2.0
"""The real NVTabular for tests: starting it takes seconds, so that one process serves many runs."""

from collections import Counter

from preproc.nvtabular.process import NvtabularProcess


def share(process: NvtabularProcess, module: object, monkeypatch) -> Counter[str]:
    """Makes an engine use a running process; returns the requests that it sends, counted."""
    requests: Counter[str] = Counter()

    class Shared:
        def __init__(self, *_: object) -> None:
            self.version, self.device = process.version, process.device

        def __enter__(self) -> "Shared":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def call(self, request, on_progress) -> None:
            requests[request["do"]] += 1
            process.call(request, on_progress)

    monkeypatch.setattr(module, "NvtabularProcess", Shared)
    return requests
