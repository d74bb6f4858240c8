"""A run on Kubernetes: manifests, alerts and dashboard fit each other and a feed."""

from __future__ import annotations

import collections
import importlib
import json
import pathlib
import re
import runpy
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import prometheus_client
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.datasets import convert
from tests.support.records import text_records

FOLDER = pathlib.Path(__file__).parents[2] / "deploy" / "kubernetes"
# Imported by the test: it takes seconds, in each process that looks for tests.
MODELS = {
    "ConfigMap": "kubernetes.core.v1",
    "Job": "kubernetes.batch.v1",
    "PodMonitor": "prometheus_operator.v1",
    "PrometheusRule": "prometheus_operator.v1",
    "Service": "kubernetes.core.v1",
}
# What Prometheus and its operator add to the samples of a pod.
ADDED_LABELS = {"job", "namespace", "pod"}


def documents(name: str) -> dict[str, Any]:
    """Returns the objects of a manifest, by kind."""
    loaded = list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))
    found = {each["kind"]: each for each in loaded}
    assert len(found) == len(loaded)
    return found


MANIFESTS = documents("train.yaml") | documents("monitoring.yaml")
RULES = MANIFESTS["PrometheusRule"]["spec"]["groups"][0]["rules"]
POD = MANIFESTS["Job"]["spec"]["template"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MANIFESTS)
def test_manifests_have_the_schema_of_their_kinds(kind):
    document = MANIFESTS[kind]
    models = importlib.import_module(f"cloudcoil.models.{MODELS[kind]}")
    model = getattr(models, kind).model_validate(document)
    # What a schema does not have would be left out.
    kept = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert kept == document


def test_the_parts_of_a_run_fit_each_other():
    job, (container,) = MANIFESTS["Job"]["spec"], POD["spec"]["containers"]
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert int(values["HOSTS"]) == job["completions"] == job["parallelism"]
    (port,) = container["ports"]
    assert int(values["METRICS_PORT"]) == port["containerPort"]
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/metrics", "port": port["name"]}
    assert {each["name"] for each in container["volumeMounts"]} == {
        each["name"] for each in POD["spec"]["volumes"]
    }
    assert MANIFESTS["Service"]["spec"]["selector"] == POD["metadata"]["labels"]
    assert MANIFESTS["Service"]["metadata"]["name"] == POD["spec"]["subdomain"]
    monitor = MANIFESTS["PodMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"] == POD["metadata"]["labels"]
    assert monitor["podMetricsEndpoints"][0]["port"] == port["name"]


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> dict[str, set[str]]:
    """Labels by the names of metrics that the script of the manifest exports."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "train.py").write_text(MANIFESTS["ConfigMap"]["data"]["train.py"])
    dataset = convert(folder, [text_records(1100, seed=1)])
    stepping, go_on = threading.Event(), threading.Event()
    steps: list[int] = []

    def train_step(records: list[bytes]) -> None:
        steps.append(len(records))
        stepping.set()
        assert go_on.wait(60)

    servers = []
    start = prometheus_client.start_http_server

    def serve(port: int) -> None:
        assert port == 8000  # Which may be taken here.
        servers.append(start(0, addr="127.0.0.1"))

    script = runpy.run_path(str(folder / "train.py"), run_name="train")
    script["main"].__globals__["train_step"] = train_step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prometheus_client, "start_http_server", serve)
        environment = {"HOSTS": "1", "WORKERS": "0", "METRICS_PORT": "8000"}
        environment |= {"JOB_COMPLETION_INDEX": "0", "DATASET": dataset}
        for name, value in environment.items():
            patch.setenv(name, value)
        trainer = threading.Thread(target=script["main"])
        trainer.start()
        try:
            assert stepping.wait(60)
            (server, thread) = servers[0]
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            with urllib.request.urlopen(url) as answer:
                text = answer.read().decode()
        finally:
            go_on.set()
            trainer.join()
            for server, thread in servers:
                server.shutdown()
                server.server_close()
                thread.join()
    assert sum(steps) == 1024
    found = collections.defaultdict(set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return found


def test_the_script_of_the_manifest_exports_its_feed(samples):
    assert samples["gristmill_feed_batches_total"] == {"feed"}
    assert samples["gristmill_feed_waits_for"] == {"feed", "cause"}


def queries_of_dashboard() -> list[str]:
    board = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    return [target["expr"] for each in board["panels"] for target in each["targets"]]


def selectors(node: Any) -> Iterator[promql_parser.VectorSelector]:
    """Yields all selectors of a query."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    for name in ("expr", "lhs", "rhs", "param", "vector_selector", "selector"):
        child = getattr(node, name, None)
        if isinstance(child, promql_parser.Expr):
            yield from selectors(child)
    for child in getattr(node, "args", None) or ():
        yield from selectors(child)


@pytest.mark.parametrize(
    "query", [*queries_of_dashboard(), *(rule["expr"] for rule in RULES)]
)
def test_every_metric_of_a_query_is_exported(samples, query):
    exported = set(samples) | {rule["record"] for rule in RULES if "record" in rule}
    plain = query.replace("$__rate_interval", "5m")
    plain = re.sub(r"\$(feed|job)", ".*", plain)
    assert "$" not in plain
    found = list(selectors(promql_parser.parse(plain)))
    assert len(found) == len(re.findall(r"\bgristmill_feed[\w:]+", plain)) > 0
    labels = ADDED_LABELS | {"feed"}
    for each in found:
        assert each.name in exported
        labels |= samples.get(each.name, set())
        for matcher in each.matchers.matchers:
            assert matcher.name in ADDED_LABELS | samples[each.name]
    for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", plain):
        assert {name.strip() for name in group.split(",")} <= labels


def test_alerts_say_what_happens_and_name_their_pod():
    alerts = {rule["alert"]: rule for rule in RULES if "alert" in rule}
    assert set(alerts) == {"TrainerStuck", "TrainerWaits", "SlowHost"}
    for rule in alerts.values():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert "{{ $labels.pod }}" in rule["annotations"]["summary"]
        assert rule["annotations"]["description"].endswith(".")


def test_the_dashboard_is_what_its_script_makes(samples):
    script = runpy.run_path(str(FOLDER / "make_dashboard.py"))
    text = (FOLDER / "dashboard.json").read_text(encoding="utf-8")
    assert script["make"]() == text
    board = json.loads(text)
    shown = {name for name in samples if name in text}
    assert {"gristmill_feed_waits_for", "gristmill_feed_wait_seconds_total"} <= shown
    places = [tuple(each["gridPos"].values()) for each in board["panels"]]
    assert len(set(places)) == len(places) >= 9
    for each in board["panels"]:
        letters = [target["refId"] for target in each["targets"]]
        assert len(set(letters)) == len(letters)
        assert each["title"]
        assert each["description"]
    assert [each["name"] for each in board["templating"]["list"]] == [
        "datasource",
        "job",
        "feed",
    ]
