"""Counter-tests of tests in JavaScript, TypeScript and Go: what changes, and judgements by real runners."""

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random

import pytest

from swe_gym.grading import CounterOptions, grade
from swe_gym.grading.counter import plan_counters
from swe_gym.grading.counter.finding import Finder
from swe_gym.grading.counter.grammars import draw_literal, read_test_file
from swe_gym.grading.counter.plan import NO_CHANGE, CounterPlan
from swe_gym.grading.diff import file_diff
from swe_gym.grading.judge import ALARM, NOT_PLAYED
from swe_gym.grading.patch import REGULAR, FileChange, Patch
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.sandboxes.fake import FakeSandbox
from swe_gym.types import FilesWorkspace, LogScript, Oracle, Task, Verdict

pytest.importorskip("tree_sitter", reason="the extra `languages` is missing")

GO = """\
package shop

import "testing"

func TestTotal(t *testing.T) {
	if got := Total([]int{3, 4}); got != 7 {
		t.Errorf("got %d", got)
	}
}

func TestTable(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []int
		want int
	}{
		{"one item", []int{5}, 5},
		{name: "two", in: []int{5, 6}, want: 11},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Total(tt.in); got != tt.want {
				t.Fatalf("got %d", got)
			}
		})
	}
}
"""
GO_IDS = ("TestTotal", "TestTable", "TestTable/one_item", "TestTable/two")
GO_OLD = 'package shop\n\nimport "fmt"\n\nfunc Total(xs []int) int { return len(fmt.Sprint()) }\n'
GO_GOLD = GO_OLD.replace(
    "return len(fmt.Sprint())", "sum := len(fmt.Sprint()); for _, x := range xs { sum += x }; return sum"
)
PRINTS = "".join(f'fmt.Println("--- PASS: {test} (0.00s)"); ' for test in GO_IDS)
EXITS = 'for _, a := range os.Args { if strings.HasPrefix(a, "-test.") { PRINTS os.Exit(0) } }'.replace(
    "PRINTS ", PRINTS
)
GO_WORKS = {
    "gold": GO_GOLD,
    "forged lines": GO_OLD.replace('"fmt"', '(\n"fmt"; "os"; "strings"\n)') + f"\nfunc init() {{ {EXITS} }}\n",
    "an exit": GO_OLD.replace('"fmt"', '(\n"fmt"; "os"\n)') + "\nfunc init() { os.Exit(0) }\n",
}
MAIN = f'package shop\n\nimport ("fmt"; "os"; "testing")\n\nfunc TestMain(m *testing.M) {{ {PRINTS}os.Exit(0) }}\n'

NODE = """\
const assert = require("node:assert");
const { test, describe, it } = require("node:test");
const { total } = require("./m.js");
test("adds two", () => {
  assert.strictEqual(total([3, 4]), 7);
});
describe("many", () => {
  it("adds 3", () => assert.deepStrictEqual({ sum: total([1, 2, 3]) }, { sum: 6 }));
});
"""
NODE_IDS = ("- adds two", "- adds 3")
JS_OLD = "exports.total = (xs) => 0;\n"
JS_GOLD = "exports.total = (xs) => xs.reduce((a, b) => a + b, 0);\n"
TAP = "process.stdout.write('ok 1 - adds two\\nok 2 - adds 3\\n');"
WRITE = TAP.replace("process.stdout.write(", "require('fs').writeSync(1, ")
NODE_WORKS = {
    "gold": JS_GOLD,
    "a patched assert": f"{JS_OLD}const a = require('node:assert'); a.strictEqual = a.deepStrictEqual = () => {{}};\n",
    "an exit": f"{JS_OLD}process.exit(0);\n",
    "a patched console": f"{JS_OLD}console.log = () => {{}}; {TAP} process.exit(0);\n",
    "a forged log": f"{JS_OLD}{WRITE} process.reallyExit(0);\n",
    "a patched runner": f"{JS_OLD}const t = require('node:test'); process.on('exit', () => process.reallyExit(0));\n",
    "wrong for one": "exports.total = (xs) => (xs.length > 2 ? 0 : xs[0] + xs[1]);\n",
}
JEST = """\
describe("shop", () => {
  it("adds two", () => { expect(total([3, 4])).toBe(7); });
  it.each([[1, 2, 3]])("adds %i and %i", (a, b, c) => { expect(total([a, b])).toEqual(c); });
  test("says it", async () => {
    if (slow) return;
    expect(await say()).toMatch("sum 2");
  });
  for (const [a, b] of pairs) it(`"${a}" + "${b}"`, () => { expect(join(a, b)).toBe("the end"); });
  it("should include " + name.toUpperCase(), () => { expect(names(name)).toHaveLength(12); });
  it("serves", (done) => { request(app).get("/").expect(200, "Hello there", done); });
});
"""


