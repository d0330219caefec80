"""fp8gemm under that library's own layers: what it computes there, what it declines, and who computes that."""

from __future__ import annotations

import warnings

import pytest
import torch

from fp8gemm.driver.device import HOPPER
from fp8gemm.errors import CompileError, InputError, UnsupportedError
from fp8gemm.integrations.transformers import (
    block_fp8_linear,
    install_kernel,
    installed_kernel,
    kernel,
    uninstall_kernel,
    use_fp8gemm,
)
from fp8gemm.lab.bench.operands import relative_error
from fp8gemm.products.quantize import quantize_activation, quantize_weight
from fp8gemm.reference import dequantize_weight, gemm_reference
from tests import cases
from tests import transformers_models as models  # skips where transformers is missing

library = models.transformers.integrations.finegrained_fp8
BLOCKS = (128, 128)


def operands(n=144, k=272, dtype=torch.bfloat16):
    weight, scales = quantize_weight(torch.randn(n, k))
    return torch.randn(2, 3, k, dtype=dtype), weight, scales


def expected(x, weight, scales, bias=None):
    rows = quantize_activation(x.detach().reshape(-1, x.shape[-1]))
    return gemm_reference(*rows, weight, scales, bias=bias, out_dtype=x.dtype).view(*x.shape[:-1], -1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scale_dtype", cases.SCALE_DTYPES)
def test_values(dtype, scale_dtype):
    x, weight, scales = operands(dtype=dtype)
    scales = scales.to(scale_dtype)
    bias = torch.randn(144, dtype=dtype)
    found = block_fp8_linear(x, weight, scales, BLOCKS, bias)
    addend = bias.float() if dtype == torch.float16 else bias
    assert found.dtype == dtype and torch.equal(found, expected(x, weight, scales.float(), addend))


DECLINED = {
    "block size": ({"block_size": (64, 128)}, UnsupportedError),
    "per tensor": ({"block_size": None}, UnsupportedError),
    "static activations": ({"activation_scale": torch.ones(())}, UnsupportedError),
    "packed FP4": ({"weight": torch.zeros(144, 136, dtype=torch.int8)}, UnsupportedError),
    "float64": ({"input": torch.randn(3, 272, dtype=torch.float64)}, UnsupportedError),
    "K": ({"input": torch.randn(3, 264), "weight": torch.zeros(144, 264).to(torch.float8_e4m3fn)}, UnsupportedError),
    "gradient": ({"input": torch.randn(3, 272, requires_grad=True)}, UnsupportedError),
    "scales": ({"weight_scale_inv": torch.ones(3, 2)}, InputError),
    "width": ({"input": torch.randn(3, 256)}, InputError),
}


@pytest.fixture
def original(monkeypatch):
    """The library's function replaced by one that only records its calls, so that what falls back is seen."""
    calls = []

    def fp8_linear(*args, **options):
        calls.append((args, options))
        return "theirs"

    monkeypatch.setattr(library, "fp8_linear", fp8_linear)
    yield calls
    uninstall_kernel()
    assert library.fp8_linear is fp8_linear


@pytest.mark.parametrize("kind", DECLINED)
def test_declines_by_an_exception_that_the_library_falls_back_on(kind, original):
    changes, error = DECLINED[kind]
    x, weight, scales = operands()
    call = {"input": x, "weight": weight, "weight_scale_inv": scales, "block_size": BLOCKS, **changes}
    with pytest.raises(error) as raised:
        block_fp8_linear(**call)
    # Those after which `fp8_linear` of transformers tries its next kernel.
    assert isinstance(raised.value, (ImportError, NotImplementedError, ValueError))
    install_kernel()
    with pytest.warns(UserWarning, match="fp8gemm declined"):
        assert library.fp8_linear(**call, allow_deepgemm=False) == "theirs"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert library.fp8_linear(**call) == "theirs", "the same reason is not told twice"
    (args, options), _ = original
    assert args[0] is call["input"] and args[3] == call["block_size"] and options == {"allow_deepgemm": False}


def test_other_gpu_is_declined(monkeypatch, original):
    capability = [(8, 9)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[0])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "some GPU")
    device = torch.device("cuda", 0)
    assert "expected a Hopper GPU" in kernel.unserved_device(device)
    assert "got some GPU of 8.9" in kernel.unserved_device(device)
    assert "got xpu" in kernel.unserved_device(torch.device("xpu"))
    capability[0] = HOPPER
    assert not kernel.unserved_device(device)
    x, weight, scales = operands()
    monkeypatch.setattr(kernel, "unserved_device", lambda device: "device: expected a Hopper GPU")
    install_kernel()
    with pytest.warns(UserWarning, match="Hopper"):
        assert library.fp8_linear(x, weight, scales, BLOCKS) == "theirs"


