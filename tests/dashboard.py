"""Queries a Prometheus as the dashboard does, for tests/metrics.

python3 dashboard.py URL panels           every query of every panel returns data, within a minute
python3 dashboard.py URL variables        every variable of the dashboard has values
python3 dashboard.py URL alerts           every alert rule has been evaluated without an error, and none is active
python3 dashboard.py URL query EXPRESSION the expression returns data
"""

import json
import pathlib
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

DASHBOARD = pathlib.Path(__file__).parent.parent / "packaging/grafana/millstream.json"
DEADLINE_SECONDS = 60
# What Grafana substitutes.
VARIABLES = {"__rate_interval": "10s", "__range": "1h", "instance": ".*", "job": ".*"}


def api(url, path, **parameters):
    """The data of a reply. An invalid query raises an error with Prometheus's explanation."""
    address = f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}"
    try:
        with urllib.request.urlopen(address, timeout=10) as reply:
            document = json.load(reply)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{parameters}: {error.read().decode()}") from error
    assert document["status"] == "success", document
    return document["data"]


def query(url, expression):
    return api(url, "query", query=expression)["result"]


def substituted(expression):
    return re.sub(r"\$(\w+)", lambda found: VARIABLES[found[1]], expression)


def queries():
    """The title of a panel and an expression, for each query of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]
    assert len(found) > 30, found
    return found


def check_panels(url):
    waiting = queries()
    end = time.monotonic() + DEADLINE_SECONDS
    while waiting and time.monotonic() < end:
        waiting = [(title, expression) for title, expression in waiting if not query(url, substituted(expression))]
        time.sleep(0.5)
    return [f"no data: {title}: {substituted(expression)}" for title, expression in waiting]


def check_variables(url):
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    queried = [variable for variable in variables if variable["type"] == "query"]
    assert [variable["name"] for variable in queried] == ["instance", "job"]
    problems = []
    for variable in queried:
        series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
        values = api(url, f"label/{label}/values", **{"match[]": substituted(series)})
        print(variable["name"], values)
        if not values:
            problems.append(f"no values: {variable['name']}")
    return problems


def check_alerts(url):
    end = time.monotonic() + DEADLINE_SECONDS
    while True:
        rules = [rule for group in api(url, "rules")["groups"] for rule in group["rules"]]
        if rules and all(rule["health"] != "unknown" for rule in rules) or time.monotonic() > end:
            break
        time.sleep(0.5)
    assert rules, "no rules are loaded"
    bad = [rule for rule in rules if rule["health"] != "ok" or rule["state"] != "inactive"]
    return [f"{rule['name']}: {rule['health']}, {rule['state']}, {rule.get('lastError')}" for rule in bad]


def main():
    url, what, *arguments = sys.argv[1:]
    if what == "query":
        problems = [] if query(url, arguments[0]) else [f"no data: {arguments[0]}"]
    else:
        problems = {"panels": check_panels, "variables": check_variables, "alerts": check_alerts}[what](url)
    for problem in problems:
        print(problem)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
