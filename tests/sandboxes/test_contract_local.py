import os

import pytest
from contract_parts import OF_THE_FILES, OF_THE_WALLS, parametrize_contract

from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.sandboxes.local import problem
from swe_gym.testing import sandbox_contract
from swe_gym.testing.sandbox_contract import Case

NO_PROCESSES_OF_ITS_OWN = {
    "host_processes_are_invisible": "there is no PID namespace",
    "sandboxes_share_no_processes": "there is no PID namespace",
    "process_limit": "a limit would count all processes of the user",
    "process_limits_are_apart": "a limit would count all processes of the user",
    "fork_bomb": "not tried: processes are not limited",
    "killing_everything": "not tried: other processes of the user could be killed",
    "killing_the_first_process": "not tried: it is the host's",
    "killing_every_python": "not tried: other processes of the user could be killed",
    "control_channel_is_out_of_reach": "not tried: other processes of the user could be opened",
}

ORDINARY_USER = {"devices_are_not_shared": "only root can make devices, so these are the machine's"}
NAMESPACE = ORDINARY_USER if os.geteuid() else {}

FILES_OF_THE_MACHINE = "the files of the system, of Python and of /proc are the machine's own"

LANDLOCK = NO_PROCESSES_OF_ITS_OWN | {
    "shared_memory_has_its_usual_size": FILES_OF_THE_MACHINE,
    "locks_are_not_shared": FILES_OF_THE_MACHINE,
    "devices_are_not_shared": FILES_OF_THE_MACHINE,
    "use_of_files_is_not_seen": FILES_OF_THE_MACHINE,
    "modes_of_kernel_files_are_not_shared": FILES_OF_THE_MACHINE,
    "counters_of_the_kernel_are_closed": FILES_OF_THE_MACHINE,
    "tables_of_the_kernel_are_closed": FILES_OF_THE_MACHINE,
    "absolute_temporary_paths": "Landlock cannot make a private /tmp; TMPDIR is the sandbox's own",
    "shared_memory": "Landlock cannot make a private /dev/shm",
    "own_loopback_ipv6": "no socket can be made",
    "own_loopback": "no socket can be made, for loopback neither",
    "sandboxes_share_no_ports": "no socket can be made, so there is no server to reach",
    "egress_spares_host_loopback": "there is no network namespace",
    "disk_limit_of_many_files": "without a file system of its own only the size of each file is limited",
    **{case.name: "no socket can be made, so no port" for case in sandbox_contract.cases(only=["forward"])},
}

NOT_ISOLATED = "tier process isolates nothing"
PROCESS = NO_PROCESSES_OF_ITS_OWN | {
    "shared_memory_has_its_usual_size": NOT_ISOLATED,
    "links_never_reach_the_host": NOT_ISOLATED,
    "host_temporary_files_are_invisible": NOT_ISOLATED,
    "host_home_is_invisible": NOT_ISOLATED,
    "host_files_cannot_be_changed": NOT_ISOLATED,
    "host_sockets_are_unreachable": NOT_ISOLATED,
    "sandboxes_share_no_files": NOT_ISOLATED,
    "sandboxes_share_no_ports": NOT_ISOLATED,
    "disk_limit_of_many_files": "without a file system of its own only the size of each file is limited",
    "hindering_what_runs_commands": "not tried: other processes of the user would be hindered",
    **{
        case.name: NOT_ISOLATED for case in sandbox_contract.cases(only=["channels"], exclude=["mounts_are_not_shared"])
    },
}


def run(case: Case, tier: str) -> None:
    def make(**fields: object) -> Sandbox:
        spec = SandboxSpec.model_validate(fields)
        return open_sandbox(spec.model_copy(update={"options": {"tier": tier, **spec.options}}), "local")

    if problem(tier):
        pytest.skip(f"no tier {tier} on this machine: {problem(tier)}")
    case.run(make)


@pytest.mark.sample(every=3)
@sandbox_contract.parametrize(NAMESPACE, exclude=["slow"])
def test_namespace(case: Case) -> None:
    run(case, "namespace")


@pytest.mark.slow
@sandbox_contract.parametrize(only=["slow"])
def test_namespace_with_the_rest(case: Case) -> None:
    run(case, "namespace")


@pytest.mark.slow
@parametrize_contract(
    *OF_THE_WALLS,
    *OF_THE_FILES,
    *LANDLOCK,
    deviations=LANDLOCK,
    exclude=["servers_live_until_close"],  # it has no socket
)
def test_landlock(case: Case) -> None:
    run(case, "landlock")


@pytest.mark.slow
@parametrize_contract(
    "life", *OF_THE_WALLS, deviations=PROCESS, exclude=["network", "slow"]
)  # open: it depends on the machine
def test_process(case: Case) -> None:
    run(case, "process")
