"""Holds the rendered manifests against what Kubernetes requires of them and what they must agree on among each other.

check_rendered.py FILE

There is no API server here and no schema of one: this checks the kinds and fields that are used, by name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

# The fields that each kind of object used here has in its API version, as far as they are used. A misspelt one, which
# the API server would drop or refuse, is not among them.
FIELDS: dict[str, set[str]] = {
    "Deployment": {"replicas", "selector", "strategy", "template"},
    "Service": {"clusterIP", "selector", "ports"},
    "PodDisruptionBudget": {"maxUnavailable", "selector"},
    "pod": {
        "automountServiceAccountToken",
        "containers",
        "securityContext",
        "terminationGracePeriodSeconds",
        "topologySpreadConstraints",
        "volumes",
    },
    "container": {
        "args",
        "env",
        "image",
        "lifecycle",
        "livenessProbe",
        "name",
        "ports",
        "readinessProbe",
        "resources",
        "securityContext",
        "startupProbe",
        "volumeMounts",
    },
    "probe": {"exec", "failureThreshold", "periodSeconds", "timeoutSeconds"},
}
VERSIONS = {"Deployment": "apps/v1", "Service": "v1", "ConfigMap": "v1", "PodDisruptionBudget": "policy/v1"}


def check(objects: list[dict[str, Any]]) -> None:
    by_kind = {item["kind"]: item for item in objects}
    assert set(by_kind) == set(VERSIONS), sorted(by_kind)
    for kind, item in by_kind.items():
        assert item["apiVersion"] == VERSIONS[kind], item["apiVersion"]
        if kind in FIELDS:
            assert set(item["spec"]) <= FIELDS[kind], set(item["spec"]) - FIELDS[kind]

    template = by_kind["Deployment"]["spec"]["template"]
    labels, pod = template["metadata"]["labels"], template["spec"]
    assert set(pod) <= FIELDS["pod"], set(pod) - FIELDS["pod"]
    for selector in (
        by_kind["Deployment"]["spec"]["selector"]["matchLabels"],
        by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        by_kind["Service"]["spec"]["selector"],
        pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items(), (selector, labels)
    assert by_kind["Service"]["spec"]["clusterIP"] == "None", "the Service is not headless"

    (container,) = pod["containers"]
    assert set(container) <= FIELDS["container"], set(container) - FIELDS["container"]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[name]
        assert set(probe) <= FIELDS["probe"], probe
        # A probe that is cut off before the client gives up says nothing of why.
        command = probe["exec"]["command"]
        assert float(command[command.index("--timeout") + 1]) < probe["timeoutSeconds"], probe
    assert container["resources"]["limits"]["nvidia.com/gpu"] >= 1
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    assert security["capabilities"]["drop"] == ["ALL"]

    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    # kustomize hangs a hash of its contents on the map's name, everywhere.
    assert volumes["config"]["configMap"]["name"] == by_kind["ConfigMap"]["metadata"]["name"] != "flashbob-config"
    assert "listen:" in by_kind["ConfigMap"]["data"]["server.textproto"]


def main() -> None:
    objects = [item for item in yaml.safe_load_all(Path(sys.argv[1]).read_text()) if item]
    check(objects)
    print(f"deploy: kustomize renders {', '.join(item['kind'] for item in objects)}")


if __name__ == "__main__":
    main()
