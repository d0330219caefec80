"""After `install` ``import deep_gemm`` gives fp8gemm's functions, and another DeepGEMM's when it is asked for more."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import fp8gemm.integrations.deep_gemm as ours
from fp8gemm import settings
from fp8gemm.errors import InputError, UnsupportedError
from fp8gemm.integrations.deep_gemm import beyond
from tests.other_deep_gemm import imports, without_any, write


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with without_any(monkeypatch), settings.scope(backend="reference"):
        yield


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return write(tmp_path / "deep_gemm")


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vLLM with a DeepGEMM of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    carried = write(tmp_path / "vllm" / "third_party" / "deep_gemm")
    for package in (carried.parent, carried.parent.parent):
        (package / "__init__.py").write_text("")
    return carried


def imported(name: str) -> Any:
    return importlib.import_module(name)


def test_our_functions_need_no_other_and_import_none(theirs: Path) -> None:
    module = ours.install()
    assert imported("deep_gemm") is module and ours.install() is module
    not_deep_gemms = {"install", "uninstall", "answers", "RefusedError", "AbsentError"}
    for name in set(ours.__all__) - not_deep_gemms - beyond.REFUSED:
        found, own = getattr(module, name), getattr(ours, name)
        if isinstance(own, ModuleType):
            assert found.__name__ == f"deep_gemm.{name}"
        else:
            assert getattr(found, "__wrapped__", found) is own, name
    assert not set(dir(module)) & not_deep_gemms
    assert imported("deep_gemm.utils.math").per_token_cast_to_fp8 is ours.per_token_cast_to_fp8
    assert imported("deep_gemm.testing").calc_diff is module.testing.numeric.calc_diff is ours.calc_diff
    layout = module.utils.layout.get_mn_major_tma_aligned_tensor
    assert layout is module.get_mn_major_tma_aligned_tensor is ours.get_mn_major_tma_aligned_tensor
    assert not hasattr(module, "__wrapped__") and module.__version__ == ours.__version__
    assert not imports(theirs)
    assert hasattr(module, "fp8_fp4_mqa_logits") and imports(theirs) == ["_other_deep_gemm"]


def test_the_other_is_imported_once_when_one_of_its_own_is_asked_for(theirs: Path) -> None:
    module = ours.install()
    assert not imports(theirs) and "fp8_gemm_nt" in dir(module) and "later" not in dir(module) and not imports(theirs)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: module.fp8_fp4_mqa_logits, range(8)))
    assert len(set(found)) == 1 and found[0]("q")[:2] == ("theirs", "q")
    assert imports(theirs) == ["_other_deep_gemm"] and "later" in dir(module)
    assert module.later() == "theirs" and module.fp8_gemm_nt.__wrapped__ is ours.fp8_gemm_nt


def test_what_the_other_asks_of_deep_gemm_while_it_is_imported_it_gets(theirs: Path) -> None:
    text = "import deep_gemm\nfound = deep_gemm.fp8_gemm_nt, deep_gemm.get_num_sms, hasattr(deep_gemm, 'later')\n"
    (theirs / "mega" / "__init__.py").write_text(text)
    (theirs / "__init__.py").write_text((theirs / "__init__.py").read_text().replace("mega, utils", "utils, mega"))
    module = ours.install()
    assert module.mega.found == (module.fp8_gemm_nt, ours.get_num_sms, False) and imports(theirs) == [
        "_other_deep_gemm"
    ]


def test_modules_that_only_the_other_has(theirs: Path) -> None:
    ours.install()
    assert imported("deep_gemm.utils.dist").init_dist() == "theirs"
    assert imported("deep_gemm.legacy").mega_moe is imported("deep_gemm.mega").mega_moe
    assert imported("deep_gemm").legacy.mega_moe() == "theirs"
    with pytest.raises(
        ModuleNotFoundError, match=r"^deep_gemm\.nothing: fp8gemm does not have it, and neither has deep_"
    ):
        imported("deep_gemm.nothing")
    (theirs / "needy.py").write_text("import a_package_that_is_not_there")
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        imported("deep_gemm.needy")
    assert "ceil_div" in dir(imported("deep_gemm.utils.math")), "which the other lacks"
    assert imports(theirs) == ["_other_deep_gemm"]


def test_what_is_only_refused_here_is_the_others_where_there_is_one(theirs: Path) -> None:
    module = ours.install()
    assert module.k_grouped_fp8_gemm_tn_contiguous() == "theirs"
    assert module.utils.layout.get_mn_major_tma_aligned_packed_ue8m0_tensor(None) == "theirs"
    with pytest.raises(UnsupportedError, match="expected an SM100 GPU"):
        module.utils.transpose_packed_fp4()  # which this one lacks


def blocks_of_32() -> tuple[Any, Any, torch.Tensor]:
    """Operands of a product that SGLang has on SM90, and fp8gemm once they are folded."""
    codes = torch.ones(32, 64).to(torch.float8_e4m3fn)
    return (codes, torch.ones(32, 2)), (codes, torch.ones(1, 2)), torch.empty(32, 32, dtype=torch.bfloat16)


@pytest.mark.parametrize("imported_before", [False, True])
def test_a_call_that_is_not_served_here_goes_to_the_other(theirs: Path, imported_before: bool) -> None:
    holder = imported("deep_gemm") if imported_before else None
    module = ours.install()
    for each in filter(None, (module, holder, imported("deep_gemm"))):
        assert each.fp8_gemm_nt(*blocks_of_32(), recipe=(1, 32, 32)) == "theirs"
        assert each.m_grouped_fp8_gemm_nt_masked(*[None] * 5, enable_overlap=True) == "theirs, masked"
        assert each.fp8_gemm_nt(*blocks_of_32(), recipe=(1, 64, 64)) == "theirs"
        with pytest.raises(UnsupportedError, match=r"^recipe: expected \(1, 128, 128\)"):
            each.fp8_fp4_gemm_nt(*blocks_of_32(), recipe=(1, 64, 64))  # which this one lacks
        operands = blocks_of_32()
        each.fp8_fp4_gemm_nt(*operands, recipe=(1, 32, 32))
        assert bool((operands[2] == 64).all())
        with pytest.raises(ours.RefusedError, match="b.1.: expected shape"):
            each.fp8_gemm_nt(*blocks_of_32())  # is no such call
    ours.uninstall()
    if holder:
        assert holder.fp8_gemm_nt() == "theirs"


def test_a_call_that_is_served_nowhere_is_refused_as_without_install() -> None:
    module = ours.install()
    for each in (module, ours):
        with pytest.raises(UnsupportedError, match=r"^recipe: expected \(1, 128, 128\)"):
            each.fp8_gemm_nt(*blocks_of_32(), recipe=(1, 64, 64))


def test_both_are_told_what_holds_for_the_process_the_other_when_it_comes(theirs: Path) -> None:
    module = ours.install()
    module.set_pdl(new_enable_pdl=False)
    module.set_num_sms(100)
    module.set_num_sms(96)
    imported("deep_gemm.utils.layout").set_mk_alignment_for_contiguous_layout(64)  # which this one lacks
    assert not imports(theirs) and not ours.get_pdl() and ours.get_num_sms() == module.get_num_sms() == 96
    assert ours.get_mk_alignment_for_contiguous_layout() == 64
    assert module.fp8_fp4_mqa_logits(0)[2] == {"pdl": False, "num_sms": 96}
    module.set_pdl(True)
    assert module._C.values == {"pdl": True, "num_sms": 96} and ours.get_pdl()
    with pytest.raises(InputError):
        module.set_tc_util(101)
    assert "tc_util" not in module._C.values, "what is refused here is told to nobody"


def test_the_other_occupies_no_more_sms_than_the_settings_allow(theirs: Path) -> None:
    with settings.scope(num_sms=77):
        assert ours.install().fp8_fp4_mqa_logits(0)[2] == {"num_sms": 77}


def test_one_that_cannot_be_told_is_not_used(theirs: Path) -> None:
    module = ours.install()
    module.set_tc_util(13)
    with pytest.raises(ours.AbsentError, match=r"deep_gemm \(.*__init__.py\) cannot be used: RuntimeError: 13"):
        module.fp8_fp4_mqa_logits  # noqa: B018


def test_who_holds_one_that_was_imported_before_finds_our_functions_in_it(theirs: Path) -> None:
    before, layout = imported("deep_gemm"), imported("deep_gemm.utils.layout")
    module = ours.install()
    assert imported("deep_gemm") is module is not before and imports(theirs) == ["deep_gemm"]
    assert before.fp8_gemm_nt.__wrapped__ is ours.fp8_gemm_nt and before.utils is imported("_other_deep_gemm.utils")
    assert layout.get_mn_major_tma_aligned_tensor is ours.get_mn_major_tma_aligned_tensor
    assert before.k_grouped_fp8_gemm_tn_contiguous() == "theirs" == before.later() == module.later()
    assert module.mega is before.mega is imported("deep_gemm.mega")
    for holder, count in ((module, 12), (before, 13)):
        holder.set_num_sms(count)
        assert ours.get_num_sms() == before.get_num_sms() == count == before._C.get_num_sms()
    assert imports(theirs) == ["deep_gemm"]


def test_one_that_was_imported_before_is_put_back(theirs: Path) -> None:
    before, layout = imported("deep_gemm"), imported("deep_gemm.utils.layout")
    kept = {module: dict(vars(module)) for module in (before, layout)}
    ours.install()
    assert dict(vars(before)) != kept[before] and dict(vars(layout)) != kept[layout]
    ours.uninstall()
    ours.uninstall()
    assert imported("deep_gemm") is before and imported("deep_gemm.utils.layout") is layout
    assert {module: dict(vars(module)) for module in (before, layout)} == kept and before.fp8_gemm_nt() == "theirs"


def test_one_that_was_not_imported_before_can_be_afterwards(theirs: Path) -> None:
    assert ours.install().later() == "theirs"
    ours.uninstall()
    assert "deep_gemm" not in sys.modules and imported("deep_gemm").fp8_gemm_nt() == "theirs"
    assert imports(theirs) == ["_other_deep_gemm", "deep_gemm"]


def test_the_copy_that_vllm_carries_is_found_without_importing_vllm(vllm: Path) -> None:
    for package in (vllm.parent, vllm.parent.parent):
        (package / "__init__.py").write_text("raise ImportError('vLLM is imported')")
    module = ours.install()
    assert module.later() == "theirs" and imports(vllm) == ["_other_deep_gemm"] and "vllm" not in sys.modules


@pytest.mark.parametrize("before", [False, True])
def test_vllms_copy_is_the_same_module(vllm: Path, before: bool) -> None:
    carried = imported("vllm.third_party.deep_gemm") if before else None
    module = ours.install()
    outer = imported("vllm.third_party")
    assert imported("vllm.third_party.deep_gemm") is module is outer.deep_gemm is imported("deep_gemm")
    assert imported("vllm.third_party.deep_gemm.utils.layout") is module.utils.layout
    assert importlib.util.find_spec("deep_gemm").name == "deep_gemm"  # type: ignore[union-attr]
    ours.uninstall()
    assert outer.__dict__.get("deep_gemm") is carried and "deep_gemm" not in sys.modules
    assert imported("vllm.third_party.deep_gemm").fp8_gemm_nt() == "theirs"


def test_one_that_is_broken_is_passed_over_and_named_where_nobody_has_a_function(theirs: Path, vllm: Path) -> None:
    (theirs / "_C.py").write_text("raise OSError('libcudart.so.13: not found\\nmore')")
    assert ours.install().later() == "theirs" and imports(vllm) and imports(theirs)
    ours.uninstall()
    (vllm / "_C.py").unlink()
    module = ours.install()
    assert getattr(module, "fp8_fp4_mqa_logits", None) is None and len(imports(theirs)) == 2
    with pytest.raises(ours.AbsentError) as raised:
        module.utils.init_dist  # noqa: B018
    message = str(raised.value)
    assert message.startswith("deep_gemm.utils.init_dist: fp8gemm does not have it (tools; DeepGEMM 2.8.1 does), and ")
    assert f"deep_gemm ({theirs / '__init__.py'}) cannot be used" in message
    assert "cannot be used: OSError: libcudart.so.13: not found;" in message and "more" not in message
    assert "vllm.third_party.deep_gemm (" in message
    assert len(imports(theirs)) == 2, "it is tried once"


def test_without_another_the_error_says_what_to_install() -> None:
    module = ours.install()
    with pytest.raises(AttributeError, match="install DeepGEMM or sgl-deep-gemm") as raised:
        module.fp8_fp4_mqa_logits  # noqa: B018
    assert isinstance(raised.value, UnsupportedError)
    assert "deep_gemm.fp8_fp4_mqa_logits" in str(raised.value) and "attention logits" in str(raised.value)
    assert not hasattr(module, "tf32_hc_prenorm_gemm") and module.fp8_gemm_nt.__wrapped__ is ours.fp8_gemm_nt
    with pytest.raises(ImportError, match="deep_gemm.mega: .*install DeepGEMM"):
        imported("deep_gemm.mega")
    with pytest.raises(UnsupportedError, match="k_grouped_fp8_gemm_tn_contiguous: expected an SM100 GPU"):
        module.k_grouped_fp8_gemm_tn_contiguous()


def test_fp8gemm_by_another_name_is_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "deep_gemm.py").write_text(
        "import sys\nimport fp8gemm.integrations.deep_gemm\nsys.modules[__name__] = fp8gemm.integrations.deep_gemm\n"
    )
    for before in (False, True):
        if before:
            assert imported("deep_gemm") is ours
        with pytest.raises(
            ours.AbsentError, match=r"deep_gemm\.py\) cannot be used: ImportError: it is fp8gemm by another name"
        ):
            ours.install().fp8_fp4_mqa_logits  # noqa: B018
        ours.uninstall()
        assert (sys.modules.get("deep_gemm") is ours) is before


def test_headers_beside_the_other_are_found_by_its_spec(theirs: Path) -> None:
    """SGLang looks for CUTLASS's there."""
    for _ in range(2):  # before and after it is imported
        ours.install()
        spec = importlib.util.find_spec("deep_gemm")
        assert spec is not None and spec.origin == str(theirs / "__init__.py") and not imports(theirs)
        assert imported("deep_gemm").__file__ == ours.__file__


def test_who_has_which_function(theirs: Path) -> None:
    with_one = ours.answers()
    assert not with_one.installed and with_one.other == f"deep_gemm ({theirs / '__init__.py'})" and not with_one.loaded
    assert with_one.functions["fp8_gemm_nt"] == "fp8gemm" and with_one.functions["mega_mhc"] == "other"
    ours.install().later()
    loaded = ours.answers()
    assert loaded.installed and loaded.loaded and loaded.functions["fp8_fp4_mqa_logits"] == "other"
    assert loaded.functions["mega_mhc"] == "nobody" and loaded.functions["fp8_gemm_nt"] == "fp8gemm"
    assert set(beyond.PURPOSES) < set(loaded.functions) and set(beyond.PURPOSES) > beyond.REFUSED
    assert not [name for name in set(beyond.PURPOSES) - beyond.REFUSED if hasattr(ours, name)]


def test_without_another_nobody_has_the_rest() -> None:
    found = ours.answers()
    assert (found.installed, found.other, found.loaded, found.problems) == (False, "", False, ())
    assert found.functions["mega_mhc"] == "nobody" == found.functions["k_grouped_fp8_gemm_tn_contiguous"]
