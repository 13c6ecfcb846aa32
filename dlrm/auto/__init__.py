# SPDX-License-Identifier: Apache-2.0
"""`preset` auto: chooses settings by the dataset and by a race on the validation split."""
