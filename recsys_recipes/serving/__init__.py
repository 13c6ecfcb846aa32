# SPDX-License-Identifier: Apache-2.0
"""Programs that deploy, serve and ask; `triton/` has scripts that run them by path."""