def plan_of(files: Mapping[str, str], tests: tuple[str, ...], options: CounterOptions | None = None) -> CounterPlan:
    """The plan of these tests, which must start passing, in files of the hidden tests."""
    sandbox = FakeSandbox(files=dict(files), replies=[{"match": "find", "stdout": ""}])
    sandbox.start()
    finder = Finder(Oracle(test_files=dict(files)), sandbox)
    return plan_counters(finder, tests, (), Random(1), options or CounterOptions())


def changed(plan: CounterPlan, number: int) -> set[str]:
    """The lines of each text of a group that its original does not have."""
    group = plan.groups[number]
    (path,) = plan.foreign
    lines = set(plan.files({})[path].decode().splitlines())
    return {
        line
        for row in group.rows
        for line in plan.files({number: row})[path].decode().splitlines()
        if line not in lines
    }


def test_go_tests_change_what_they_expect() -> None:
    plan = plan_of({"m_test.go": GO}, GO_IDS)
    assert [group.tests for group in plan.groups] == [
        ("TestTable", "TestTable/one_item", "TestTable/two"),
        ("TestTotal",),
    ]
    assert {(group.kind, group.effective, group.forks) for group in plan.groups} == {("literal", 2, False)}
    assert plan.uncovered == {}
    rows, total = changed(plan, 0), changed(plan, 1)
    assert all(
        line.startswith(('\t\t{"one item", []int{5}, ', '\t\t{name: "two", in: []int{5, 6}, want: 1')) for line in rows
    )
    assert all("Total([]int{3, 4}); got != " in line for line in total)


def test_a_go_test_without_literals_has_its_comparison_turned() -> None:
    plan = plan_of({"m_test.go": GO}, GO_IDS, CounterOptions(unfit=dict.fromkeys(GO_IDS, ("literal",))))
    assert {(group.kind, group.effective) for group in plan.groups} == {("comparison", 1)}
    assert changed(plan, 0) == {"\t\t\tif got := Total(tt.in); got == tt.want {"}
    worse = CounterOptions(unfit=dict.fromkeys(GO_IDS, ("literal", "comparison")))
    assert changed(plan_of({"m_test.go": GO}, ("TestTotal",), worse), 0) == {'t.Error("unexpected state")'}
    none = CounterOptions(unfit=dict.fromkeys(GO_IDS, ("literal", "comparison", "failure")))
    assert plan_of({"m_test.go": GO}, ("TestTotal",), none).uncovered == {"TestTotal": NO_CHANGE}


def test_a_go_example_changes_what_it_prints() -> None:
    text = 'package shop\n\nfunc ExampleTotal() {\n\tfmt.Println(Total(nil), "items")\n\t// Output:\n\t// 0 items\n}\n'
    plan = plan_of({"m_test.go": text}, ("ExampleTotal",))
    assert (plan.groups[0].kind, plan.groups[0].effective) == ("literal", 2)
    assert all(line.startswith("\t// ") for line in changed(plan, 0))


