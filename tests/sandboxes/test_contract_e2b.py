"""The contract through E2B's own SDK, against the test server, which isolates nothing."""

import os
import tempfile
from collections.abc import Iterator

import pytest
from contract_parts import OF_THE_WAY, parametrize_contract
from servers.e2b_server import E2BServer

from swe_gym.sandboxes import SandboxSpec
from swe_gym.sandboxes.e2b import E2BSandbox
from swe_gym.testing.sandbox_contract import Case

pytestmark = pytest.mark.slow

pytest.importorskip("e2b")

NOT_ISOLATED = "the test server isolates nothing"
TEMPLATES = "the template sets the limit, and the test server's has none"

DEVIATIONS = {
    "host_processes_are_invisible": NOT_ISOLATED,
    "links_never_reach_the_host": NOT_ISOLATED,
    "host_temporary_files_are_invisible": NOT_ISOLATED,
    "host_home_is_invisible": NOT_ISOLATED,
    "host_files_cannot_be_changed": NOT_ISOLATED,
    "host_sockets_are_unreachable": NOT_ISOLATED,
    "sandboxes_share_no_files": NOT_ISOLATED,
    "sandboxes_share_no_ports": NOT_ISOLATED,
    "sandboxes_share_no_processes": NOT_ISOLATED,
    "fork_bomb": "not tried: processes are not limited",
    "killing_everything": "not tried: other processes of the user could be killed",
    "killing_the_first_process": "not tried: it is the host's first process",
    "killing_every_python": "not tried: other processes of the user could be killed",
    "control_channel_is_out_of_reach": "not tried: other processes of the user could be opened",
    "processes_show_no_program": "not every service passes standard input on, so the program is an argument",
    "shared_memory_has_its_usual_size": TEMPLATES,
    "process_limit": TEMPLATES,
    "process_limits_are_apart": TEMPLATES,
    "memory_limit": TEMPLATES,
    "memory_limit_of_many_processes": TEMPLATES,
    "disk_limit_of_many_files": "only the size of each file is limited",
}


class Nearby(E2BSandbox):
    """A sandbox of a service on this machine."""

    slack = 2.0

    @property
    def _top(self) -> str:
        """The folder of the sandbox: the rest is this machine's."""
        return self.workdir.removesuffix(self.spec.workdir)


@pytest.fixture(scope="module")
def server() -> Iterator[E2BServer]:
    with tempfile.TemporaryDirectory(prefix="e2b-") as folder:
        os.chmod(folder, 0o755)  # another user must be able to enter it
        with E2BServer(folder) as server:
            yield server


UNFIT = ["network", "slow"]  # open: the result depends on the machine
UNFIT += ["channels"]  # the test server isolates nothing, and they lock files
UNFIT += ["hindering_what_runs_commands"]  # it would slow down all processes of a user who is not root


@parametrize_contract(*OF_THE_WAY, "workspace", deviations=DEVIATIONS, exclude=UNFIT)
def test_contract(case: Case, server: E2BServer) -> None:
    def make(**fields: object) -> E2BSandbox:
        defaults = server.sandbox_options()
        spec = SandboxSpec.model_validate({**defaults, **fields})
        options = {**defaults["options"], **spec.options}
        return Nearby(spec.model_copy(update={"options": options})).start()

    case.run(make)


def test_the_contract_leaves_nothing(server: E2BServer) -> None:
    assert server.running == []
    assert list(server.folder.iterdir()) == []
