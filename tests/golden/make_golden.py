# SPDX-License-Identifier: Apache-2.0
"""Writes the golden cases beside this file: tiny random Mixtrals, one batch each, the loss and every gradient.

Run once, by hand; the results are committed (README.md says with which versions, and how to run it again).

The oracle is the Mixtral of Hugging Face transformers, in float64 throughout. Its source narrows to float32 in a
few places whatever the type of the model (norms, softmaxes, rotary angles, logits); those casts are widened in a
copy of the source made in memory, so that what is stored carries no rounding but that of its own storage.
The unmodified model in float32 is run as well, and has to agree within float32 rounding.
"""
import importlib.util
import json
import pathlib
import sys
import types

import numpy
import safetensors
import safetensors.torch
import torch
import transformers
from transformers import MixtralConfig
from transformers.models.mixtral import modeling_mixtral as narrow

HERE = pathlib.Path(__file__).resolve().parent
SEQUENCES, LENGTH = 4, 16
SEEDS = 400

CASES = {
    # what Mixtral-8x7B is, in small: grouped queries, two of four experts, its own output projection
    "untied_top2": dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
        num_experts_per_tok=2, intermediate_size=48, vocab_size=96, rope_theta=1e4, rms_norm_eps=1e-5,
        tie_word_embeddings=False, router_aux_loss_coef=0.0),
    # the other branch everywhere: no grouping, one expert, tied output projection, balance loss, an idle expert
    "tied_top1_balance": dict(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, num_local_experts=8,
        num_experts_per_tok=1, intermediate_size=20, vocab_size=80, rope_theta=1e6, rms_norm_eps=1e-5,
        tie_word_embeddings=True, router_aux_loss_coef=0.1),
}


def widened_module():
    """modeling_mixtral with every cast to float32 made a cast to float64."""
    source = pathlib.Path(narrow.__file__).read_text()
    for old, new in [("torch.float32", "torch.float64"), ("dtype=torch.float)", "dtype=torch.float64)"),
                     (".float()", ".double()")]:
        assert old in source, f"this version of transformers has no '{old}': look at its casts again"
        source = source.replace(old, new)
    name = "transformers.models.mixtral.modeling_mixtral_float64"
    module = types.ModuleType(name)
    module.__package__ = "transformers.models.mixtral"
    module.__file__ = narrow.__file__
    module.__spec__ = importlib.util.spec_from_loader(name, loader=None)
    sys.modules[name] = module
    exec(compile(source, narrow.__file__, "exec"), module.__dict__)
    return module


def make_config(case):
    return MixtralConfig(**case, max_position_embeddings=LENGTH, sliding_window=None, attention_dropout=0.0,
                         hidden_act="silu", use_cache=False, attn_implementation="eager")


def build(module, config, weights, dtype):
    torch.set_default_dtype(dtype)  # rotary tables and masks take this type, not the model's; it stays for the run
    model = module.MixtralForCausalLM(config)
    model.load_state_dict({**weights, **({"lm_head.weight": weights["model.embed_tokens.weight"]}
                                         if config.tie_word_embeddings else {})})
    model.tie_weights()
    return model.to(dtype)


