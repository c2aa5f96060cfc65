"""The Kubernetes backend on the real cluster of KUBECONFIG, with the image SWE_GYM_TEST_IMAGE on its nodes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from swe_gym.curation.validation import validate
from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import SandboxLost, SandboxStartError
from swe_gym.sandboxes import Finding, SandboxSpec
from swe_gym.sandboxes.local import problem
from swe_gym.tasks import load_source

pytest.importorskip("kubernetes")

import yaml

from swe_gym.sandboxes.kubernetes import KubernetesOptions, KubernetesSandbox, sweep
from swe_gym.sandboxes.kubernetes.api import SERVICE_ACCOUNT, Api, ApiError, pods_path
from swe_gym.sandboxes.kubernetes.pods import NEEDED, list_pods

EXAMPLES = Path(__file__).parents[2] / "examples" / "kubernetes"

pytestmark = pytest.mark.usefixtures("kubernetes")


@pytest.fixture(scope="module")
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    request.getfixturevalue("kubernetes")
    api = Api(kubeconfig=None, context=None)
    yield api
    api.close()


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    """A namespace for one test."""
    name = f"swe-gym-test-{uuid.uuid4().hex[:8]}"
    api.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    pause_until(lambda: bool(get(api, f"/api/v1/namespaces/{name}/serviceaccounts")["items"]), 60.0)
    yield name
    api.request("DELETE", f"/api/v1/namespaces/{name}")


def get(api: Api, path: str) -> dict[str, Any]:
    return api.request("GET", path)


@contextlib.contextmanager
def opened(spec: SandboxSpec | None = None, **options: Any) -> Iterator[KubernetesSandbox]:
    given = {"default_image": os.environ["SWE_GYM_TEST_IMAGE"], "image_pull_policy": "Never", **options}
    with KubernetesSandbox((spec or SandboxSpec()).model_copy(update={"options": given})) as sandbox:
        yield sandbox


def start_error(spec: SandboxSpec | None = None, **options: Any) -> tuple[SandboxStartError, float]:
    started = time.monotonic()
    with pytest.raises(SandboxStartError) as caught, opened(spec, **options):
        pass
    return caught.value, time.monotonic() - started


def pods(api: Api, namespace: str) -> list[dict[str, Any]]:
    return list(list_pods(api, namespace, {}))


def pause_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        pause.wait(0.1)


def manifests(title: str) -> list[dict[str, Any]]:
    """Returns the objects of a file of `examples/kubernetes`."""
    return list(yaml.safe_load_all((EXAMPLES / f"{title}.yaml").read_text()))


# --- start ----------------------------------------------------------------------------------------------------


def test_a_closed_sandbox_leaves_no_pod(api: Api, namespace: str) -> None:
    with opened(namespace=namespace) as sandbox:
        assert sandbox.exec("echo $((6 * 7))").text == "42\n"
        (pod,) = pods(api, namespace)
        assert pod["metadata"]["labels"]["swe-gym/sandbox"] == sandbox.id
    assert not pods(api, namespace)


def test_a_grading_pod_waits_if_the_option_allows_it(api: Api, namespace: str) -> None:
    image = os.environ["SWE_GYM_TEST_IMAGE"]
    given = {"default_image": image, "image_pull_policy": "Never", "namespace": namespace, "waiting": 1000}
    with contextlib.closing(SweEnv("toy", backend="kubernetes", sandbox_options={"options": given})) as env:
        env.reset()
        (first,) = pods(api, namespace)
        env.step("hm")
        pause_until(lambda: [pod["status"]["phase"] for pod in pods(api, namespace)] == ["Running"] * 2, 60.0)
        waits = {pod["metadata"]["name"] for pod in pods(api, namespace)} - {first["metadata"]["name"]}
        assert env.grade().reason
        pause_until(lambda: waits.isdisjoint(pod["metadata"]["name"] for pod in pods(api, namespace)), 60.0)
        env.step("hm")
    pause_until(lambda: not pods(api, namespace), 60.0)


def test_a_lent_python_is_read_only() -> None:
    with opened(python_image=os.environ["SWE_GYM_TEST_IMAGE"]) as sandbox:
        program = "import sys, tarfile; print(sys.prefix, tarfile.__file__)"
        said = sandbox.exec(["/opt/swe-gym-python/python3", "-I", "-S", "-c", program]).text.split()
        assert all(path.startswith("/opt/swe-gym-python") for path in said)
        assert "Read-only" in sandbox.exec("touch /opt/swe-gym-python/x").stderr.decode()


@pytest.mark.parametrize(
    ("image", "words"),
    [("Not A Name", "name is invalid"), ("swe-gym/no-such-image:1", "image_pull_policy is 'Never'")],
)
def test_a_bad_image_fails_in_seconds(image: str, words: str) -> None:
    error, seconds = start_error(SandboxSpec(image=image))
    assert (error.reason, error.retryable) == ("image", False)
    assert words in str(error)
    assert seconds < 15


def test_an_image_without_a_shell_is_an_error() -> None:
    error, seconds = start_error(SandboxSpec(image="swe-gym/pause:local"))
    assert (error.reason, error.retryable) == ("image", False)
    assert "lacks /bin/sh or Python 3" in str(error)
    assert seconds < 20


def test_a_selector_that_fits_no_node() -> None:
    error, seconds = start_error(node_selector={"no": "such-node"}, capacity_timeout=1.0)
    assert (error.reason, error.retryable) == ("capacity", True)
    assert "node" in str(error)
    assert seconds < 10


def test_an_exhausted_quota_is_named(api: Api, namespace: str) -> None:
    (quota,) = manifests("quota")
    quota["metadata"].update(name="tiny", namespace=namespace)
    quota["spec"] = {"hard": {"pods": "0"}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    api.request("POST", path, body=quota)
    pause_until(lambda: "hard" in get(api, f"{path}/tiny").get("status", {}), 60.0)
    error, seconds = start_error(namespace=namespace, capacity_timeout=0.0)
    assert (error.reason, error.retryable) == ("capacity", True)
    assert "tiny" in error.detail
    assert seconds < 10
    told = {finding.what: finding for finding in KubernetesSandbox.diagnose({"namespace": namespace})}
    assert not told["quota tiny"].works


def test_a_namespace_that_does_not_exist() -> None:
    error, _ = start_error(namespace="no-such-namespace")
    assert "the namespace does not exist" in str(error)
    assert not error.retryable


# --- commands -------------------------------------------------------------------------------------------------


def test_the_network() -> None:
    up = "cat /sys/class/net/eth0/operstate"
    with opened() as sandbox:
        assert sandbox.capabilities.network == "none"
        assert sandbox.exec(up).text == "down\n"
        assert not sandbox.exec("ip link set eth0 up 2>&1 || ifconfig eth0 up").ok
    with opened(SandboxSpec(network="egress")) as sandbox:
        assert sandbox.capabilities.network == "egress"
        assert sandbox.exec(up).text == "up\n"


def test_a_non_root_user() -> None:
    with opened(SandboxSpec(user="1000"), capabilities=[]) as sandbox:
        told = sandbox.exec("id -u; grep CapBnd /proc/self/status; touch file && ls; cat /sys/class/net/eth0/operstate")
    assert told.text == "1000\nCapBnd:\t0000000000000000\nfile\ndown\n"


def test_commands_see_neither_variables_nor_secrets_of_the_cluster() -> None:
    with opened() as sandbox:
        assert "KUBERNETES" not in sandbox.exec("env").text
        assert not sandbox.exec("ls /var/run/secrets/kubernetes.io").ok


def test_a_bundled_task_as_a_non_root_user() -> None:
    own = {"default_image": os.environ["SWE_GYM_TEST_IMAGE"], "network": "policy", "capabilities": []}
    source = load_source("toy")
    settings: dict[str, Any] = {"backend": "kubernetes", "sandbox_options": {"user": "1000", "options": own}}
    (record,) = validate(source, source.ids()[:1], times=1, workers=1, **settings)
    assert (record.status, record.gold, record.empty) == ("valid", (True,), (False,)), record.reason


# --- cleanup ----------------------------------------------------------------------------------------------------


def test_a_pod_deleted_by_another_client(api: Api, namespace: str) -> None:
    with opened(namespace=namespace) as sandbox:
        running = threading.Timer(0.5, delete_all, [api, namespace])
        running.start()
        started = time.monotonic()
        with pytest.raises(SandboxLost) as caught:
            sandbox.exec("sleep 60", timeout=90)
        assert time.monotonic() - started < 6.0
        running.join()
    assert caught.value.reason == "killed"
    assert sandbox.closed


def delete_all(api: Api, namespace: str) -> None:
    for pod in pods(api, namespace):
        path = pods_path(namespace, pod["metadata"]["name"])
        with contextlib.suppress(ApiError):
            api.request("DELETE", path, query={"gracePeriodSeconds": "0"})


CLIENT = """
import os, sys
from swe_gym.sandboxes import SandboxSpec, open_sandbox
options = {"default_image": os.environ["SWE_GYM_TEST_IMAGE"], "namespace": sys.argv[1]}
sandboxes = [open_sandbox(SandboxSpec(options=options), "kubernetes") for _ in range(2)]
sandboxes[0].exec("sleep 1000 & setsid sleep 1000 & echo started")
print("ready", flush=True)
sandboxes[1].exec("sleep 1000", timeout=1000)
"""


@pytest.fixture
def killed_client(api: Api, namespace: str) -> Iterator[Callable[[bool], None]]:
    """Kills a client that has two sandboxes, in a namespace with a foreign pod."""
    foreign = {"metadata": {"name": "foreign"}, "spec": foreign_spec()}
    api.request("POST", pods_path(namespace), body=foreign)
    client = subprocess.Popen([sys.executable, "-c", CLIENT, namespace], stdout=subprocess.PIPE)

    def kill(guard: bool) -> None:
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        if guard:
            for child in Path(f"/proc/{client.pid}/task/{client.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
        client.kill()
        client.wait()

    with client:
        yield kill
        client.kill()


def test_the_pods_of_a_killed_client_are_deleted(
    api: Api, namespace: str, killed_client: Callable[[bool], None]
) -> None:
    killed_client(False)
    pause_until(lambda: [pod["metadata"]["name"] for pod in pods(api, namespace)] == ["foreign"], 60.0)


def test_pods_without_a_guard_end_and_are_swept(
    api: Api, namespace: str, killed_client: Callable[[bool], None]
) -> None:
    killed_client(True)

    def all_ended() -> bool:
        ours = [pod for pod in pods(api, namespace) if pod["metadata"]["name"] != "foreign"]
        return len(ours) == 2 and all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in ours)

    pause_until(all_ended, 60.0)
    pause_until(lambda: len(sweep(KubernetesOptions(namespace=namespace), older_than=1.0)) == 2, 60.0)
    pause_until(lambda: [pod["metadata"]["name"] for pod in pods(api, namespace)] == ["foreign"], 60.0)


def foreign_spec() -> dict[str, Any]:
    image = os.environ["SWE_GYM_TEST_IMAGE"]
    container = {"name": "x", "image": image, "command": ["sleep", "600"], "imagePullPolicy": "Never"}
    return {"containers": [container], "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}


def test_an_exit_without_closing_leaves_nothing(api: Api, namespace: str) -> None:
    code = CLIENT.split("sandboxes[1]")[0]
    subprocess.run([sys.executable, "-c", code, namespace], check=True, timeout=60, stdout=subprocess.DEVNULL)
    pause_until(lambda: not pods(api, namespace), 60.0)


# --- the documentation --------------------------------------------------------------------------------------------


PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "ResourceQuota": "/api/v1/namespaces/{}/resourcequotas",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
}


def apply(api: Api, namespace: str, title: str, **query: str) -> None:
    """Creates the objects of an example in this namespace."""
    for thing in manifests(title):
        body = json.loads(json.dumps(thing).replace('"sandboxes"', json.dumps(namespace)))
        api.request("POST", PATHS[thing["kind"]].format(namespace), query=query, body=body)


@pytest.mark.parametrize("title", ["driver", "network", "pre-pull", "quota", "rights"])
def test_the_cluster_accepts_the_examples(api: Api, namespace: str, title: str) -> None:
    apply(api, namespace, title, dryRun="All")


def test_the_rights_in_the_documentation_are_enough(api: Api, namespace: str, tmp_path: Path) -> None:
    apply(api, namespace, "rights")
    path = kubeconfig_of(api, namespace, tmp_path)
    with opened(kubeconfig=path, namespace=namespace) as sandbox:
        assert sandbox.exec("echo hello").text == "hello\n"
    assert all(finding.works for finding in KubernetesSandbox.diagnose({"kubeconfig": path, "namespace": namespace}))
    other = {
        finding.what: finding for finding in KubernetesSandbox.diagnose({"kubeconfig": path, "namespace": "default"})
    }
    assert other["rights on pods"].detail == "in namespace default: missing create, get, list, watch, delete"
    error, _ = start_error(kubeconfig=path, namespace="default")
    assert "Apply the Role" in str(error)


def test_every_missing_verb_is_named(api: Api, namespace: str, tmp_path: Path) -> None:
    apply(api, namespace, "rights")
    options = {"kubeconfig": kubeconfig_of(api, namespace, tmp_path), "namespace": namespace}
    for resource, verbs in NEEDED:
        for verb in verbs.split():
            allow_all_but(api, namespace, resource, verb)
            told = Finding(f"rights on {resource}", False, f"in namespace {namespace}: missing {verb}")
            wait_until_missing(options, told)


def wait_until_missing(options: dict[str, Any], told: Finding) -> None:
    """Waits until exactly this is missing: a changed role takes effect after a moment."""
    pause_until(
        lambda: [found[:3] for found in KubernetesSandbox.diagnose(options) if not found.works] == [told[:3]], 10.0
    )


def allow_all_but(api: Api, namespace: str, resource: str, verb: str) -> None:
    """Removes one verb from the documentation's Role."""
    (role,) = (thing for thing in manifests("rights") if thing["kind"] == "Role")
    (rule,) = (rule for rule in role["rules"] if rule["resources"] == [resource])
    rule["verbs"].remove(verb)
    role["metadata"]["namespace"] = namespace
    api.request("PUT", f"{PATHS['Role'].format(namespace)}/{role['metadata']['name']}", body=role)


