"""Which device a run takes, alone and under torchrun, how products are computed there, and what is recorded of it.

There is no GPU here: what torch says of GPUs is replaced, what the library makes of it is real.
"""

import json
import platform

import pytest
import torch
from small_runs import call_command

from fem_frames.commands.info import collect
from training import Configuration, train
from training.run import building, devices, store
from training.run.building import choose_device

pytestmark = pytest.mark.serial
matmul = torch.backends.cuda.matmul


@pytest.fixture
def gpus(monkeypatch):
    """A machine with so many GPUs; gives the devices that were tried, and those that broke are added to `broken`."""
    tried, broken = [], set()
    monkeypatch.delenv("LOCAL_RANK", raising=False)

    def make(count, rank=None, processes=1):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(building, "_fault", lambda name: tried.append(name) or ("it broke" if broken else None))
        monkeypatch.setattr(building, "check_device", torch.device)
        if rank is not None:
            monkeypatch.setenv("LOCAL_RANK", str(rank))
            monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        return tried, broken

    return make


def test_without_a_gpu_the_cpu_is_taken(gpus, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for rank in (None, 0, 1):
        tried, _ = gpus(0, rank, 2)
        assert choose_device(None) == torch.device("cpu")
        assert not tried


def test_a_process_alone_takes_the_gpu_that_works(gpus, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    tried, broken = gpus(2)
    assert choose_device(None) == torch.device("cuda")
    assert tried == ["cuda"]
    broken.add("cuda")
    with pytest.warns(UserWarning, match="there is a GPU, but it cannot be used: it broke; the CPU is used"):
        assert choose_device(None) == torch.device("cpu")


@pytest.mark.parametrize("name", [None, "cuda"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_under_torchrun_a_process_tries_its_own_gpu_alone(gpus, rank, name):
    tried, _ = gpus(3, rank, 3)
    assert choose_device(name) == torch.device(f"cuda:{rank}")
    assert tried == ([f"cuda:{rank}"] if name is None else [])


@pytest.mark.parametrize("name", [None, "cuda"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_more_processes_than_gpus_are_refused_by_all_of_them(gpus, rank, name):
    tried, _ = gpus(2, rank, 3)
    with pytest.raises(ValueError, match="3 processes on this machine, which has 2 GPUs: give it --nproc-per-node 2"):
        choose_device(name)
    assert not tried
    assert choose_device("cpu") == torch.device("cpu")


def test_under_torchrun_a_gpu_that_does_not_work_is_an_error(gpus):
    _, broken = gpus(2, 1, 2)
    broken.add("cuda:1")
    with pytest.raises(ValueError, match="cuda:1 cannot be used: it broke; choose device='cpu'"):
        choose_device(None)


def test_a_device_is_tried_by_the_product_that_frames_are_made_of():
    assert building._fault("cpu") is None
    assert "meta" in building._fault("meta").lower()  # tensors without numbers


# ---- products


@pytest.fixture
def settings():
    """Torch's settings as they were, afterwards."""
    names = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = {name: getattr(matmul, name) for name in names}
    yield
    if hasattr(matmul, "fp32_precision"):
        matmul.fp32_precision = "none"
    matmul.allow_tf32 = False
    for name, value in before.items():
        setattr(matmul, name, value)


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("new", [False, True])
def test_on_cuda_products_in_float32_are_no_tf32_and_sums_are_not_in_half(new):
    """With torch's old settings and with its new ones, which do not mix."""
    if new and not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has one setting for TF32 only")
    wanted = {"tf32": True, "sums_in_half": ["float16", "bfloat16"]}
    if new:
        matmul.fp32_precision = "tf32"
    else:
        matmul.allow_tf32 = True
    assert devices.product_settings() == wanted
    with devices.full_products(torch.device("cuda")):
        assert devices.product_settings() == {"tf32": False, "sums_in_half": []}
    assert devices.product_settings() == wanted
    with pytest.raises(KeyError), devices.full_products(torch.device("cuda")):
        raise KeyError
    assert devices.product_settings() == wanted
    with devices.full_products(torch.device("cpu")):
        assert devices.product_settings() == wanted


@pytest.mark.usefixtures("settings")
def test_split_sums_are_put_back():
    name = "allow_fp16_reduced_precision_reduction"
    if not hasattr(matmul, f"{name}_split_k"):
        pytest.skip("this torch has no setting for split sums")
    setattr(matmul, name, (False, False))
    with devices.full_products(torch.device("cuda")):
        pass
    assert (getattr(matmul, name), getattr(matmul, f"{name}_split_k")) == (False, False)


# ---- what is recorded


def test_results_say_which_gpu_they_are_from(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card {device.index}")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = store.machine(torch.device("cuda", 1))
    assert found["gpu"] == "card 1"
    assert found["cuda"] == "13.0"
    assert found["tf32"] is False
    assert found["sums_in_half"] == ["float16", "bfloat16"]
    assert "gpu" not in store.machine(torch.device("cpu"))


def test_runs_are_guarded_and_recorded(tmp_path, frame_file, monkeypatch):
    """All steps, and the record of the run, are inside the guard."""
    inside = []
    guard = devices.full_products

    def watched(device):
        inside.append(str(device))
        return guard(torch.device("cuda"))

    monkeypatch.setattr("training.run.trainer.full_products", watched)
    monkeypatch.setattr("training.run.store.describe", lambda device: devices.product_settings())
    result = train(
        Configuration(frame=str(frame_file), epochs=1, test_samples=0, device="cpu"), tmp_path / "r", quiet=True
    )
    assert inside == ["cpu"]
    assert result["machine"]["sums_in_half"] == []
    assert result["machine"]["architecture"] == platform.machine()
    assert devices.product_settings()["sums_in_half"] == ["float16", "bfloat16"]
    assert json.loads((tmp_path / "r/result.json").read_text())["machine"] == result["machine"]


def test_info_says_which_cuda_torch_has(monkeypatch):
    assert json.loads(call_command("info", "--json").stdout)["cuda"] == (torch.version.cuda or "absent")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = collect()
    assert found["cuda"] == "13.0"
    assert found["cuda_tf32"] is False
