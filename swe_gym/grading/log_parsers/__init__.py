"""Log parsers: pure functions from a log to `{test id: status}`, found by name.

A parser keeps whole test ids. `grading.matching` matches the cut ids of published lists.
"""

from __future__ import annotations

from collections.abc import Callable

from ...registry import Registry
from .lines import LogParser
from .pytest import plain_buttons, short_path
from .r2e import short_name

__all__ = ["LOG_PARSERS", "LogParser", "load_parser", "pytest_name", "runner_of"]

HARNESS_PREFIX = "parse_log_"
HERE = "swe_gym.grading.log_parsers"
PYTEST = f"{HERE}.pytest:parse_pytest"
PYTEST_OPTIONS = f"{HERE}.pytest:parse_pytest_options"
PYTEST_COLOURS = f"{HERE}.pytest:parse_pytest_colours"
MATPLOTLIB = f"{HERE}.pytest:parse_matplotlib"
DJANGO = f"{HERE}.django:parse_django"
SYMPY = f"{HERE}.sympy:parse_sympy"
R2E = f"{HERE}.r2e:parse_r2e"
JUNIT_NODES = f"{HERE}.junit:parse_junit_nodes"
MAVEN_OR_JUNIT = f"{HERE}.rebench:parse_maven_or_junit"

LOG_PARSERS = Registry(
    "log parser",
    {
        "pytest": PYTEST,
        "pytest_options": PYTEST_OPTIONS,
        "pytest_v2": PYTEST_COLOURS,
        "pytest_nebo": PYTEST,
        "seaborn": PYTEST,
        "swesmith_pytest": PYTEST,
        "r2e": R2E,
        "matplotlib": MATPLOTLIB,
        "django": DJANGO,
        "sympy": SYMPY,
        "gotest": f"{HERE}.native:parse_gotest",
        "cargo": f"{HERE}.native:parse_cargo",
        "googletest": f"{HERE}.native:parse_googletest",
        "ctest": f"{HERE}.native:parse_ctest",
        "doctest": f"{HERE}.native:parse_doctest",
        "jq": f"{HERE}.native:parse_jq",
        "redis": f"{HERE}.native:parse_redis",
        "micropython_test": f"{HERE}.native:parse_micropython",
        "maven": f"{HERE}.jvm:parse_maven",
        "maven_classes": f"{HERE}.jvm:parse_maven_classes",
        "ant": f"{HERE}.jvm:parse_ant",
        "gradle_custom": f"{HERE}.jvm:parse_gradle",
        "gradle_tasks": f"{HERE}.jvm:parse_gradle_tasks",
        "jest": f"{HERE}.javascript:parse_jest",
        "jest_json": f"{HERE}.javascript:parse_jest_json",
        "immutable_js": f"{HERE}.javascript:parse_jest_or_json",
        "jest_suites": f"{HERE}.javascript:parse_jest_suites",
        "react_pdf": f"{HERE}.javascript:parse_jest_files",
        "calypso": f"{HERE}.javascript:parse_calypso",
        "vitest": f"{HERE}.javascript:parse_vitest",
        "mocha": f"{HERE}.javascript:parse_mocha",
        "karma": f"{HERE}.javascript:parse_karma",
        "tap": f"{HERE}.javascript:parse_tap",
        "chart_js": f"{HERE}.javascript:parse_chart_js",
        "marked": f"{HERE}.javascript:parse_marked",
        "p5js": f"{HERE}.javascript:parse_p5js",
        "minitest": f"{HERE}.scripting:parse_minitest",
        "cucumber": f"{HERE}.scripting:parse_cucumber",
        "jekyll": f"{HERE}.scripting:parse_jekyll",
        "ruby_unit": f"{HERE}.scripting:parse_ruby_unit",
        "rspec_transformed_json": f"{HERE}.scripting:parse_rspec",
        "phpunit": f"{HERE}.scripting:parse_phpunit",
        # Further names of SWE-rebench V2:
        **dict.fromkeys(("junit", "sbt"), f"{HERE}.junit:parse_junit"),
        **dict.fromkeys(("r_junit", "parse_logs_r_junit", "parse_combined_test_reports"), JUNIT_NODES),
        "gradlew_v1": f"{HERE}.junit:parse_gradle_junit",
        **dict.fromkeys(("java_mvn", "parse_java_mvn", "kotlin_junit", "parse_logs_kotlin_junit"), MAVEN_OR_JUNIT),
        **dict.fromkeys(("java_mvn_v2", "parse_java_mvn_v2"), f"{HERE}.rebench:parse_maven_modules"),
        **dict.fromkeys(("js", "js_2"), f"{HERE}.rebench:parse_js"),
        "js_3": f"{HERE}.rebench:parse_js_tap",
        "js_4": f"{HERE}.rebench:parse_js_symbols",
        "npx": f"{HERE}.rebench:parse_npx",
        "php_v1": f"{HERE}.rebench:parse_pest",
        "ruby_v1": f"{HERE}.rebench:parse_ruby_suites",
        "ruby_v2": f"{HERE}.rebench:parse_ruby_letters",
        "elixir": f"{HERE}.rebench:parse_elixir",
        "julia": f"{HERE}.rebench:parse_julia",
        "scala": f"{HERE}.rebench:parse_scala",
        "swift": f"{HERE}.rebench:parse_swift",
        "csharp": f"{HERE}.rebench:parse_csharp",
        "dart": f"{HERE}.rebench:parse_dart_events",
        "dart_v3": f"{HERE}.rebench:parse_dart_lines",
        "r": f"{HERE}.rebench:parse_testthat",
        "lein": f"{HERE}.rebench:parse_lein",
        "ocaml": f"{HERE}.rebench:parse_alcotest",
        "ocaml_v3": f"{HERE}.rebench:parse_ocaml",
        **dict.fromkeys(("lua_nvim", "parse_lua_nvim", "parse_lue_nvim"), f"{HERE}.rebench:parse_lua"),
        "cpp": f"{HERE}.rebench:parse_cpp_nodes",
        "cpp_v2": f"{HERE}.rebench:parse_cpp_words",
        "cpp_v4": f"{HERE}.native:parse_ctest",
        # Names of SWE-bench's own parsers, by repository:
        **dict.fromkeys(("astroid", "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray"), PYTEST),
        **dict.fromkeys(("pydicom", "requests", "pylint"), PYTEST_OPTIONS),
        **dict.fromkeys(("astropy", "scikit", "sphinx"), PYTEST_COLOURS),
    },
    group="swe_gym.log_parsers",
)


