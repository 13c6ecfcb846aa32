# SPDX-License-Identifier: Apache-2.0
"""`config` auto: settings that follow from the histories, and a length that fits a budget."""