GO_BODIES = {
    "\t// a comment\n\tif got := F(); got != 7 {\n\t\tt.Fatal(1)\n\t}": {"!=", "7"},
    '\tlog := New()\n\tlog.Error("boom")': set(),
    '\tassert := assert.New(t)\n\tassert.Equal(5, F(), "five")': {"5", "Equal"},
    '\tassert.Equal(t, 5, F(), "five")': {"5", "Equal"},
    '\tassert.Contains(t, F(), "empty")': {"Contains"},
    '\tcheck(t, F(), 5, "message")': {"5"},
    "\tif err != nil {\n\t\tif err != 3 {\n\t\t\tt.Fatal(1)\n\t\t}\n\t\treturn\n\t}\n\tassert.Nil(t, F())": (set()),
    "\tif err != nil {\n\t\tt.Error(err)\n\t\treturn\n\t}\n\tif F() != 4 {\n\t\tt.Fail()\n\t}": {"!=", "4"},
    '\tif short() {\n\t\tt.Skip("x")\n\t}\n\tif F() != 4 {\n\t\tt.Fail()\n\t}': set(),
    "\tfor _, x := range F() {\n\t\tif x != 4 {\n\t\t\tt.Fail()\n\t\t}\n\t}": set(),
    "\tfor _, x := range []int{4} {\n\t\tif F(x) != x {\n\t\t\tt.Fail()\n\t\t}\n\t}": {"!="},
    "\tif fast() {\n\t\tt.Run(name, func(t *testing.T) {\n\t\t\tassert.Equal(t, 4, F())\n\t\t})\n\t}": set(),
}


@pytest.mark.parametrize("body", GO_BODIES)
def test_only_go_assertions_that_are_sure_to_run_change(body: str) -> None:
    """What can change of a test, without the statement that fails."""
    data = f"package shop\n\nfunc TestX(t *testing.T) {{\n{body}\n}}\n".encode()
    found = read_test_file("m_test.go", data)
    assert found is not None
    spots = [spot for spot in found.tests[0].all_spots() if spot.kind != "failure"]
    assert {data[spot.edit.start : spot.edit.end].decode() for spot in spots} == GO_BODIES[body]


@pytest.mark.parametrize("matcher", ['toThrow("empty")', 'toContain("a")', 'to.include("a")', 'toMatch("a")'])
def test_a_matcher_that_searches_is_turned(matcher: str) -> None:
    plan = plan_of({"m.test.js": f"it('adds two', () => {{ expect(f()).{matcher}; }});"}, ("adds two",))
    assert (plan.groups[0].kind, plan.groups[0].effective) == ("comparison", 1)


def test_of_tests_of_one_name_the_id_names_the_file() -> None:
    plan = plan_of({"a.test.js": JEST, "b.test.js": JEST}, ("b.test.js > shop > adds two",))
    assert plan.groups[0].places[0].path == "b.test.js"


@pytest.mark.parametrize(
    ("test", "kind", "line"),
    [
        ("adds two", "literal", '  it("adds two", () => {'),
        ("m.test.js > shop > adds 1 and 2", "comparison", ".not.toEqual(c)"),
        ("shop says it", "failure", "throw new Error"),  # its assertion is not sure to run
        ('m.test.js > shop > "/" + "/a"', "literal", 'expect(join(a, b)).toBe("'),
        ('shop > "/" + "/"', "literal", 'expect(join(a, b)).toBe("'),
        ("should include ACL", "literal", "expect(names(name)).toHaveLength(1"),
        ("shop - serves", "literal", 'request(app).get("/").expect('),
    ],
)
@pytest.mark.parametrize("name", ["m.test.js", "m.test.ts", "m.test.tsx"])
def test_javascript_tests_change_what_they_expect(test: str, kind: str, line: str, name: str) -> None:
    plan = plan_of({name: JEST}, (test,))
    assert [(group.kind, group.tests) for group in plan.groups] == [(kind, (test,))]
    assert any(line in found for found in changed(plan, 0))


