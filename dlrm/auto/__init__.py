# SPDX-License-Identifier: Apache-2.0
"""`preset` auto: settings that follow from the dataset, and a race of them on validation."""
