"""The generated pages of docs/ are what the code says."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from guestward import cli, config
from guestward.adapters.metrics import METRICS
from guestward.model.events import all_events
from guestward.model.helper import HelperCode, Verb
from guestward.model.scratch import ScratchVerdict
from guestward.sim.guest import TRAITS
from guestward.sim.scenario import HONOURED
from guestward.sim.verbs import VERBS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    path = ROOT / "tools" / "generate-docs"
    loader = importlib.machinery.SourceFileLoader("generate_docs", str(path))
    spec = importlib.util.spec_from_loader("generate_docs", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before, written = sys.path[:], sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    sys.path[:], sys.dont_write_bytecode = before, written
    return module


def test_docs_are_current(generator: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert generator.main(["--check"]) == 0, capsys.readouterr().out


def test_check_names_what_is_stale(generator: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generator.main([], tmp_path) == 0
    assert generator.main(["--check"], tmp_path) == 0
    (tmp_path / "docs" / "events.md").write_text("old")
    (tmp_path / "docs" / "metrics.md").unlink()
    capsys.readouterr()
    assert generator.main(["--check"], tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [
        "docs/events.md is stale: run tools/generate-docs",
        "docs/metrics.md is stale: run tools/generate-docs",
    ]
    assert (tmp_path / "docs" / "events.md").read_text() == "old"


def test_everything_is_on_its_page(generator: ModuleType) -> None:
    pages = generator.pages()
    for event in all_events():
        assert f"| `{event.name}` |" in pages["events.md"]
    for verdict in ScratchVerdict:
        assert f"| `{verdict}` |" in pages["events.md"]
    for metric in METRICS:
        assert f"| `guestward_{metric.name}` |" in pages["metrics.md"]
    for code in HelperCode:
        assert f"| `{code}` |" in pages["helper.md"]
    for helper_verb in Verb:
        assert f"| `{helper_verb}` |" in pages["helper.md"]
    logged = set(re.findall(r'"(helper_\w+)"', (ROOT / "agent/guestward/helper/main.py").read_text(encoding="utf-8")))
    assert logged == set(re.findall(r"^\| `(helper_\w+)` \|", pages["helper.md"], re.MULTILINE))
    for verb in VERBS.values():
        form = verb.form.replace("|", "\\|")
        assert f"| `{form}` |" in pages["scenario-verbs.md"]


def test_every_verb_of_the_helper_says_what_it_does(generator: ModuleType) -> None:
    assert set(generator._VERBS) == set(Verb)


def test_no_page_says_that_something_is_missing_that_is_there() -> None:
    """Words that promise for later what this version does."""
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "agent/guestward/config.py"]
    for page in pages:
        text = " ".join(page.read_text(encoding="utf-8").split())
        for sentence in re.split(r"(?<=[.:]) ", text):
            later = re.search(r"not (yet|part of (it|this version)|built)\b|Not yet|acts on any of it yet", sentence)
            assert later is None or not re.search(r"(?i)scratch|teardown|regrant", sentence), f"{page.name}: {sentence[:200]}"


def test_the_readme_has_every_command() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in ("status", "explain", "hold", "release", "rearm", "locks", "scratch list", "scratch claim", "scratch teardown"):
        assert f"`guestward {command}" in page


def test_the_defaults_are_toml_that_is_accepted(generator: ModuleType) -> None:
    lines, page = [], generator.pages()["configuration.md"]
    for line in page.splitlines():
        if line.startswith("## `["):
            lines.append(line.removeprefix("## `").removesuffix("`"))
        elif line.startswith("| `") and not line.startswith("| `token_id`"):
            key, default = (cell.strip().strip("`") for cell in line.split("|")[1:3])
            lines.append(f"{key} = {default}" if default != "none" else f"# {key}")
    lines.insert(1, 'token_id = "a@pve!agent"')
    parsed = config.parse(tomllib.loads("\n".join(lines)), Path("x"))
    assert parsed == config.Config(pve=config.PveSection(token_id="a@pve!agent"), file=Path("x"))


def test_the_example_of_a_simulation_is_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(toml|sh|)\n(.*?)```", page, re.DOTALL)
    example, output, refused, race = (blocks[i][1] for i in (0, 1, 3, 4))
    monkeypatch.chdir(tmp_path)
    Path("incident.toml").write_text(example)
    assert cli.main(["simulate", "incident.toml"]) == 0
    assert capsys.readouterr().out == output
    Path("incident.toml").write_text(example.replace("die 101", "dye 101"))
    assert cli.main(["simulate", "incident.toml"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == refused.strip()
    Path("incident.toml").write_text(example + race)
    assert cli.main(["simulate", "incident.toml"]) == 0


def test_every_section_that_a_simulation_honours_is_on_its_page() -> None:
    page = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| `[config.SECTION]` |"))
    named = {f"{section}.{key}" for section, keys in HONOURED.items() for key in keys} | {s for s, keys in HONOURED.items() if not keys}
    assert set(re.findall(r"`([\w.]+)`", row)) == named | {"guestward.toml"}


def test_every_key_of_a_guest_is_on_the_page_of_simulations() -> None:
    page = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    keys = {key for line in page.splitlines() if line.startswith("| `") for key in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert {"vmid", "kind", *TRAITS} <= keys
