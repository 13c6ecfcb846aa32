# SPDX-License-Identifier: Apache-2.0
"""The model `blend`: a trained model of ratings and a counted one, added."""
