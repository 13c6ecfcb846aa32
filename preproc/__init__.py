# SPDX-License-Identifier: Apache-2.0
"""Raw logs to datasets on disk. Nothing here imports torch."""

from recsys.interruption import end_plainly_while_importing

end_plainly_while_importing()
