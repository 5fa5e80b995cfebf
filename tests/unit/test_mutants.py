"""How `make mutants` judges: the score, the list of equivalents, and that nothing is left out in silence."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LIST = """\
[[equivalent]]
function = "guards._ask"
before = "stands = False"
after = "stands = None"
why = "only asked whether it is true"
"""
SHOWN = """\
# guestward.policy.guards.x__ask__mutmut_1: survived
--- src/guestward/policy/guards.py
+++ src/guestward/policy/guards.py
@@ -1,5 +1,5 @@
 def _ask(case: Case) -> Iterator[Verdict]:
-    stands = False
+    stands = None
     for guard, question in _QUESTIONS.items():
"""


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    loader = importlib.machinery.SourceFileLoader("mutants_tool", str(ROOT / "tools" / "mutants"))
    spec = importlib.util.spec_from_loader("mutants_tool", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.modules["mutants_tool"] = module
    loader.exec_module(module)
    sys.dont_write_bytecode = written
    yield module
    del sys.modules["mutants_tool"]


def made(tool: ModuleType, file: str, number: int, status: str = "killed", change: Any = None) -> Any:
    return tool.Mutant(f"guestward.policy.{file}.x_f__mutmut_{number}", status, change)


def many(tool: ModuleType, file: str, killed: int, *others: Any) -> list[Any]:
    return [made(tool, file, number) for number in range(killed)] + list(others)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("guestward.policy.guards.x_decide__mutmut_12", "guards.decide"),
        ("guestward.policy.guards.x__ask__mutmut_1", "guards._ask"),
        ("guestward.policy.guards.xǁCaseǁconfig__mutmut_1", "guards.Case.config"),
    ],
)
def test_a_mutant_is_told_by_its_function(tool: ModuleType, name: str, function: str) -> None:
    assert tool.Mutant(name, "killed").function == function


def test_a_change_is_the_lines_that_go_and_come(tool: ModuleType) -> None:
    change = tool.change_of("guards._ask", SHOWN)
    assert (change.before, change.after) == ("stands = False", "stands = None")
    assert tool.equivalents(LIST) == {change: "only asked whether it is true"}


@pytest.mark.parametrize("text", [LIST + LIST, LIST.replace("only asked whether it is true", " ")], ids=["twice", "without a reason"])
def test_a_list_with_an_entry_twice_or_without_a_reason_is_refused(tool: ModuleType, text: str) -> None:
    with pytest.raises(SystemExit):
        tool.equivalents(text)


def test_the_list_of_the_project_can_be_read(tool: ModuleType) -> None:
    assert tool.equivalents(tool.EQUIVALENT.read_text())


@pytest.mark.parametrize(
    "status", ["survived", "no tests", "suspicious", "skipped", "segfault", "not checked", "check was interrupted by user"]
)
def test_all_but_killed_and_timed_out_counts_as_survived(tool: ModuleType, status: str) -> None:
    count, reached = tool.score([made(tool, "gate", 1), made(tool, "gate", 2, "timeout"), made(tool, "gate", 3, status)], {})
    assert (dict(count), round(reached, 2)) == ({"killed": 1, "timeout": 1, "survived": 1}, 66.67)


def test_95_per_cent_in_all_is_enough_and_less_is_not(tool: ModuleType) -> None:
    change = tool.change_of("gate.f", SHOWN)
    survivor = [made(tool, "gate", 99, "survived", change)]
    assert tool.faults(many(tool, "gate", 19, *survivor) + many(tool, "guards", 0), {}, ["gate.py", "guards.py"]) == [
        "guards.py: mutmut made no mutants",
        "guards.py: 0.00 %, 100 % is the least",
    ]
    assert len(tool.faults(many(tool, "gate", 17, *survivor) + many(tool, "guards", 1), {}, ["gate.py"])) == 1


@pytest.mark.parametrize("file", ["guards", "locks", "scratch"])
def test_of_guards_locks_and_scratch_every_mutant_must_be_killed_or_be_listed(tool: ModuleType, file: str) -> None:
    change = tool.change_of(f"{file}._ask", SHOWN)
    mutants = many(tool, file, 999, made(tool, file, 999, "survived", change))
    assert tool.faults(mutants, {}, [f"{file}.py"]) == [f"{file}.py: 99.90 %, 100 % is the least"]
    assert tool.faults(mutants, {change: "why"}, [f"{file}.py"]) == []


def test_an_equivalent_that_is_no_survivor_any_more_is_a_fault(tool: ModuleType) -> None:
    change = tool.change_of("guards._ask", SHOWN)
    assert len(tool.faults(many(tool, "guards", 1), {change: "why"}, ["guards.py"])) == 1


def test_a_file_without_mutants_is_a_fault(tool: ModuleType) -> None:
    assert tool.faults(many(tool, "guards", 1), {}, ["guards.py", "gate.py"]) == ["gate.py: mutmut made no mutants"]
    assert set(tool.mutable_files(tool.REPO / "agent" / "guestward" / "policy")) >= {"guards.py", "recall.py", "gate.py"}
