# SPDX-License-Identifier: Apache-2.0
"""A load program: mixed requests on a real server that changes and dies meanwhile."""
