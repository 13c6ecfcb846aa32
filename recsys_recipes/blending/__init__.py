# SPDX-License-Identifier: Apache-2.0
"""Two models, added: `blend`, a trained and a counted one of ratings; in `clicks` two of clicks."""
