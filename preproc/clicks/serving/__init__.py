# SPDX-License-Identifier: Apache-2.0
"""Raw rows of a request, read by the rules of a dataset."""
