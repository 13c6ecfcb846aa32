# SPDX-License-Identifier: Apache-2.0
"""Raw logs to datasets on disk. Nothing here imports torch."""
