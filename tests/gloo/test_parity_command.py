# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The parity command itself: a whole run, a rank that dies, and everything that it refuses."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from cosmos3_sizes import SIZES, VOCABULARY, full_config
from cosmos3_weights import UNUSED
from parity import cli, launch, machine, plan, run
from parity.checkpoint import random_weights
from safetensors.torch import save_file
from support.report_page import check_report

pytestmark = pytest.mark.gloo

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"(PASS|FAIL|SKIP) \S+ (-|\d\S*) (-|(<=|>)\d\S*)")
TINY = ["--device", "cpu", "--video", "1,3,5", "--steps", "2"]
SMALL = {
    **SIZES["tiny"],
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "intermediate_size": 48,
    "rope_axes_dim": [4, 2, 2],
}


def command(*arguments, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "parity", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """One whole run on two ranks: its output and its report."""
    out = tmp_path_factory.mktemp("parity") / "report"
    process = command(*TINY, "--out", out)
    stdout, stderr = process.communicate(timeout=500)
    return process.returncode, stdout, stderr, out


def test_command_passes_on_two_ranks_and_sees_the_bug(report):
    code, stdout, stderr, _ = report
    assert code == 0, stdout + stderr
    *lines, last = stdout.strip().splitlines()
    assert all(LINE.fullmatch(line) for line in lines), stdout
    names = [line.split()[1] for line in lines]
    assert len(set(names)) == len(names)
    assert any(line.startswith("PASS unfixed-seen ") for line in lines)
    assert re.match(rf"{len(lines)} passed, 0 failed, 0 skipped in \d+ s, at most \d", last)
    # The bar, and nothing else, is on stderr.
    assert "forwards" in stderr and "Traceback" not in stderr


def test_command_leaves_a_report_that_can_be_read(report):
    *_, out = report
    facts = check_report(out)
    runs = {run["name"]: run for run in facts["runs"]}
    assert list(runs) == ["one", "unfixed-one", "unfixed", "fixed", "oracle"]
    assert "Ulysses" in runs["fixed"]["attention"] and "Ulysses" not in runs["one"]["attention"]
    assert "TextAttention" in runs["fixed"]["attention"]
    assert "TextAttention" not in runs["unfixed"]["attention"]
    # What was imported is what lies in the tree.
    overlay = {file["module"]: file for file in facts["files"] if "overlay/" in file["path"]}
    assert any(name.endswith(".cosmos3.text_kv") for name in overlay)
    for file in overlay.values():
        path = ROOT / file["path"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == file["sha256"]
    assert len(runs["fixed"]["text_bytes"]) == 2
    assert len(facts["errors"]["unfixed-vs-one"]["positive"]) == 2
    assert facts["errors"]["trajectory/fixed-vs-one"][0] == 0.0
    assert facts["prompts"]["lengths"]["negative"] > facts["prompts"]["lengths"]["positive"]
    # Nothing is left beside the report.
    assert [path.name for path in out.parent.iterdir()] == ["report"]


def test_command_compares_whole_requests_from_graphs(tmp_path):
    out = tmp_path / "report"
    options = ["--device", "cpu", "--request", "all", "--graphs", "--steps", "2", "--out", out]
    stdout, stderr = (process := command(*options)).communicate(timeout=500)
    assert process.returncode == 0, stdout + stderr
    assert stdout.count("PASS") == len(stdout.strip().splitlines()) - 1
    facts = check_report(out)
    assert [film["name"] for film in facts["films"]] == facts["settings"]["requests"]
    assert facts["errors"]["frames/fixed-vs-one"]["largest"] <= 1 / 255


def ranks_of(driver_pid: int, run: str) -> dict[int, int]:
    """Process ids of a run's ranks that a driver has started."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == driver_pid and "parity.worker" in words and Path(words[-3]).name == run:
            found[int(words[-2])] = int(entry.name)
    return found


@pytest.mark.parametrize("moment", ["starting", "working"])
def test_rank_that_dies_ends_the_run_and_leaves_the_earlier_report(report, moment):
    *_, out = report
    before = digests(out)
    # So many steps that the rank dies in the middle of them. Ranks among peers are below.
    process = command(*TINY, "--steps", 200, "--out", out)
    try:
        folder = None
        deadline = time.monotonic() + 200
        run = "one"
        while not ranks_of(process.pid, run):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        (folder,) = out.parent.glob(".parity-*/one")
        if moment == "working":
            while not (folder / "progress").exists():
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        os.kill(ranks_of(process.pid, run)[0], signal.SIGKILL)
        killed = time.monotonic()
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert time.monotonic() - killed < 60
    assert process.returncode == 2
    assert stdout == ""
    assert "run one: rank 0 of 1 was killed by SIGKILL" in stderr
    assert digests(out) == before
    assert [path.name for path in out.parent.iterdir()] == ["report"]


def test_interrupted_command_ends_its_ranks(report):
    *_, out = report
    before = digests(out)
    process = command(*TINY, "--steps", 200, "--out", out)
    try:
        deadline = time.monotonic() + 200
        while not (found := ranks_of(process.pid, "one")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert not any(Path(f"/proc/{pid}").exists() for pid in found.values())
    assert digests(out) == before
    assert [path.name for path in out.parent.iterdir()] == ["report"]


def spec_of(tmp_path, name="fixed", **changes) -> dict:
    """What would be started for one run, on a model that is made at once."""
    made = plan.make_plan(cli.parser().parse_args(TINY))
    made.settings["config"] = full_config(SMALL)
    (found,) = [found for found in made.runs if found.name == name]
    changes = {"recorded": None, "steps": {"video": 200}, **changes}
    ids = torch.arange(2 * 128).reshape(2, 128)
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    latents = torch.randn(48, 1, 3, 5)
    inputs = {"video": {"text_ids": ids, "text_mask": mask, "latents": latents}}
    torch.save(inputs, tmp_path / "inputs.pt")
    return {**run.spec(found, made, tmp_path), **changes}


def test_rank_killed_among_peers_is_named_and_the_peers_are_ended(tmp_path):
    spec = spec_of(tmp_path)
    pids = {}

    def kill_one_at_work(forwards):
        if forwards >= 1 and not pids:
            pids.update(ranks_of(os.getpid(), "run"))
            os.kill(pids[1], signal.SIGKILL)
            pids["at"] = time.monotonic()

    with pytest.raises(launch.RunFailed, match="rank 1 of 2 was killed by SIGKILL"):
        launch.launch(spec, tmp_path / "run", kill_one_at_work)
    assert time.monotonic() - pids.pop("at") < 60
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


def test_rank_that_raises_is_shown_with_its_error(tmp_path):
    spec = spec_of(tmp_path, transformer_kwargs={"text_kv": "wishful"})
    with pytest.raises(launch.RunFailed, match="rank [01] of 2 exited with status 1") as failure:
        launch.launch(spec, tmp_path / "run")
    assert "ValueError" in str(failure.value) and "wishful" in str(failure.value)


def write_checkpoint(folder: Path) -> Path:
    config = full_config(SMALL)
    folder.mkdir()
    fields = {"_class_name": "Cosmos3OmniTransformer", **config}
    (folder / "config.json").write_text(json.dumps(fields))
    tensors = dict(random_weights(config, seed=5))
    assert not set(tensors) & set(UNUSED)
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors")
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("weights") / "checkpoint")


def test_checkpoint_on_one_rank_equals_diffusers(checkpoint, tmp_path):
    arguments = ["--ranks", 1, "--checkpoint", checkpoint, "--dtype", "float64"]
    process = command(*TINY, *arguments, "--out", tmp_path / "report")
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stdout + stderr
    assert "PASS one-vs-oracle/positive" in stdout
    assert "SKIP unfixed-seen - -" in stdout
    facts = check_report(tmp_path / "report")
    assert facts["settings"]["checkpoint"] == str(checkpoint)
    assert facts["settings"]["config"]["hidden_size"] == 32


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs the command in this process, where starting any run is an error."""

    def start(*arguments):
        raise AssertionError("a process would have been started")

    monkeypatch.setattr(run, "launch", start)

    def check(*arguments) -> str:
        arguments = list(map(str, arguments))
        if "--out" not in arguments:
            arguments += ["--out", str(tmp_path / "report")]
        try:
            code = cli.main(arguments)
        except SystemExit as exit_:
            code = exit_.code
        captured = capsys.readouterr()
        assert code == 2
        assert captured.out == "" and "Traceback" not in captured.err
        assert not list(tmp_path.glob("**/.parity-*")) and not (tmp_path / "report").exists()
        return captured.err

    return check


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["--ranks", "3"], ["3", "1, 2, 4, 8"]),
        (["--ranks", "2", "--layout", "tp=2"], ["--layout", "not allowed", "--ranks"]),
        (["--layout", "tp=2,cp=2"], ["'cp=2'", "cfg=2, tp=N", "ulysses=N"]),
        (["--layout", "tp=2,tp=2"], ["twice"]),
        (["--layout", "attn2d=2"], ["'attn2d=2'", "ROWSxCOLUMNS"]),
        (["--layout", "ulysses=16"], ["16 ranks", "8 at most"]),
        (["--layout", "cfg=4"], ["cfg_size=4", "expected"]),
        (["--layout", "ring=2,attn2d=1x2"], ["ring_size=2", "exclude each other"]),
        (["--layout", "ring=2", "--backend", "VANILLA"], ["LSE", "FA4"]),
        (["--config", "/nowhere.yaml"], ["/nowhere.yaml", "give a YAML file"]),
        (["--size", "huge"], ["huge", "tiny"]),
        (["--dtype", "int8"], ["int8", "float32"]),
        (["--backend", "CUTEDSL"], ["CUTEDSL", "VANILLA", "FA4"]),
        (["--video", "3,33"], ["'3,33'", "T,H,W", "3,33,57"]),
        (["--video", "0,4,4"], ["'0,4,4'", "at least 1"]),
        (["--video", "a,b,c"], ["'a,b,c'", "T,H,W"]),
        (["--steps", "0"], ["--steps 0", "[1, 1000]", "try 6"]),
        (["--seed", "-1"], ["--seed -1", "[0, 2**63)"]),
        (["--guidance", "nan"], ["--guidance nan", "try 6.0"]),
        (["--fps", "0"], ["--fps 0.0", "above 0", "try 24"]),
        (["--prompts", "/nowhere.json"], ["/nowhere.json", "expected JSON"]),
        (["--checkpoint", "/nowhere"], ["/nowhere", "config.json", "expected"]),
        (["--trtllm-dir", "/nowhere"], ["/nowhere"]),
        (["--out", "/proc/report"], ["/proc/report", "cannot be written", "new folder"]),
    ],
)
def test_unusable_option_is_refused_before_any_process(refused, arguments, parts):
    message = refused(*arguments)
    for part in parts:
        assert part in message


