"""Each record finds its target in both supported versions, and says so loudly when it does not."""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.contract.records import collect
from tests.contract.source import ContractError, check_against_source, parameters_in_source, unpack_release
from vllm_asd.upstream.patching import Patch, PatchError, PatchSet
from vllm_asd.versions import installed_vllm

RECORDS = collect()
SEAMS = {"v1_runner", "v2_runner", "engine_args", "scheduler", "worker", "requests", "wire"}


def by_target(patch: Patch) -> str:
    """A test's name."""
    return patch.target


def installed_source() -> Path:
    """The folder that holds the installed package, found without importing it."""
    for folder in map(Path, sys.path):
        if (folder / "vllm" / "__init__.py").is_file():
            return folder
    pytest.skip("vLLM is not installed")


@pytest.fixture(scope="session")
def other_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The other supported version's source."""
    given = os.environ.get("VLLM_ASD_OTHER_VLLM")
    if given:
        return Path(given)
    if not os.environ.get("VLLM_ASD_FULL"):
        pytest.skip("VLLM_ASD_OTHER_VLLM names no source; VLLM_ASD_FULL=1 downloads one")
    found = installed_vllm()
    folder = tmp_path_factory.mktemp("other")
    unpack_release("0.32.0" if found and found[1].startswith("0.33") else "0.33.0", folder)
    return folder


def test_all_seams_are_collected() -> None:
    """A seam that nobody collects is not checked."""
    import vllm_asd.upstream as upstream

    folder = Path(upstream.__file__).parent
    with_records = {path.stem for path in folder.glob("*.py") if "= Patch(" in path.read_text()}
    assert with_records >= SEAMS
    written = sum(path.read_text().count("= Patch(") for path in folder.glob("*.py"))
    assert len(RECORDS) == written, "two records with one target"


@pytest.mark.parametrize("patch", RECORDS, ids=by_target)
def test_the_installed_vllm_has_the_target(patch: Patch) -> None:
    """The name is there and takes the parameters that the patch passes on."""
    pytest.importorskip("vllm")
    patch.check()


@pytest.mark.parametrize("patch", RECORDS, ids=by_target)
def test_the_source_says_the_same_as_the_import(patch: Patch) -> None:
    """What reads the other version's source reads the installed one's right."""
    check_against_source(patch, installed_source())


@pytest.mark.parametrize("patch", RECORDS, ids=by_target)
def test_the_other_version_has_the_target(patch: Patch, other_source: Path) -> None:
    """By its source, without an import."""
    check_against_source(patch, other_source)


@pytest.mark.parametrize("patch", RECORDS, ids=by_target)
def test_a_moved_target_is_noticed(patch: Patch) -> None:
    """By import and by source: another name, another parameter, a missing one."""
    source = installed_source()
    renamed = dataclasses.replace(patch, target=f"{patch.target}_gone")
    grown = dataclasses.replace(patch, parameters=(*patch.parameters, "added"))
    for changed in (renamed, grown):
        with pytest.raises(PatchError, match="vllm-asd"):
            changed.check()
        with pytest.raises(ContractError):
            check_against_source(changed, source)
    if patch.exact and patch.parameters:
        with pytest.raises(PatchError, match="expected"):
            dataclasses.replace(patch, parameters=patch.parameters[:-1]).check()


@pytest.mark.parametrize("patch", RECORDS, ids=by_target)
def test_a_record_is_complete(patch: Patch) -> None:
    """The README's table and the doctor are made from it."""
    assert patch.why
    assert patch.remove_when
    assert set(patch.process.split(", ")) <= {"front end", "engine core", "worker"}


def greet(name: str, loud: bool = False) -> str:
    """Stand in for a function of vLLM."""
    return name.upper() if loud else name


class Greeter:
    """Stand in for a class of vLLM."""

    def greet(self, name: str) -> str:
        return name


