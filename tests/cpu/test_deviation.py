# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
import importlib.util
import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from statistics import mean

import pytest
import torch
import yaml
from cosmos3_checkpoint import CheckpointWeights
from cosmos3_oracle import build_oracle, oracle_velocity
from cosmos3_sizes import LEARNED, SIZES, full_config
from deviation import document, generate, measure, page, scenes, train
from deviation.__main__ import check
from deviation.generate import Request, build, zero_key_mass
from hostpath import ROOT
from parity.prompts import tokenize
from parity.sampling import pad_prompts
from preflight.config import parse_config
from safetensors.torch import load_file, save_file
from support.learned import unlearned
from support.report_page import Page

# What float32 makes of this model's forward is 3e-6 to 5e-6 from float64, whoever computes it.
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return LEARNED if LEARNED.exists() else unlearned(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def built(folder, monkeypatch):
    monkeypatch.setattr(generate.build, "__defaults__", (1, torch.float32, None, folder))
    measure._model.cache_clear()
    yield
    measure._model.cache_clear()


def _drawn(count: int, seed: int = 0, frames: int = scenes.FRAMES):
    draw = random.Random(seed)
    wanted = [scenes.random_scene(draw) for _ in range(count)]
    return wanted, scenes.render(wanted, draw, frames)


@pytest.mark.parametrize("frames", (3, 4, 5))
def test_judge_reads_every_drawn_video_with_and_without_noise(frames):
    wanted, videos = _drawn(300, frames=frames)
    assert scenes.judge(videos) == wanted
    noise = torch.randn(videos.shape, generator=torch.Generator().manual_seed(0))
    assert scenes.judge(videos + 0.1 * noise) == wanted


def test_judge_is_at_chance_on_shuffled_captions_and_reads_nothing_off_noise():
    wanted, videos = _drawn(1200)
    found = scenes.judge(videos)
    random.Random(1).shuffle(wanted)
    for name, share in page.shares(measure.obeyed(wanted, found)).items():
        chance = 1 / len(scenes.ASPECTS[name]) if name != "all" else 1 / 48
        assert abs(share - chance) < 0.05, name
    assert set(scenes.judge(torch.full_like(videos[:2], scenes.BACKGROUND))) == {("", "", "")}
    still = videos[:, :, :1].expand(-1, -1, scenes.FRAMES, -1, -1)
    assert {scene.direction for scene in scenes.judge(still)} == {""}


def test_captions_say_the_scene_once_and_tokens_of_all_are_stored():
    captions, draw = train.Captions(), random.Random(7)
    for words in (0, 20, 100, 500):
        for _ in range(40):
            scene = scenes.random_scene(draw)
            text = scenes.caption(scene, draw, words)
            captions.rows([tokenize("positive", text).ids])
            others = {w for named in scenes.ASPECTS.values() for w in named} - set(scene)
            assert not others & set(Counter(text.lower().replace('"', " ").split()))
            assert words <= len(text.split()) + 5


def test_training_forward_equals_host_and_diffusers(folder):
    config = full_config(SIZES["learned"])
    weights, captions = CheckpointWeights(folder, config), train.Captions()
    w = {name: weights[name].double() for name in weights}
    w[train.EMBEDDING] = w[train.EMBEDDING][torch.tensor(captions.tokens)]
    _, none, some = Request().prompts(0)
    ids, mask = pad_prompts((none, some))
    videos = _drawn(2)[1].double()
    raw = torch.full((2,), 637.0)
    with torch.no_grad():
        rows, lengths = captions.rows([none.ids, some.ids])
        found = train.velocity(w, videos, raw / 1000, train.text_tower(w, rows), lengths)
    host = build(True, dtype=torch.float64, folder=folder)(
        hidden_states=videos, timestep=raw, raw_timestep=raw, text_ids=ids, text_mask=mask,
        video_shape=videos.shape[2:], fps=24.0,
    ).video  # fmt: skip
    assert (found - host).norm() <= 1e-10 * host.norm()
    oracle = build_oracle(config, None, weights=weights)
    for i, prompt in enumerate((none, some)):
        exact = oracle_velocity(oracle, videos[i].float(), list(prompt.ids), 637.0, 24.0).video
        assert (found[i] - exact).norm() <= ROUNDING * exact.norm()
        assert (found[i] - found[1 - i]).norm() > 1000 * ROUNDING * exact.norm()


def test_training_loss_falls_in_20_steps(tmp_path):
    losses = train.train(0, 20, tmp_path, 3e-3, "make train", judged=1)
    assert len(losses) == 20 and mean(losses[-5:]) < 0.9 * mean(losses[:5])
    assert json.loads((tmp_path / "training.json").read_text())["steps"] == 20


@pytest.mark.parametrize("ranks", (2, 4))
def test_zero_key_mass_is_the_formula_in_float64(built, ranks):
    mass = zero_key_mass(Request(), ranks)
    assert mass["farthest"] <= 1e-6
    measured = torch.tensor(mass["measured"])
    assert measured.shape == (4, 16) and measured.mean() > 0.01
    none = zero_key_mass(Request(sections=2, divisor=4, frames=4, words=110), 1)
    assert max(map(max, none["measured"])) < 1


def _points():
    base = Request(steps=2)
    nothing = replace(base, sections=2, divisor=4, frames=4, together=False)
    return [
        measure.Point("headline", "the shipped negative prompt", base, 2, 1),
        measure.Point("cause", "nothing padded", nothing, 2, 1),
        measure.Point("gap", "0", replace(base, sections=0), 2, 1),
    ]


def test_measure_finds_nothing_where_nothing_is_padded_and_the_report_says_so(built, tmp_path):
    results = list(measure.measure(_points(), tmp_path / "points", ""))
    checks = {name: status for status, name, *_ in check(results)}
    assert checks["nothing-padded/2-ranks"] == checks["fixed-vs-one"] == "PASS"
    assert checks["unfixed-seen"] == "PASS"
    assert results[1]["unfixed"]["psnr"] == [None]
    assert page.decibels(results[1]["unfixed"]["psnr"]) == "-"
    # And a path that is not exact fails.
    results[1]["unfixed"] = results[0]["fixed"] = results[0]["unfixed"]
    checks = {name: status for status, name, *_ in check(results)}
    assert checks["nothing-padded/2-ranks"] == checks["fixed-vs-one"] == "FAIL"


def test_measure_resumes_after_a_kill_with_the_same_results(built, tmp_path):
    whole = list(measure.measure(_points(), tmp_path / "whole", ""))
    kept = tmp_path / "killed"
    started = measure.measure(_points(), kept, "")
    next(started), next(started), started.close()
    with kept.open("a") as file:
        file.write('\n{"key": "cut o')
    resumed = list(measure.measure(_points(), kept, ""))
    assert json.dumps(resumed) == json.dumps(whole)
    assert len([line for line in kept.read_text().splitlines() if '"result"' in line]) == 3
    list(measure.measure(_points()[:1], kept, "other weights"))
    assert len([line for line in kept.read_text().splitlines() if '"result"' in line]) == 4


def test_configurations_are_the_official_ones():
    path = ROOT / "tests" / "static" / "test_preflight.py"
    spec = importlib.util.spec_from_file_location("official", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert measure.CONFIGURATIONS == {
        name: parse_config(yaml.safe_load(text)).sizes
        for name, (text, *_) in module.OFFICIAL.items()
    }


@pytest.fixture
def report(built, tmp_path):
    results = list(measure.measure(_points(), tmp_path / "points", ""))
    record = {
        "results": results, "checks": check(results), "weights": {}, "dtype": "float32",
        "device": "CPU", "threads": 1, "date": "", "commit": "", "command": "make deviation",
    }  # fmt: skip
    path = tmp_path / "report.html"
    path.write_text(page.html(record), encoding="utf-8")
    return path, record


def test_page_holds_all_pictures_and_the_headline_first(report):
    path, record = report
    text = path.read_text(encoding="utf-8")
    read = Page(text)
    assert all(reference.startswith("data:image/") for reference in read.references)
    # Three runs of one request, animated and as a strip, and two plots.
    assert len(read.references) == 3 * 2 + 2
    assert page.headline(record) in read.text and "http" not in text
    assert text.index("<h1>") < text.index("<img")


@pytest.mark.parametrize("width", (1280, 390))
def test_page_in_a_browser_shows_every_picture(report, tmp_path, width):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium or google-chrome")
    path, _ = report
    script = (
        "<script>addEventListener('load', () => { const all = [...document.images];"
        "document.title = all.filter(i => i.complete && i.naturalWidth).length + ' of '"
        "+ all.length + ', ' + (document.documentElement.scrollWidth <= innerWidth) })</script>"
    )
    path.write_text(path.read_text(encoding="utf-8").replace("</html>", script + "</html>"))
    arguments = ("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                 f"--user-data-dir={tmp_path}/browser", f"--window-size={width},900")  # fmt: skip
    found = subprocess.run(
        [browser, *arguments, path.as_uri()], capture_output=True, text=True, timeout=120
    ).stdout
    assert "<title>8 of 8, true</title>" in found


def test_documents_are_made_from_the_result_file():
    if not document.RESULT.exists():
        pytest.skip(f"needs {document.RESULT.name}")
    for name, content in document.documents().items():
        path = ROOT / "docs" / name
        assert path.exists()
        # Another version of a library may draw other bytes.
        if isinstance(content, str):
            assert path.read_text(encoding="utf-8") == content, f"{name} is stale"


def test_checkpoint_with_some_rows_of_the_table_has_zeros_elsewhere(tmp_path):
    config = full_config(SIZES["learned"])
    weights = CheckpointWeights(unlearned(tmp_path), config)
    whole, tokens = weights[train.EMBEDDING], train.Captions().tokens
    assert whole.shape == (config["vocab_size"], config["hidden_size"])
    assert whole[tokens].abs().amax(1).min() > 0
    assert whole.any(1).sum() == len(tokens) and train.STORED_IDS not in weights
    (tmp_path / "diffusion_pytorch_model.safetensors").rename(tmp_path / "other")
    tensors = load_file(tmp_path / "other")
    tensors[train.STORED_IDS] = tensors[train.STORED_IDS][1:]
    save_file(tensors, tmp_path / "diffusion_pytorch_model.safetensors")
    with pytest.raises(ValueError, match=f"{train.EMBEDDING} is"):
        CheckpointWeights(tmp_path, config)


def test_command_says_what_is_missing_without_weights(monkeypatch, capsys):
    from deviation import __main__ as command

    monkeypatch.setattr(command, "LEARNED", ROOT / "no" / "such")
    assert command.main([]) == 2
    assert "make train" in capsys.readouterr().err
    assert sys.modules["deviation.page"] is page
