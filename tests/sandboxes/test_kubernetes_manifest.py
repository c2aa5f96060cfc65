"""The manifest of a sandbox's pod."""

import ast
import json
from typing import Any

import pytest

from swe_gym.errors import Unsupported
from swe_gym.sandboxes import SandboxSpec
from swe_gym.sandboxes.container import BOOT, boot_input
from swe_gym.sandboxes.runner_sandbox import runner_source

pytest.importorskip("kubernetes")

from swe_gym.sandboxes.kubernetes import KubernetesOptions, KubernetesSandbox, manifest


def make(spec: SandboxSpec | None = None, **options: Any) -> dict[str, Any]:
    made = manifest.pod(
        spec or SandboxSpec(), KubernetesOptions(**options), name="swe-gym-1", image="img", run="r", sandbox="1"
    )
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]  # a copy of the manifest


def container(made: dict[str, Any]) -> dict[str, Any]:
    return made["spec"]["containers"][0]  # type: ignore[no-any-return]  # a dictionary


def test_defaults_are_safe() -> None:
    made = make()
    spec, security = made["spec"], container(made)["securityContext"]
    assert spec["restartPolicy"] == "Never"
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["activeDeadlineSeconds"] == 6 * 3600 + 600 + 1
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"]["drop"] == ["ALL"]
    assert container(made)["stdinOnce"] is True
    assert "hostNetwork" not in spec
    assert spec["volumes"] == []


def test_the_manifest_is_small() -> None:
    assert len(json.dumps(make())) < 4096, "every event of a watch carries the whole pod"


def test_variables_of_the_command_are_escaped() -> None:
    command = container(make())["command"]
    assert command[0] == "/bin/sh"
    unescaped = [part.replace("$$", "\0") for part in command]
    assert not any("$" in part for part in unescaped)


def test_resources() -> None:
    spec = SandboxSpec(cpus=1.5, memory_mb=2048, disk_mb=512)
    resources = container(make(spec, requests={"cpu": "250m"}))["resources"]
    assert resources["limits"] == {"cpu": "1500m", "memory": "2048Mi", "ephemeral-storage": "512Mi"}
    assert resources["requests"] == {"cpu": "250m", "ephemeral-storage": "0"}, (
        "the memory limit is requested by default"
    )


def test_default_resources() -> None:
    resources = container(make())["resources"]
    assert resources["limits"] == {"cpu": "2000m", "memory": "4096Mi", "ephemeral-storage": "4096Mi"}
    assert resources["requests"] == {"cpu": "10m", "memory": "64Mi", "ephemeral-storage": "0"}


def test_options_appear_in_the_manifest() -> None:
    made = make(
        SandboxSpec(labels={"team": "a b/c"}),
        image_pull_secrets=["s"],
        image_pull_policy="Always",
        node_selector={"pool": "x"},
        tolerations=[{"key": "k", "operator": "Exists"}],
        runtime_class="gvisor",
        service_account="sa",
        priority_class="low",
        queue_name="q",
        labels={"l": "1"},
        annotations={"a": "2"},
        owner="Some Body!",
        owner_reference={"apiVersion": "v1", "kind": "Pod", "name": "trainer", "uid": "u"},
    )
    spec, metadata = made["spec"], made["metadata"]
    assert spec["imagePullSecrets"] == [{"name": "s"}]
    assert container(made)["imagePullPolicy"] == "Always"
    assert spec["nodeSelector"] == {"pool": "x"}
    assert spec["tolerations"] == [{"key": "k", "operator": "Exists"}]
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["serviceAccountName"] == "sa"
    assert spec["priorityClassName"] == "low"
    assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert metadata["labels"]["l"] == "1"
    assert metadata["labels"]["team"] == "a-b-c"
    assert metadata["labels"]["swe-gym/owner"] == "Some-Body"
    assert metadata["annotations"]["a"] == "2"
    assert metadata["annotations"]["swe-gym/ttl"] == "21600"
    assert metadata["ownerReferences"][0]["name"] == "trainer"


