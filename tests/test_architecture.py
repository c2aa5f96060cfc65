"""The shape of the package: who may import whom, what an import costs, what runs inside a sandbox."""

import ast
import collections
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import swe_gym.sandboxes
from swe_gym.registry import homes
from swe_gym.sandboxes import BACKENDS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "swe_gym"

LAYERS = {
    "swe_gym.tasks": 1,
    "swe_gym.sandboxes": 1,
    "swe_gym.trajectories": 1,
    "swe_gym.remote": 1,
    "swe_gym.tools": 2,
    "swe_gym.grading": 2,
    "swe_gym.envs": 3,
    "swe_gym.vector": 4,
    "swe_gym.wrappers": 5,
    "swe_gym.rollout": 6,
    "swe_gym.gateway": 7,
    "swe_gym.curation": 8,
    "swe_gym.selection": 8,
    "swe_gym.adapters": 8,
    "swe_gym.testing": 8,
    "swe_gym.train": 8,
    "swe_gym.viewer": 8,
    "swe_gym.certification": 9,
    "swe_gym.cli": 10,
    "swe_gym.__main__": 11,
}
"""The longest prefix counts; everything else directly below the package is layer 0."""


HEAVY = {
    "docker",
    "kubernetes",
    "e2b",
    "torch",
    "datasets",
    "openai",
    "pyarrow",
    "PIL",
    "typer",
    "rich",
    "requests",
    "h11",
}


GUESTS = sorted((PACKAGE / "guests").rglob("*.py"))


def own_modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if "toy_repos" not in parts:
            yield ".".join(parts).removesuffix(".__init__"), path


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def walk(path: Path) -> list[ast.AST]:
    """All nodes of a file."""
    return list(ast.walk(parse(path)))


@functools.cache
def imports(module: str, path: Path) -> list[str]:
    """The absolute names of everything that a module imports, also inside functions."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = []
    for node in walk(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(filter(None, [base, node.module]))
            found += [f"{source}.{alias.name}" for alias in node.names]
    return found


def group_of(name: str) -> str:
    fitting = [prefix for prefix in LAYERS if (name + ".").startswith(prefix + ".")]
    return max(fitting, key=len, default="")


def problem_of(module: str, name: str) -> str:
    """What is wrong with a module's import of a name of the package."""
    target = PACKAGE.joinpath(*name.split(".")[1:2])
    if target == PACKAGE or not (target.is_dir() or target.with_suffix(".py").is_file()):
        return f"{module} imports {name} from the root"
    here, there = group_of(module), group_of(name)
    below = LAYERS.get(there, 0) < LAYERS.get(here, 0)
    return "" if below or here == there else f"{module} imports {name}, which is not below it"


def test_imports_point_down_and_never_to_the_root() -> None:
    problems = [
        problem_of(module, name)
        for module, path in own_modules()
        for name in imports(module, path)
        if name.split(".")[0] == "swe_gym" and module != "swe_gym"  # the root gathers the public names of all
    ]
    assert [problem for problem in problems if problem] == []


SHARED_CLASS_NAMES = {}
"""Class name -> why it may stand more than once."""


def test_a_class_name_stands_once() -> None:
    """`swe_gym.wrappers.vector` has the names of `swe_gym.wrappers`, as Gymnasium's modules do."""
    places = collections.defaultdict(list)
    for module, path in own_modules():
        if module != "swe_gym.wrappers.vector":
            for node in walk(path):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{module}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_name_of_a_test_module_stands_once() -> None:
    """pytest imports them by their names alone."""
    names = collections.Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert {name for name, count in names.items() if count > 1} == set()


MOST_NAMES = 24
"""Public names of one door."""

ENDS_OF_THE_WIRE = ("swe_gym.sandboxes", "swe_gym.testing.sandbox_contract")
"""Who imports from the modules of `guests`, which hold the other end: more than fifty names of operations and messages.

Everybody else uses its door. It cannot import late: local sandboxes load the folder without the package.
"""

THROUGH_THE_WALL = {
    ("swe_gym.curation.bundle", "swe_gym.tasks.file.BUNDLE_TASKS"): "writes the file that the source reads",
    ("swe_gym.vector.families", "swe_gym.envs.families"): "has a function for each class there",
}
"""Module and what it imports -> why it does not use the door."""