def draw(config, seed):
    """Weights of a size at which nothing is degenerate, all exact in float32, and a batch of tokens."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, parameter in narrow.MixtralForCausalLM(config).named_parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        if "norm" in name:
            weights[name] = 1 + 0.1 * values
        elif "embed_tokens" in name or "block_sparse_moe.gate" in name:
            weights[name] = 0.4 * values
        else:
            weights[name] = 0.2 * values
    tokens = torch.randint(config.vocab_size, (SEQUENCES, LENGTH + 1), generator=generator)
    return weights, tokens


def run(module, model, config, tokens):
    out = model(input_ids=tokens[:, :-1], output_router_logits=True)
    logits = out.logits.reshape(-1, config.vocab_size)
    cross_entropy = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].reshape(-1))
    balance = module.load_balancing_loss_func(out.router_logits, config.num_local_experts,
                                              config.num_experts_per_tok)
    return cross_entropy + config.router_aux_loss_coef * balance, cross_entropy, balance, out.router_logits


def routing_facts(config, router_logits):
    """The smallest distance of any token from another choice of experts, and the rows of each expert."""
    gap, rows = 1.0, []
    for logits in router_logits:
        probabilities = torch.softmax(logits.detach().double(), -1)
        ordered, chosen = probabilities.sort(dim=-1, descending=True)
        k = config.num_experts_per_tok
        gap = min(gap, (ordered[:, k - 1] - ordered[:, k]).min().item())
        rows.append(torch.bincount(chosen[:, :k].reshape(-1), minlength=config.num_local_experts).tolist())
    return gap, rows


def choose_seed(module, config, idle_expert):
    best = (0.0, None)
    for seed in range(SEEDS):
        weights, tokens = draw(config, seed)
        with torch.no_grad():
            *_, router_logits = run(module, build(module, config, weights, torch.float64), config, tokens)
        gap, rows = routing_facts(config, router_logits)
        idle = sum(count == 0 for layer in rows for count in layer)
        if idle == (1 if idle_expert else 0) and gap > best[0]:
            best = (gap, seed)
    assert best[0] > 1e-3, f"no seed keeps every token further than 1e-3 from another choice of experts: {best}"
    return best[1]


def relative(a, b):
    norm = b.double().norm()
    return ((a.double() - b.double()).norm() / norm).item() if norm > 0 else a.double().norm().item()


def make_case(module, name, case):
    config = make_config(case)
    seed = choose_seed(module, config, idle_expert=config.num_experts_per_tok == 1)
    weights, tokens = draw(config, seed)

    model = build(module, config, weights, torch.float64)
    loss, cross_entropy, balance, router_logits = run(module, model, config, tokens)
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters()}
    gap, rows = routing_facts(config, router_logits)

    check = build(narrow, config, weights, torch.float32)
    check_loss = run(narrow, check, config, tokens)[0]
    check_loss.backward()
    off = {n: relative(p.grad, gradients[n]) for n, p in check.named_parameters()}
    # top-1 gates are p/p: what reaches the router through them is rounding of 1/p - p/p^2
    assert abs(check_loss.item() - loss.item()) < 1e-5 * loss.item() and max(off.values()) < 1e-4, off

    facts = {
        "loss": repr(loss.item()), "cross_entropy": repr(cross_entropy.item()), "balance": repr(balance.item()),
        "seed": str(seed), "smallest_routing_gap": repr(gap), "rows_of_expert": json.dumps(rows),
        "python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__,
        "safetensors": safetensors.__version__, "numpy": numpy.__version__, "format": "pt"}
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "mixtral", **case}, indent=2) + "\n")

    def store(file, tensors):
        data = safetensors.torch.save(tensors, metadata=facts)
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        header["__metadata__"] = facts  # save() shuffles it, and a second run is to write the same bytes
        text = json.dumps(header, separators=(",", ":")).encode().ljust(size)
        assert len(text) == size
        (folder / file).write_bytes(data[:8] + text + data[8 + size:])

    store("weights.safetensors", weights)
    store("gradients.safetensors", {n: g.float().contiguous() for n, g in gradients.items()})
    store("batch.safetensors", {"tokens": tokens, "loss": loss.detach().reshape(1),
                                "cross_entropy": cross_entropy.detach().reshape(1),
                                "balance": balance.detach().reshape(1)})
    print(f"{name}: " + ", ".join(f"{k} {v}" for k, v in facts.items()))
    print(f"  unmodified float32 model: loss off by {abs(check_loss.item() / loss.item() - 1):.1e}, "
          f"gradients by at most {max(off.values()):.1e} of their norm")
    print(f"  gradient norms {min(g.norm().item() for g in gradients.values()):.2e} to "
          f"{max(g.norm().item() for g in gradients.values()):.2e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    widened = widened_module()
    for case_name, case_config in CASES.items():
        make_case(widened, case_name, case_config)
