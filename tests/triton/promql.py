# SPDX-License-Identifier: Apache-2.0
"""Queries of the alert rules and the dashboard, and the metrics that they select."""

import json
import re

import promql_parser
import yaml

from tests.harness import REPOSITORY

OPERATIONS = REPOSITORY / "triton" / "operations"
SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
GRAFANA = {"$instance": ".*", "$model": ".*", "$__rate_interval": "1m", "$__range": "1h"}
"""Variables of the dashboard -> what Grafana puts in their places."""


def rules():
    return [
        rule
        for group in yaml.safe_load((OPERATIONS / "alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    ]


def dashboard():
    return json.loads((OPERATIONS / "dashboard.json").read_text())


def queries():
    """Returns all queries: name -> PromQL."""
    found = {rule["alert"]: rule["expr"] for rule in rules()}
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for variable, value in GRAFANA.items():
                query = query.replace(variable, value)
            found[f"{panel['title']} {target['refId']}"] = query
    return found


def nodes(query):
    """Yields the nodes of a query's tree."""
    todo = [promql_parser.parse(query)]
    while todo:
        node = todo.pop()
        yield node
        for name in ("lhs", "rhs", "expr", "vector_selector"):
            todo += [child for child in [getattr(node, name, None)] if child is not None]
        todo += getattr(node, "args", [])


def selectors(query):
    """Returns (metric, matchers) of each selector."""
    return [
        (node.name, node.matchers.matchers)
        for node in nodes(query)
        if isinstance(node, promql_parser.VectorSelector)
    ]


def grouping_labels(query):
    """Returns the labels that a query groups or matches by."""
    found = set()
    for node in nodes(query):
        modifier = getattr(node, "modifier", None)
        found.update(getattr(modifier, "labels", []))
        found.update(getattr(getattr(modifier, "matching", None), "labels", []))
    return found


def samples(text):
    """Parses Prometheus' text format into (metric, labels)."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    parsed = [SAMPLE.fullmatch(line) for line in lines]
    assert None not in parsed, lines[parsed.index(None)]
    return [(match[1], dict(LABEL.findall(match[2] or ""))) for match in parsed]


def selects(metric, matchers, sample):
    """Tells if a selector takes a sample."""
    name, labels = sample
    return name == metric and all(_holds(matcher, labels) for matcher in matchers)


def _holds(matcher, labels):
    value = labels.get(matcher.name, "")
    op = promql_parser.MatchOp
    if matcher.op in (op.Re, op.NotRe):
        return bool(re.fullmatch(matcher.value, value)) == (matcher.op == op.Re)
    return (value == matcher.value) == (matcher.op == op.Equal)
