# SPDX-License-Identifier: Apache-2.0
"""Queries of the alert rules and the dashboard."""

import json

import yaml

from tests.harness import REPOSITORY

OPERATIONS = REPOSITORY / "triton" / "operations"
GRAFANA = {"$instance": ".*", "$model": ".*", "$__rate_interval": "1m", "$__range": "1h"}
"""Variables of the dashboard -> what Grafana puts in their places."""


def queries():
    """Returns (query, text with the labels that it shows) of each rule and panel."""
    (group,) = yaml.safe_load((OPERATIONS / "alerts.yaml").read_text())["groups"]
    found = [(rule["expr"], str(rule["annotations"])) for rule in group["rules"]]
    for panel in json.loads((OPERATIONS / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for variable, value in GRAFANA.items():
                query = query.replace(variable, value)
            found.append((query, target["legendFormat"].replace("{{", "{{ $labels.")))
    return found