def test_python_image_lends_a_python() -> None:
    assert make(network="policy")["spec"]["initContainers"] == []
    spec = make(python_image="python:3.12")["spec"]
    copier, unplugger = spec["initContainers"]
    assert unplugger["volumeMounts"] == spec["containers"][0]["volumeMounts"]
    assert copier["image"] == "python:3.12"
    assert copier["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": []},
    }
    assert copier["resources"] == spec["containers"][0]["resources"]
    (volume,) = spec["volumes"]
    (there,), (here,) = copier["volumeMounts"], spec["containers"][0]["volumeMounts"]
    assert (there["name"], here["name"]) == (volume["name"], volume["name"])
    assert (there["mountPath"], here["readOnly"]) == (here["mountPath"], True)


def test_labels_of_the_sweep_cannot_be_replaced() -> None:
    made = make(labels={manifest.MANAGED_BY: "me", manifest.RUN: "mine"})
    assert made["metadata"]["labels"][manifest.MANAGED_BY] == manifest.MANAGER
    assert made["metadata"]["labels"][manifest.RUN] == "r"


def test_the_network_is_closed_by_default() -> None:
    for closed in (SandboxSpec(), SandboxSpec(user="1000")):
        made = make(closed)
        (unplugger,) = made["spec"]["initContainers"]
        assert unplugger["image"] == container(made)["image"]
        security = unplugger["securityContext"]
        assert (security["runAsUser"], security["runAsNonRoot"]) == (0, False)
        assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
        assert "NET_ADMIN" not in container(made)["securityContext"]["capabilities"]["add"]
    for spec, options in ((SandboxSpec(), {"network": "policy"}), (SandboxSpec(network="egress"), {})):
        made = make(spec, **options)
        assert made["spec"]["initContainers"] == []
        assert made["metadata"]["labels"]["swe-gym/network"] == spec.network


def test_capabilities_report_the_network() -> None:
    def network_of(spec: SandboxSpec) -> str:
        return KubernetesSandbox(spec).capabilities.network

    assert network_of(SandboxSpec()) == "none"
    assert network_of(SandboxSpec(options={"network": "policy"})) == "none"
    assert network_of(SandboxSpec(options={"network": "open"})) == "open"
    assert network_of(SandboxSpec(network="egress", options={"network": "open"})) == "egress"


def test_the_program_starts_with_its_length() -> None:
    program = boot_input(runner_source())
    assert int(program[:8]) == len(program) - 8
    ast.parse(program[8:].decode(), feature_version=(3, 6))
    ast.parse(BOOT, feature_version=(3, 6))


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        (SandboxSpec(user="nobody"), {}, "takes a uid"),
        (SandboxSpec(), {"capabilities": ["FLY"]}, "FLY"),
        (SandboxSpec(min_isolation="vm"), {}, "runtime_class"),
    ],
)
def test_unsupported_specs(spec: SandboxSpec, options: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        KubernetesSandbox(spec.model_copy(update={"options": options}))


def test_a_numeric_user() -> None:
    made = make(SandboxSpec(user="1000"), network="policy", capabilities=[])
    assert made["spec"]["securityContext"]["runAsUser"] == 1000
    assert made["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container(made)["securityContext"]["capabilities"]["add"] == []
    assert make(SandboxSpec(user="root"))["spec"]["securityContext"]["runAsUser"] == 0


def test_a_runtime_class_of_virtual_machines() -> None:
    spec = SandboxSpec(min_isolation="vm", options={"runtime_class": "kata-qemu"})
    assert KubernetesSandbox(spec).capabilities.isolation == "vm"


def test_a_lease_of_any_length_fits() -> None:
    made = make(SandboxSpec(ttl=1e300, start_timeout=float("inf")))
    assert made["spec"]["activeDeadlineSeconds"] == 2**31 - 1