@pytest.mark.parametrize("text", ["", "   \n"])
def test_empty_prompt_is_refused(refused, tmp_path, text):
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps({"positive": text, "negative": "blurry"}))
    message = refused("--prompts", path)
    assert "positive prompt is empty" in message and "at least" not in message


def test_ranks_beyond_the_heads_are_refused(refused, checkpoint):
    for layout in (("--ranks", 8), ("--layout", "tp=2,ulysses=4")):
        message = refused("--checkpoint", checkpoint, *layout)
        assert "= 8 does not divide num_attention_heads=4, num_key_value_heads=4" in message
        assert "[1, 2, 4]" in message


def test_checkpoint_that_does_not_fit_is_refused(refused, checkpoint, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    config = json.loads((checkpoint / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    weights = "diffusion_pytorch_model.safetensors"
    (folder / weights).symlink_to(checkpoint / weights)
    message = refused("--checkpoint", folder)
    assert "missing: layers.2." in message and "does not fit its config.json" in message


def test_checkpoint_with_a_short_vocabulary_is_refused(refused, checkpoint, tmp_path):
    folder = tmp_path / "short"
    folder.mkdir()
    config = json.loads((checkpoint / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 1000}))
    tensors = dict(random_weights({**config, "vocab_size": 1000}, seed=0))
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors")
    message = refused("--checkpoint", folder)
    assert "1000 ids" in message and str(VOCABULARY) in message


@pytest.mark.parametrize(
    "found, hint", [(0, "--device cpu"), (2, "--ranks 2, --share-gpu or --device cpu")]
)
def test_more_ranks_than_gpus_are_refused(refused, monkeypatch, found, hint):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    message = refused("--device", "cuda", "--ranks", 4)
    assert "4 ranks" in message and f"has {found}" in message and hint in message


def test_a_gpu_that_cannot_be_shared_is_refused(refused, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--share-gpu needs a GPU" in refused("--share-gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert "leave it out" in refused("--share-gpu", "--device", "cpu")
    assert "NCCL" in refused("--share-gpu", "--trtllm-dir", tmp_path)


def test_ranks_on_a_shared_gpu_beyond_its_memory_are_refused(refused, monkeypatch):
    class Gpu:
        total_memory = 100 << 30

    monkeypatch.setattr(plan, "_device", lambda args, sizes: "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Gpu)
    options = ("--size", "nano", "--dtype", "bfloat16", "--ranks", 4, "--share-gpu")
    message = refused(*options)
    assert "one GPU" in message and "100.0 GiB are there" in message and "fewer --ranks" in message


def test_ranks_beyond_the_memory_are_refused(refused, monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 2 << 30)
    message = refused("--device", "cpu", "--ranks", 8)
    assert "8 ranks" in message and "2.0 GiB are there" in message and "fewer --ranks" in message


@pytest.mark.parametrize(
    "dtype, part", [("float32", "--dtype bfloat16"), ("bfloat16", "flash-attn-4==")]
)
def test_fa4_that_cannot_run_on_a_gpu_is_refused(refused, monkeypatch, dtype, part):
    monkeypatch.setattr(plan, "_device", lambda args, sizes: "cuda")
    monkeypatch.setattr(plan.fa4, "problem", lambda: "it is not there; install flash-attn-4==1")
    message = refused("--backend", "FA4", "--dtype", dtype)
    assert part in message and "--backend VANILLA" in message


@pytest.mark.parametrize("kind", ["file", "folder with other files", "below a file"])
def test_output_that_is_no_report_folder_is_refused_and_kept(refused, tmp_path, kind):
    out = tmp_path / "mine"
    kept = out if kind == "file" else out / "thesis.txt"
    if kind == "below a file":
        kept, out = out, out / "report"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("years of work")
    message = refused("--out", out)
    assert str(out) in message and "new folder" in message
    assert kept.read_text() == "years of work"
