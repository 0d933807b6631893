# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Train the tiny Cosmos3: `python -m deviation.train --seconds 3600 --out build/learned`.

Flow matching on drawn scenes. The forward here is one that has a backward and is fast on a CPU;
tests hold it to the host's transformer and to diffusers'.

Fields: B batch, S video rows, L text rows, H heads, K key heads, D head width.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

import provenance
import torch
import torch.nn.functional as F
from cosmos3_checkpoint import EMBEDDING, STORED_IDS, WEIGHTS
from cosmos3_components import make_scheduler
from cosmos3_sizes import SIZES
from cosmos3_weights import weight_shapes
from hostpath import ROOT
from make_command import make_command
from parity.prompts import tokenize
from safetensors.torch import save_file

from deviation import scenes

MARGIN = 15000
FIELDS = SIZES["learned"]
HEADS, KEY_HEADS = FIELDS["num_attention_heads"], FIELDS["num_key_value_heads"]
LAYERS, WIDTH, PATCH = (
    FIELDS[name] for name in ("num_hidden_layers", "head_dim", "latent_patch_size")
)
# Sections of the negative prompt that stand for no caption, and how often.
NEGATIVES = {None: 10, 0: 2, 2: 1, 4: 1, 18: 1, 27: 1}
UNCONDITIONAL = 0.1
# Words of captions, samples of a batch and how often.
CAPTIONS = (((0, 0), 8, 45), ((0, 25), 8, 28), ((25, 90), 6, 15), ((90, 520), 4, 9))
# Parts that the gradient of a step is summed over, each of one kind; worked on side by side, since
# operations this small gain little from threads of their own.
PARTS = 2
VALIDATION_SEED, TRAINING_SEED = 1, 2
Weights = dict[str, torch.Tensor]


class _Attention(torch.autograd.Function):
    """Softmax attention sample by sample, so that the scores of one stay in the cache."""

    @staticmethod
    def forward(ctx, q, k, v, bias):
        out, weights = torch.empty_like(q), []
        keys = k.transpose(-1, -2) * WIDTH**-0.5
        for i in range(len(q)):
            scores = q[i] @ keys[i]
            weights.append(torch.softmax(scores if bias is None else scores + bias[i], -1))
            out[i] = weights[-1] @ v[i]
        ctx.save_for_backward(q, k, v, *weights)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, *weights = ctx.saved_tensors
        grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for i, p in enumerate(weights):
            grads[2][i] = p.transpose(-1, -2) @ grad[i]
            moved = grad[i] @ v[i].transpose(-1, -2)
            moved = torch._softmax_backward_data(moved, p, -1, p.dtype)
            grads[0][i] = moved @ k[i] * WIDTH**-0.5
            grads[1][i] = moved.transpose(-1, -2) @ q[i] * WIDTH**-0.5
        return *grads, None


def attend(q, k, v, bias):
    """Grouped attention of q [B, S, H, D] to k, v [B, L, K, D]; bias [B, 1, 1 or 2S, L]."""
    group = HEADS // KEY_HEADS
    q = q.unflatten(2, (KEY_HEADS, group)).permute(0, 2, 3, 1, 4)
    rows = q.shape[3]
    k, v = (x.transpose(1, 2).to(q.dtype).contiguous() for x in (k, v))
    out = _Attention.apply(q.flatten(2, 3).contiguous(), k, v, bias)
    return out.unflatten(2, (group, rows)).permute(0, 3, 1, 2, 4).flatten(2)


def _plain_norm(x, weight):
    wide = x if x.dtype == torch.float64 else x.float()
    return F.rms_norm(wide, (x.shape[-1],), weight, 1e-6)


