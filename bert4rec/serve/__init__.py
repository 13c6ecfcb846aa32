# SPDX-License-Identifier: Apache-2.0
"""Export of a BERT4Rec checkpoint, and serving of the exported network."""