GREET = Patch("fake_vllm:greet", ("name", "loud"), "a test", "never", "worker")
METHOD = Patch("fake_vllm:Greeter.greet", ("self", "name"), "a test", "never", "worker", instance=True)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that the records of this file patch."""
    module = ModuleType("fake_vllm")
    module.greet = greet  # type: ignore[attr-defined]
    module.Greeter = Greeter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_vllm", module)
    return module


def add_mark(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its result shows how often."""
    return lambda *args, **kwargs: original(*args, **kwargs) + "!"


def test_applying_twice_is_applying_once(fake: Any) -> None:
    """Idempotent."""
    patches = PatchSet()
    patches.apply(GREET, add_mark)
    patches.apply(GREET, add_mark)
    assert fake.greet("a") == "a!"
    assert GREET in patches


def test_undoing_restores_the_original(fake: Any) -> None:
    """The very object, and the record can be applied again."""
    patches = PatchSet()
    patches.apply(GREET, add_mark)
    patches.undo_all()
    assert fake.greet is greet
    assert GREET not in patches
    patches.apply(GREET, add_mark)
    assert fake.greet("a") == "a!"


def test_a_second_writer_is_refused(fake: Any) -> None:
    """Two records for one target cannot both be right."""
    patches = PatchSet()
    patches.apply(GREET, add_mark)
    other = dataclasses.replace(GREET, why="another")
    with pytest.raises(PatchError, match="another record"):
        patches.apply(other, add_mark)
    assert fake.greet("a") == "a!"


def test_a_bound_patch_leaves_the_class_alone(fake: Any) -> None:
    """One object is changed, its neighbour is not."""
    changed, neighbour = fake.Greeter(), fake.Greeter()
    METHOD.bind(changed, add_mark)
    assert (changed.greet("a"), neighbour.greet("a")) == ("a!", "a")


def test_a_subclass_with_another_signature_is_refused(fake: Any) -> None:
    """The class is as expected, the object that is to be patched is not."""

    class Louder(Greeter):
        def greet(self, name: str, times: int = 2) -> str:
            return name * times

    with pytest.raises(PatchError, match="Louder"):
        METHOD.bind(Louder(), add_mark)


def test_a_wrong_target_is_not_applied(fake: Any) -> None:
    """Neither added silently nor half applied."""
    patches = PatchSet()
    for wrong in ("fake_vllm:gone", "fake_vllm:Gone.greet", "no_such_module:greet"):
        with pytest.raises(PatchError, match="does not exist"):
            patches.apply(dataclasses.replace(GREET, target=wrong), add_mark)
    with pytest.raises(PatchError, match="takes"):
        patches.apply(dataclasses.replace(GREET, parameters=("name",)), add_mark)
    assert not hasattr(fake, "gone")
    assert fake.greet is greet


def test_an_inexact_record_takes_more_parameters_but_not_fewer(fake: Any) -> None:
    """For targets whose arguments are read by name."""
    dataclasses.replace(GREET, parameters=("loud",), exact=False).check()
    with pytest.raises(PatchError, match="takes"):
        dataclasses.replace(GREET, parameters=("loud", "soft"), exact=False).check()


def test_reading_a_source(tmp_path: Path) -> None:
    """Decorators, branches, imported names, keyword-only and starred parameters."""
    module = tmp_path / "vllm" / "thing" / "__init__.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "if True:\n    class A:\n        @cached\n        async def f(self, a, /, *b, c=1, **d): ...\n"
    )
    assert parameters_in_source("vllm.thing:A.f", tmp_path) == ("self", "a", "b", "c", "d")
    (tmp_path / "vllm" / "user.py").write_text("from vllm.helper import f as g")
    (tmp_path / "vllm" / "helper.py").write_text("def f(a): ...\ndef f(a, b): ...")
    assert parameters_in_source("vllm.user:g", tmp_path) == ("a", "b")
    for gone in ("vllm.user:f", "vllm.thing:A.g", "vllm.thing:B.f", "vllm.other:f"):
        with pytest.raises(ContractError):
            parameters_in_source(gone, tmp_path)
