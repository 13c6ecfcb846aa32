# SPDX-License-Identifier: Apache-2.0
"""Cases: a YAML file with a command, or a module with candidates."""