RUNNERS = {
    **dict.fromkeys((PYTEST, PYTEST_COLOURS, PYTEST_OPTIONS, MATPLOTLIB, R2E), "pytest"),
    DJANGO: "django",
    SYMPY: "sympy",
}
"""Parser -> the Python runner whose logs it reads."""

NODE_NAMES: dict[str, Callable[[str], str]] = {PYTEST_OPTIONS: short_path, MATPLOTLIB: plain_buttons, R2E: short_name}
"""Parser -> its name for the test of a node id; others keep the id."""


def load_parser(name: str) -> LogParser:
    """Load the parser of that name, with or without the prefix of SWE-bench's names ("parse_log_").

    Raises:
        UsageError: The name is unknown.
    """
    parser: LogParser = LOG_PARSERS.load(name.removeprefix(HARNESS_PREFIX))
    return parser


def runner_of(parser: object) -> str:
    """Return the Python runner whose logs a parser reads: "pytest", "django", "sympy"; empty for others."""
    return RUNNERS.get(_target(parser), "")


def pytest_name(parser: object) -> Callable[[str], str] | None:
    """Return the function from a node id to the parser's name of the test; None if it does not read pytest's logs."""
    return NODE_NAMES.get(_target(parser), str) if runner_of(parser) == "pytest" else None


def _target(parser: object) -> str:
    return LOG_PARSERS.get(parser.removeprefix(HARNESS_PREFIX), "") if isinstance(parser, str) else ""