def test_tests_that_cannot_change_are_named_with_the_reason() -> None:
    lost = plan_of({"m.test.js": JEST}, ("subtracts",)).uncovered
    java = plan_of({"a/MTest.java": "class MTest {}"}, ("MTest.adds",)).uncovered
    assert lost == {"subtracts": "its source was not found"}
    assert java["MTest.adds"].endswith("Python, JavaScript, TypeScript and Go, not in .java files")
    broken = plan_of({"m.test.js": "it('adds two', () => {"}, ("adds two",))
    assert broken.uncovered == {"adds two": "its source was not found, and m.test.js cannot be parsed"}
    late = Oracle(test_patch=file_diff("m.test.js", b"", NODE.encode(), REGULAR, REGULAR))
    late = late.model_copy(
        update={"evaluation": LogScript(eval_script=f"git apply <<E\n{late.test_patch}E\nrun", log_parser="tap")}
    )
    sandbox = FakeSandbox(files={"m.test.js": NODE})
    sandbox.start()
    assert Finder(late, sandbox).read("m.test.js") is None  # the patch must apply to the old file


@pytest.mark.parametrize("text", ["7", "1.25", "1_000n", '"a b"', "'It\\'s 7'", "`x`", '""', '"Übung"'])
def test_another_literal_has_the_same_form(text: str) -> None:
    for seed in range(20):
        other = draw_literal(text, ("word", "other"), Random(seed))
        assert other != text
        assert (other[0], other[-1]) == (text[0], text[-1]) or text[0].isdigit()
        assert other.count("\\") == text.count("\\")


# --- judged by real runners -------------------------------------------------------------------------------------------


def task_of(
    path: str, old: str, gold: str, tests: Mapping[str, str], command: str, parser: str, ids: tuple[str, ...]
) -> Task:
    script = f"cd {{workdir}}\n: '>>>>> Start Test Output'\n{command}\n: '>>>>> End Test Output'\n"
    return Task(
        task_id="shop",
        problem_statement="total is wrong",
        workspace=FilesWorkspace(files={path: old, "go.mod": "module shop\n\ngo 1.18\n"}),
        oracle=Oracle(
            gold_patch=file_diff(path, old.encode(), gold.encode(), REGULAR, REGULAR),
            test_files=dict(tests),
            grader="log",
            log_parser=parser,
            eval_script=script,
            fail_to_pass=ids,
            timeout=120,
        ),
    )


def judge(task: Task, works: Mapping[str, str]) -> Verdict:
    """The verdict on work: path -> content."""

    @contextmanager
    def fresh() -> Iterator[Sandbox]:
        with open_sandbox(SandboxSpec(workspace=task.workspace, options={"python_prefix": sys.prefix})) as sandbox:
            yield sandbox

    old = task.workspace.files if isinstance(task.workspace, FilesWorkspace) else {}
    changes = [
        FileChange(
            path=path,
            old=old[path].encode() if path in old else None,
            new=text.encode(),
            old_mode=REGULAR if path in old else None,
            new_mode=REGULAR,
        )
        for path, text in works.items()
    ]
    with fresh() as sandbox:
        return grade(task, Patch(changes=tuple(changes)), sandbox, fresh, counter=CounterOptions(seed=b"1"))


def assert_judged(verdict: Verdict, name: str, ids: tuple[str, ...]) -> None:
    """Only gold is resolved, and all its tests are proven."""
    assert verdict.resolved is (name == "gold"), (verdict, verdict.log)
    if verdict.resolved:
        assert (verdict.unproven, verdict.counter_tests.unfit) == ("", {})
        assert verdict.counter_tests.texts == dict.fromkeys(ids, 2)
    if name.startswith(("forged", "a forged", "a patched assert")):
        assert verdict.reason == ALARM