@functools.cache
def door_of(package: str) -> set[str]:
    """The public names that the `__init__` of a package defines or imports from its modules."""
    found = set()
    tree = parse(PACKAGE.parent.joinpath(*package.split("."), "__init__.py"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {alias.name for alias in node.names}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return {name for name in found if not name.startswith("_")}


def is_package(name: str) -> bool:
    return PACKAGE.parent.joinpath(*name.split("."), "__init__.py").is_file()


def test_outsiders_import_from_doors() -> None:
    problems = []
    for module, path in own_modules():
        own = ".".join(module.split(".")[:2])
        for name in imports(module, path):
            folder, (package, _, last) = ".".join(name.split(".")[:2]), name.rpartition(".")
            if folder == own or not is_package(folder) or module == "swe_gym":
                continue  # the root gathers the public names of all
            if folder == "swe_gym.guests" and module.startswith(ENDS_OF_THE_WIRE):
                continue
            at_door = name == folder or (is_package(package) and last in door_of(package))
            if not at_door:
                problems.append((module, name))
    assert set(problems) == set(THROUGH_THE_WALL)


def top_names(path: Path) -> set[str]:
    """Return the names that a module binds at its top level, those of its branches and of its door too."""
    names: set[str] = set()
    todo: list[ast.stmt] = list(parse(path).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {one.asname or one.name for one in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.If | ast.Try):
            todo += [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)]
        else:
            names |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return names


def test_benchmarks_and_examples_import_what_exists() -> None:
    """No test runs most of them, so a renamed function would break them without notice."""
    modules = dict(own_modules())
    missing = []
    for path in sorted(found for folder in ("benchmarks", "examples") for found in (ROOT / folder).rglob("*.py")):
        for node in walk(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "swe_gym":
                module = node.module or ""
                known = top_names(modules[module]) if module in modules else set()
                missing += [
                    f"{path.relative_to(ROOT)}: {module}.{one.name}"
                    for one in node.names
                    if one.name not in known and f"{module}.{one.name}" not in modules
                ]
    assert not missing


def test_doors_are_small_and_clear() -> None:
    for module, path in own_modules():
        if path.name == "__init__.py" and module != "swe_gym" and module.count(".") == 1:
            names = door_of(module)
            assert len(names) <= MOST_NAMES, module
            modules = {file.stem for file in path.parent.iterdir() if file.suffix == ".py" or file.is_dir()}
            assert not names & modules, f"{module}: an import of the module would hide the name"


def test_importing_the_package_is_light() -> None:
    code = "import sys, swe_gym; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not HEAVY & set(output.stdout.split())


OF_EXTRAS = HEAVY - {"typer", "rich"} | {"httpx", "huggingface_hub", "matplotlib", "pandas", "ray", "yaml"}


def test_commands_can_be_loaded_without_any_extra() -> None:
    """What an extra brings is imported where it is used."""
    code = f"""
import sys
sys.modules.update(dict.fromkeys({sorted(OF_EXTRAS)}))  # their import is an ImportError
from swe_gym_command.app import COMMANDS
import importlib
for place, _ in COMMANDS.values():
    importlib.import_module("swe_gym.cli." + place.partition(":")[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_guests_need_only_an_old_python() -> None:
    for path in GUESTS:
        if path == PACKAGE / "guests" / "__init__.py":
            continue  # `bundle` runs on the host
        tree = ast.parse(path.read_text(), path, feature_version=(3, 6))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names.append(node.module or "")
            assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names | {"pytest", "_pytest"}, path


OF_TESTS = "swe_gym.testing"
"""Suites, whose process is a run of tests."""


def test_temporary_folders_end_with_their_process() -> None:
    """Nothing but `guard` makes one, so that none is left by SIGKILL. Guests' folders end with their sandbox."""
    makers = {"tempfile.mkdtemp", "tempfile.TemporaryDirectory", "tempfile.mkstemp", "tempfile.NamedTemporaryFile"}
    for module, path in own_modules():
        if module.startswith(("swe_gym.guests", OF_TESTS)) or module in SWEPT:
            continue
        used = {ast.unparse(node) for node in walk(path) if isinstance(node, ast.Attribute)}
        assert not (used | set(imports(module, path))) & makers, module


SWEPT = {"swe_gym.sandboxes.images.store": "makes folders in the store, which `swe-gym images prune` sweeps"}
"""Module -> what becomes of its temporary folders."""


OWNS_THE_PROCESS = "swe_gym.train"
"""A training run is a program of its own: it seeds everything, and keeps all of it in its checkpoints."""


def test_nothing_draws_from_the_random_numbers_of_the_program_around_it() -> None:
    for module, path in own_modules():
        if module.startswith(OWNS_THE_PROCESS):
            continue
        used = {
            node.attr
            for node in walk(path)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
        }
        named = {name.removeprefix("random.") for name in imports(module, path) if name.startswith("random.")}
        assert used | named <= {"Random", "SystemRandom"}, module


OF_ONE_BACKEND = {
    "swe_gym.cli.images": "the images of a Docker engine and of local sandboxes, and the tools of AGS",
}
"""Commands that are about the images of one backend, and so import from its folder."""


def test_nothing_but_a_backend_knows_a_backend() -> None:
    """A backend speaks for itself: no module compares names of backends or imports from the folder of one."""
    folders = {target.partition(":")[0] for target in BACKENDS.values()} | {"swe_gym.sandboxes.images"}
    for module, path in own_modules():
        if module.startswith("swe_gym.sandboxes") or module in OF_ONE_BACKEND:
            continue
        compared = {
            node.value
            for comparison in walk(path)
            if isinstance(comparison, ast.Compare)
            for node in ast.walk(comparison)
            if isinstance(node, ast.Constant)
        }
        assert not compared & set(BACKENDS), module
        assert not [name for name in imports(module, path) if name.startswith(tuple(folders))], module


OF_EPISODES = {"Action", "Oracle", "Reward", "Task", "Tool", "ToolCall", "ToolResult", "ToolSpec", "Verdict"}

ALONE = """
import sys
from swe_gym.sandboxes import SandboxSpec, open_sandbox
with open_sandbox(SandboxSpec()) as sandbox:
    assert sandbox.exec("echo alone").text == "alone\\n"
print(*sys.modules)
"""


def test_sandboxes_work_alone() -> None:
    """They know nothing of tasks, tools and grading, and load none of these."""
    for module, path in own_modules():
        if module.startswith("swe_gym.sandboxes"):
            assert not {name.rpartition(".")[2] for name in imports(module, path)} & OF_EPISODES, module
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name for name in done.stdout.split() if name.startswith("swe_gym.")}
    assert {name.split(".")[1] for name in loaded} & {"tools", "grading", "rollout", "trajectories"} == set()
    assert not loaded & {"swe_gym.tasks.base", "swe_gym.envs.swe_env"}  # the root registers the ids of environments


def test_the_door_of_sandboxes_is_small_and_imports_late() -> None:
    names = [name for name in vars(swe_gym.sandboxes) if name[0] != "_" and name not in ("Registry", "UsageError")]
    names = {*homes("swe_gym.sandboxes"), *(name for name in names if callable(getattr(swe_gym.sandboxes, name)))}
    assert len(names) <= 21
    assert all(getattr(swe_gym.sandboxes, name) is not None for name in names)
    code = "import sys, swe_gym.sandboxes; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "pydantic" not in done.stdout.split()


def test_one_module_parses() -> None:
    """`ast.parse` in two threads at once may fail, and `ast.literal_eval` of text parses it. Guests have one thread."""
    calls: dict[str, set[str]] = collections.defaultdict(set)
    for module, path in own_modules():
        for node in walk(path):
            if isinstance(node, ast.Call):
                calls[ast.unparse(node.func)].add(module)
    of_trees = {"gateway.call_formats", "grading.counter.changes", "grading.counter.finding"}
    assert {one for one in calls["ast.parse"] if ".guests." not in one} == {"swe_gym.syntax"}
    assert {one for one in calls["ast.literal_eval"] if ".guests." not in one} == {"swe_gym.syntax"} | {
        f"swe_gym.{one}" for one in of_trees
    }