def _norm_and_rotate(x, weight, cos, sin):
    first, second = (normed := _plain_norm(x, weight)).chunk(2, -1)
    return (normed * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


def _gated(both):
    gate, up = both.chunk(2, -1)
    return F.silu(gate) * up


_norm, _turn, _gate = _plain_norm, _norm_and_rotate, _gated


def fuse() -> None:
    """Has what works element by element compiled, which takes a third of the time off."""
    global _norm, _turn, _gate
    _norm, _turn, _gate = (
        torch.compile(f, dynamic=True) for f in (_plain_norm, _norm_and_rotate, _gated)
    )


def _tables(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [rows, 1, D] of positions [3, rows]."""
    exponent = torch.arange(0, WIDTH, 2, dtype=torch.float32) / WIDTH
    # In this order: at 15000 columns one last bit moves an angle by 1e-3.
    angles = positions[..., None] * (1.0 / FIELDS["rope_theta"] ** exponent)
    mixed = angles[0].clone()
    for axis in (1, 2):
        index = slice(axis, 3 * FIELDS["rope_axes_dim"][axis], 3)
        mixed[..., index] = angles[axis][..., index]
    angles = torch.cat([mixed, mixed], -1)[..., None, :]
    return angles.cos(), angles.sin()


def _video_tables(lengths: list[int], grid: tuple[int, int, int]):
    axes = torch.meshgrid(*(torch.arange(n, dtype=torch.float32) for n in grid), indexing="ij")
    positions = torch.stack([axis.flatten() for axis in axes])
    shift = torch.tensor([1.0, 0.0, 0.0])[:, None]
    tables = [_tables(positions + shift * float(n + MARGIN)) for n in lengths]
    return tuple(torch.stack(x) for x in zip(*tables))


def _project(w: Weights, at: str, names: tuple[str, ...], x, norms, tables):
    """Returns q, k and v [B, rows, heads, D], normalised and rotated."""
    weight = torch.cat([w[f"{at}.{name}.weight"] for name in names])
    heads = [HEADS, KEY_HEADS, KEY_HEADS][3 - len(names) :]
    parts = list(F.linear(x, weight).unflatten(-1, (-1, WIDTH)).split(heads, 2))
    for i, name in enumerate(norms[3 - len(names) :]):
        parts[i] = _turn(parts[i], w[f"{at}.{name}.weight"], *tables)
    return parts


def _mlp(w: Weights, at: str, x):
    both = torch.cat([w[f"{at}.gate_proj.weight"], w[f"{at}.up_proj.weight"]])
    return F.linear(_gate(F.linear(x, both)), w[f"{at}.down_proj.weight"])


def text_tower(w: Weights, ids: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns K and V [B, L, K, D] of each layer for ids [B, L] of the stored table."""
    x = F.embedding(ids, w[EMBEDDING])
    rows = ids.shape[1]
    tables = _tables(torch.arange(rows, dtype=torch.float32).expand(3, 1, -1))
    causal = torch.full((rows, rows), float("-inf")).triu(1).repeat(HEADS // KEY_HEADS, 1)
    found = []
    for i in range(LAYERS):
        at = f"layers.{i}"
        h = _norm(x, w[f"{at}.input_layernorm.weight"])
        names, norms = ("to_q", "to_k", "to_v"), ("norm_q", "norm_k")
        if i == LAYERS - 1:
            return [*found, _project(w, f"{at}.self_attn", names[1:], h, norms, tables)]
        q, k, v = _project(w, f"{at}.self_attn", names, h, norms, tables)
        found.append((k, v))
        bias = causal.to(q.dtype).expand(len(q), *causal.shape)
        x = x + F.linear(attend(q, k, v, bias), w[f"{at}.self_attn.to_out.weight"])
        h = _norm(x, w[f"{at}.post_attention_layernorm.weight"])
        x = x + _mlp(w, f"{at}.mlp", h)
    return found


def velocity(w: Weights, x: torch.Tensor, t: torch.Tensor, text, lengths: list[int]):
    """Returns velocities like x.

    Args:
        w: Weights by diffusers' names.
        x: Latents [B, 3, T, SIDE, SIDE].
        t: [B], 1 for noise and 0 for a video.
        text: What text_tower() returned, of B prompts or of one for all.
        lengths: Tokens of each of these prompts.
    """
    batch, channels, frames, side, _ = x.shape
    cells = side // PATCH
    patches = x.unflatten(4, (cells, PATCH)).unflatten(3, (cells, PATCH))
    patches = patches.permute(0, 2, 3, 5, 4, 6, 1).flatten(4).flatten(1, 3)
    h = F.linear(patches, w["proj_in.weight"], w["proj_in.bias"])
    frequencies = torch.exp(torch.arange(128.0) * (-math.log(10000) / 128))
    angles = t[:, None] * frequencies
    e = torch.cat([angles.cos(), angles.sin()], -1).to(x.dtype)
    e = F.silu(F.linear(e, w["time_embedder.linear_1.weight"], w["time_embedder.linear_1.bias"]))
    e = F.linear(e, w["time_embedder.linear_2.weight"], w["time_embedder.linear_2.bias"])
    h = h + e[:, None]
    tables = _video_tables(lengths, (frames, cells, cells))
    rows, longest = h.shape[1], text[0][0].shape[1]
    bias = None
    if min(lengths) < longest:
        past = torch.arange(longest) >= torch.tensor(lengths)[:, None]
        bias = torch.zeros(len(lengths), 1, 1, rows + longest)
        bias[..., rows:] = bias[..., rows:].masked_fill(past[:, None, None], float("-inf"))
    for i, pair in enumerate(text):
        at = f"layers.{i}"
        n = _norm(h, w[f"{at}.input_layernorm_moe_gen.weight"])
        names, norms = ("add_q_proj", "add_k_proj", "add_v_proj"), ("norm_added_q", "norm_added_k")
        q, k, v = _project(w, f"{at}.self_attn", names, n, norms, tables)
        k, v = (torch.cat([a, b.expand(batch, -1, -1, -1)], 1) for a, b in zip((k, v), pair))
        out = attend(q, k, v, None if bias is None else bias.to(q.dtype).expand(batch, -1, -1, -1))
        h = h + F.linear(out, w[f"{at}.self_attn.to_add_out.weight"])
        n = _norm(h, w[f"{at}.post_attention_layernorm_moe_gen.weight"])
        h = h + _mlp(w, f"{at}.mlp_moe_gen", n)
    h = F.linear(_norm(h, w["norm_moe_gen.weight"]), w["proj_out.weight"], w["proj_out.bias"])
    h = h.unflatten(1, (frames, cells, cells)).unflatten(4, (PATCH, PATCH, channels))
    return h.permute(0, 6, 1, 2, 4, 3, 5).flatten(5).flatten(3, 4)


class Captions:
    """Token rows in the stored table's numbers, padded to a multiple of 16."""

    def __init__(self):
        draw, texts = random.Random(TRAINING_SEED + 1), {}
        for i in range(4000):
            scene = scenes.random_scene(draw)
            texts[scenes.caption(scene, draw, (0, 0, 20, 100)[i % 4])] = None
        found = {token for text in texts for token in tokenize("positive", text).ids}
        self.negatives = [tokenize("negative", scenes.negative(n)).ids for n in NEGATIVES]
        self.tokens = sorted(found.union(*self.negatives))
        self._number = {token: i for i, token in enumerate(self.tokens)}

    def rows(self, prompts) -> tuple[torch.Tensor, list[int]]:
        """Returns ids [B, L] and lengths."""
        lengths = [len(ids) for ids in prompts]
        rows = torch.zeros(len(prompts), -(-max(lengths) // 16) * 16, dtype=torch.long)
        for row, ids in zip(rows, prompts):
            row[: len(ids)] = torch.tensor([self._number[token] for token in ids])
        return rows, lengths


def initial(tokens: int, seed: int) -> Weights:
    """Returns weights to start from, float32, by diffusers' names."""
    generator, weights = torch.Generator().manual_seed(seed), {}
    for name, shape in weight_shapes({**FIELDS, "vocab_size": tokens}).items():
        if "norm" in name:
            value = torch.ones(shape)
        elif name.endswith("bias"):
            value = torch.zeros(shape)
        else:
            scale = 1.0 if name == EMBEDDING else shape[-1] ** -0.5
            # Each layer begins by changing little.
            scale *= 0.2 if ("out" in name or "down_proj" in name) else 1.0
            value = torch.randn(shape, generator=generator) * scale
        weights[name] = value.requires_grad_(True)
    return weights


def batch(captions: Captions, draw: random.Random):
    """Returns videos [B, 3, T, SIDE, SIDE], and ids and lengths of B prompts or one for all."""
    frames = draw.choices((5, 4, 3), (3, 2, 2))[0]
    if draw.random() < UNCONDITIONAL:
        chosen = draw.choices(captions.negatives, NEGATIVES.values())[0]
        drawn = [scenes.random_scene(draw) for _ in range(8)]
        return scenes.render(drawn, draw, frames), *captions.rows([chosen])
    words, size, _ = draw.choices(CAPTIONS, [weight for *_, weight in CAPTIONS])[0]
    drawn = [scenes.random_scene(draw) for _ in range(size)]
    count = draw.randint(*words)
    texts = [scenes.caption(scene, draw, count) for scene in drawn]
    ids = [tokenize("positive", text).ids for text in texts]
    return scenes.render(drawn, draw, frames), *captions.rows(ids)


def backward(weights: Weights, part) -> float:
    """Adds the gradient of one part to the weights'; returns its loss."""
    (videos, ids, lengths), t, noise = part
    mixed = videos + t[:, None, None, None, None] * (noise - videos)
    with torch.autocast("cpu", torch.bfloat16):
        found = velocity(weights, mixed, t, text_tower(weights, ids), lengths)
    loss = F.mse_loss(found.float(), noise - videos)
    (loss / PARTS).backward()
    return loss.item()


def _begin_worker() -> None:
    torch.set_num_threads(1)
    # A setting of each thread. Sizes of one row, and each dtype, are compiled apart.
    torch._dynamo.config.recompile_limit = 64


def drawn_part(captions: Captions, draw: random.Random):
    """Returns a batch with its times, 1 for noise, and its noise."""
    part = batch(captions, draw)
    # Obedience is decided where there is much noise.
    times = torch.sigmoid(torch.randn(len(part[0])) + 0.5)
    return part, times, torch.randn_like(part[0])


@torch.no_grad()
@torch.compiler.set_stance("force_eager")
def obedience(w: Weights, captions: Captions, count: int, guidance: float = 3.0) -> dict:
    """Returns the share of unseen captions obeyed, by aspect, after 10 steps."""
    draw = random.Random(VALIDATION_SEED)
    drawn = [scenes.random_scene(draw) for _ in range(count)]
    ids = [tokenize("positive", scenes.caption(s, draw, draw.choice((0, 0, 20, 60)))).ids
           for s in drawn]  # fmt: skip
    rows, lengths = captions.rows(ids)
    text, none = text_tower(w, rows), text_tower(w, captions.rows(captions.negatives[:1])[0])
    none = [tuple(x[:, : len(captions.negatives[0])] for x in pair) for pair in none]
    shape = (count, 3, scenes.FRAMES, scenes.SIDE, scenes.SIDE)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(VALIDATION_SEED))
    scheduler = make_scheduler(10)
    for timestep in scheduler.timesteps:
        t = torch.full((count,), float(timestep) / 1000)
        a = velocity(w, x, t, none, [len(captions.negatives[0])]).float()
        b = velocity(w, x, t, text, lengths).float()
        x = scheduler.step(a + guidance * (b - a), timestep, x, return_dict=False)[0]
    found = scenes.judge(x)
    return {name: sum(a[i] == b[i] for a, b in zip(drawn, found)) / count
            for i, name in enumerate(scenes.ASPECTS)}  # fmt: skip


def optimizers(weights: Weights, rate: float):
    """Returns Muon for the layers' matrices, and Adam for all else."""
    inner = [w for n, w in weights.items() if n.startswith("layers") and w.dim() == 2]
    chosen = set(map(id, inner))
    outer = [w for w in weights.values() if id(w) not in chosen]
    return [
        torch.optim.Muon(inner, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, lr=rate, weight_decay=0.0, betas=(0.9, 0.98)),
    ]


def train(
    seconds: float, steps: int | None, out: Path, rate: float, command: str, judged: int = 36
) -> list[float]:
    """Trains for so long, or so many steps, and writes weights; returns the losses."""
    torch.manual_seed(0)
    captions, draw = Captions(), random.Random(TRAINING_SEED)
    weights = initial(len(captions.tokens), 0)
    mean = {name: value.detach().clone() for name, value in weights.items()}
    used = optimizers(weights, rate)
    workers = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=_begin_worker)
    started = saved = time.monotonic()
    losses, validation, passed = [], [], 0.0
    while passed < 1 and (steps is None or len(losses) < steps):
        parts = [drawn_part(captions, draw) for _ in range(PARTS)]
        loss = sum(pool.map(lambda part: backward(weights, part), parts)) / PARTS
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        step, now = len(losses) + 1, time.monotonic()
        passed = (now - started) / seconds if steps is None else step / steps
        factor = min(1.0, step / 60) * (0.5 + 0.5 * math.cos(math.pi * min(1.0, passed)))
        for optimizer in used:
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        keep = min(0.998, step / (step + 10))
        torch._foreach_lerp_(list(mean.values()), [w.detach() for w in weights.values()], 1 - keep)
        losses.append(loss)
        if step in (1, 10) or step % 50 == 0:
            recent = sum(losses[-100:]) / len(losses[-100:])
            print(f"{now - started:.0f} s step {step} loss {recent:.4f}", flush=True)
        if now - saved > 240 or passed >= 1:
            with torch.autocast("cpu", torch.bfloat16):
                validation.append([round(now - started), step, obedience(mean, captions, judged)])
            print(f"{now - started:.0f} s obedience {validation[-1][2]}", flush=True)
            record = {
                "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "command": command, "commit": provenance.commit(),
                "device": f"CPU, {workers} threads, bfloat16 autocast",
                "seconds": round(now - started), "steps": step, "rate": rate,
                "losses": [round(sum(losses[i : i + 100]) / len(losses[i : i + 100]), 4)
                           for i in range(0, step, 100)],
                "validation": validation, "versions": provenance.versions(),
            }  # fmt: skip
            save(mean, captions.tokens, out, record)
            saved = time.monotonic()
    return losses


def save(weights: Weights, tokens: list[int], out: Path, record: dict) -> None:
    """Writes a checkpoint folder in bfloat16, and the record of its training."""
    kept = {n: w.detach().to(torch.bfloat16).contiguous() for n, w in weights.items()}
    kept[STORED_IDS] = torch.tensor(tokens, dtype=torch.int32)
    out.mkdir(parents=True, exist_ok=True)
    save_file(kept, out / f"{WEIGHTS}.part")
    (out / f"{WEIGHTS}.part").replace(out / WEIGHTS)
    for name, facts in (("config.json", FIELDS), ("training.json", record)):
        (out / name).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    argv = sys.argv[1:] if argv is None else argv
    made = argparse.ArgumentParser(prog="deviation.train", description=__doc__.split("\n")[0])
    made.add_argument("--seconds", type=float, default=3600.0, help="of the schedule")
    made.add_argument("--steps", type=int, help="of the schedule, instead of seconds")
    made.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    made.add_argument("--out", type=Path, default=ROOT / "build" / "learned", metavar="DIR")
    args = made.parse_args(argv)
    fuse()
    train(args.seconds, args.steps, args.out, args.rate, make_command("train", argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