def test_failures_of_ours_are_not_hidden(monkeypatch, original):
    def fail(*args, **options):
        raise CompileError("no compiler")

    monkeypatch.setattr(kernel, "gemm", fail)
    install_kernel()
    with pytest.raises(CompileError):
        library.fp8_linear(*operands(), BLOCKS)
    assert not original


def test_installing_twice_and_in_a_block(original):
    theirs = library.fp8_linear
    with installed_kernel():
        ours = library.fp8_linear
        install_kernel()
        assert library.fp8_linear is ours is not theirs
        assert torch.equal(ours(*operands_of_seed(), BLOCKS), expected(*operands_of_seed()))
    assert library.fp8_linear is theirs
    install_kernel()
    with installed_kernel():
        pass
    assert library.fp8_linear is not theirs, "the block leaves what was there before it"
    uninstall_kernel()
    uninstall_kernel()
    assert library.fp8_linear is theirs and not original


def operands_of_seed():
    torch.manual_seed(3)
    return operands()


def test_a_library_without_the_seam(monkeypatch):
    monkeypatch.delattr(library, "fp8_linear")
    with pytest.raises(UnsupportedError, match="fp8_linear"):
        install_kernel()
    uninstall_kernel()


@pytest.fixture
def mixture(tmp_path, monkeypatch):
    """A model with experts, as the library loads it where there is a GPU; its tensors are on the CPU."""
    from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

    monkeypatch.setattr(FineGrainedFP8HfQuantizer, "validate_environment", lambda self, *args, **kwargs: None)
    original = models.new_model(models.deepseek_v3(first_k_dense_replace=1, intermediate_size=256))
    tensors = models.write_checkpoint(tmp_path, original)
    model = models.transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    model.set_experts_implementation("eager")
    return original, tensors, model


def test_model_with_experts_runs_on_the_installed_kernel(mixture, monkeypatch):
    """On the CPU that library has no kernel of its own, so that whatever ours declined would fail."""
    _, tensors, model = mixture
    ids, calls = models.tokens(), []
    ours = kernel.block_fp8_linear
    monkeypatch.setattr(kernel, "block_fp8_linear", lambda *args: calls.append(args) or ours(*args))
    with installed_kernel():
        whole = models.logits(model, ids)
        linear_calls = sum(1 for *_, static in calls if static is None)
    assert whole.isfinite().all() and linear_calls == len(calls) > 20, "five projections, MLP and experts"
    report = use_fp8gemm(model)
    assert not report.skipped
    assert relative_error(models.logits(model, ids), whole) < 1e-2, "sums of experts are made in another order"


def test_input_that_needs_a_gradient_is_declined(original):
    x, weight, scales = operands()
    install_kernel()
    with pytest.warns(UserWarning, match="gradient"):
        assert library.fp8_linear(x.requires_grad_(), weight, scales, BLOCKS) == "theirs"
    with torch.no_grad():
        assert torch.equal(library.fp8_linear(x, weight, scales, BLOCKS), expected(x, weight, scales))


@pytest.mark.skipif(
    not hasattr(library, "FP8LinearFunction"), reason="this transformers has no backward pass for FP8 layers"
)
def test_adapters_train_on_top():
    """The forward pass is ours, the backward pass that library's: the gradient times the dequantised weight."""
    x, weight, scales = operands()
    layer = library.FP8Linear(272, 144, block_size=BLOCKS)
    layer.weight.data, layer.weight_scale_inv.data = weight, scales
    x.requires_grad_()
    with installed_kernel():
        found = layer(x)
    assert torch.equal(found, expected(x, weight, scales))
    gradient = torch.randn_like(found)
    found.backward(gradient)
    wanted = gradient.float() @ dequantize_weight(weight, scales)
    assert relative_error(x.grad, wanted) < 0.01
