# SPDX-License-Identifier: Apache-2.0
"""A Triton server on this machine: its process, installation and memory."""