def kubeconfig_of(api: Api, namespace: str, folder: Path) -> str:
    """Writes a kubeconfig for the documentation's service account."""
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    config["users"][0]["user"] = {"token": token_of(api, namespace, "swe-gym")}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def test_doctor_reports_a_missing_namespace() -> None:
    missing = [finding for finding in KubernetesSandbox.diagnose({"namespace": "nowhere"}) if not finding.works]
    assert [(finding.what, finding.detail) for finding in missing] == [
        ("namespace", "namespace nowhere does not exist")
    ]
    assert "kubectl create namespace nowhere" in missing[0].fix


def token_of(api: Api, namespace: str, account: str) -> str:
    """Requests a token of a service account."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    reply = api.request(
        "POST", path, body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    )
    return str(reply["status"]["token"])


def test_the_policies_in_the_documentation_are_found(api: Api, namespace: str) -> None:
    options = {"namespace": namespace, "network": "policy"}
    assert "network policy" in [finding.what for finding in KubernetesSandbox.diagnose(options) if not finding.works]
    apply(api, namespace, "network")
    assert all(finding.works for finding in KubernetesSandbox.diagnose(options))


# --- a client in a pod ----------------------------------------------------------------------------------------


AS_IN_A_POD = f"""
mount -t tmpfs none "$(realpath /var/run)"
mkdir -p "{SERVICE_ACCOUNT}"
cp "$0"/* "{SERVICE_ACCOUNT}"
exec "$@"
"""
"""Gives a program the files that every pod has, in a mount namespace; needs no privileges."""

CLIENT_IN_A_POD = """
import os
from swe_gym.sandboxes import SandboxSpec, open_sandbox
options = {"default_image": os.environ["SWE_GYM_TEST_IMAGE"], "image_pull_policy": "Never"}
with open_sandbox(SandboxSpec(options=options), "kubernetes") as sandbox:
    print(sandbox.exec("echo hello").text)
"""


@pytest.fixture
def run_in_a_pod(api: Api, namespace: str, tmp_path: Path) -> Callable[..., str]:
    """Runs a command as in a pod with the documentation's service account; returns its output."""
    apply(api, namespace, "rights")
    cluster = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())["clusters"][0]["cluster"]
    if "certificate-authority" not in cluster or problem("namespace"):
        pytest.skip("needs a kubeconfig with a certificate file, and mount namespaces")
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "token").write_text(token_of(api, namespace, "swe-gym"))
    (account / "ca.crt").write_text(Path(cluster["certificate-authority"]).read_text())
    (account / "namespace").write_text(namespace)
    address = urlsplit(cluster["server"])
    env = {name: os.environ[name] for name in ("PATH", "SWE_GYM_TEST_IMAGE")} | {"HOME": str(tmp_path)}
    env |= {"KUBERNETES_SERVICE_HOST": str(address.hostname), "KUBERNETES_SERVICE_PORT": str(address.port or 443)}
    start = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", AS_IN_A_POD, str(account)]

    def run(*command: str) -> str:
        done = subprocess.run([*start, *command], env=env, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    return run


def test_a_client_in_a_pod_needs_no_configuration(run_in_a_pod: Callable[..., str], api: Api, namespace: str) -> None:
    assert run_in_a_pod(sys.executable, "-c", CLIENT_IN_A_POD) == "hello\n\n"
    pause_until(lambda: not pods(api, namespace), 60.0)


def test_doctor_in_a_pod_names_a_missing_verb(run_in_a_pod: Callable[..., str], api: Api, namespace: str) -> None:
    allow_all_but(api, namespace, "pods", "watch")
    told = run_in_a_pod(str(Path(sys.executable).with_name("swe-gym")), "doctor", "--backend", "kubernetes")
    assert f"no  rights on pods        in namespace {namespace}: missing watch" in told
    assert "ok  rights on pods/attach " in told


def test_the_sweep_of_the_examples(run_in_a_pod: Callable[..., str], api: Api, namespace: str) -> None:
    (cron,) = manifests("sweep")
    spec = cron["spec"]["jobTemplate"]["spec"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sweep"}, "spec": spec}
    api.request("POST", PATHS["Job"].format(namespace), query={"dryRun": "All"}, body=job)
    program, *arguments = spec["template"]["spec"]["containers"][0]["command"]
    assert program == "swe-gym"
    assert run_in_a_pod(sys.executable, "-m", "swe_gym", *arguments) == "kubernetes: 0 removed\n"