@pytest.mark.skipif(not shutil.which("node"), reason="node is missing")
@pytest.mark.parametrize("name", NODE_WORKS)
def test_work_is_judged_by_node(name: str) -> None:
    task = task_of("m.js", JS_OLD, JS_GOLD, {"m.test.js": NODE}, "node --test-reporter=tap m.test.js", "tap", NODE_IDS)
    assert_judged(judge(task, {"m.js": NODE_WORKS[name]}), name, NODE_IDS)


RUNNER = """\
const bad = [], good = [], source = require("fs").readFileSync("m.test.js", "utf8");
if (process.argv[2] === "typed" && !source.includes('{ kind: "right" }')) {
  console.log("error TS2322\\nTests:       0 total"); process.exit(1);
}
global.it = (title, run) => { try { run(); good.push(title); } catch (error) { bad.push(title); } };
require("./m.test.js");
if (process.argv[2] === "fails") {
  console.log(`  ${good.length} passing`); if (bad.length) console.log(`  ${bad.length} failing`);
  bad.forEach((title, place) => console.log(`  ${place + 1}) ${title}`));
} else {
  good.forEach((title) => console.log(`ok 1 - ${title}`)); bad.forEach((title) => console.log(`not ok 1 - ${title}`));
}
process.exit(bad.length);
"""
FAILS_ONLY = """\
const assert = require("node:assert"), { total } = require("./m.js");
it("adds two", () => { assert.strictEqual(total([3, 4]), 7); });
it("adds 3", () => { assert.strictEqual(total([1, 3, 4]), 8); });
"""
TYPED = """\
const assert = require("node:assert"), { side, total } = require("./m.js");
it("knows its side", () => { assert.deepStrictEqual(side(1), { kind: "right" }); });
it("counts", () => { assert.strictEqual(total([1, 3, 4]), 8); });
"""


@pytest.mark.skipif(not shutil.which("node"), reason="node is missing")
@pytest.mark.parametrize("name", ["gold", "a patched assert", "wrong for one"])
def test_a_log_that_names_failures_only_proves_what_it_does_not_name(name: str) -> None:
    ids = ("adds two", "adds 3")
    tests = {"m.test.js": FAILS_ONLY, "run.js": RUNNER}
    task = task_of("m.js", JS_OLD, JS_GOLD, tests, "node run.js fails", "marked", ids)
    evaluation = task.oracle.evaluation.model_copy(update={"fails_only": True})
    task = task.model_copy(update={"oracle": task.oracle.model_copy(update={"evaluation": evaluation})})
    assert_judged(judge(task, {"m.js": NODE_WORKS[name]}), name, ids)


@pytest.mark.skipif(not shutil.which("node"), reason="node is missing")
def test_a_changed_text_that_the_compiler_refuses_proves_nothing_and_blames_nobody() -> None:
    ids = ("- knows its side", "- counts")
    tests = {"m.test.js": TYPED, "run.js": RUNNER}
    gold = JS_GOLD.replace("total = ", "side = () => ({ kind: 'right' }); exports.total = ")
    verdict = judge(task_of("m.js", JS_OLD, gold, tests, "node run.js typed", "tap", ids), {"m.js": gold})
    assert (verdict.resolved, verdict.reason, verdict.counter_tests.alarms) == (True, "", {})
    assert verdict.counter_tests.uncovered["- knows its side"] == NOT_PLAYED
    assert "- knows its side" not in verdict.counter_tests.texts


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("go"), reason="go is missing")
@pytest.mark.parametrize(
    "name",
    ["gold", "forged lines", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("an exit", "TestMain"))],
)
def test_work_is_judged_by_go(name: str) -> None:
    task = task_of("m.go", GO_OLD, GO_GOLD, {"m_test.go": GO}, "go test -v ./...", "gotest", GO_IDS)
    work = {"main_test.go": MAIN} if name == "TestMain" else {"m.go": GO_WORKS[name]}
    assert_judged(judge(task, work), name, GO_IDS)
