"""A run on Kubernetes: manifests and alerts fit each other and a feed."""

import importlib

import pytest
import yaml

from tests.support.distributions import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
# Imported by the test: it takes seconds, in each process that looks for tests.
MODELS = {
    "ConfigMap": "kubernetes.core.v1",
    "Job": "kubernetes.batch.v1",
    "PodMonitor": "prometheus_operator.v1",
    "PrometheusRule": "prometheus_operator.v1",
    "Service": "kubernetes.core.v1",
}


def documents(name):
    """Returns the objects of a manifest, by kind."""
    loaded = list(yaml.safe_load_all((FOLDER / name).read_text("utf-8")))
    found = {each["kind"]: each for each in loaded}
    assert len(found) == len(loaded)
    return found


MANIFESTS = documents("train.yaml") | documents("monitoring.yaml")
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
