"""Train a small language model from nothing, on any backend, and let it write: it learns the documentation beside it.

    python examples/writer.py out --backend numpy
    mha generate "Attention is" --model out --temperature 0.7 --backend torch

The tokenizer and the weights are new; the model is a small Llama (Touvron et al. 2023), and the result is a directory that
transformers reads too.
"""

import argparse
import json
import re
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import ByteLevelBPETokenizer

import mha_core as mha
import mha_text as mt

DOCS = Path(__file__).parent.parent / "docs"
WIDTH, LAYERS, HEADS, D_FF = 192, 4, 6, 512
VOCABULARY, LENGTH = 2048, 512
TEXTS, TOKENS = 16, 128  # in a batch, and in each of its texts
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": WIDTH,
    "intermediate_size": D_FF,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": LENGTH,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
}


def prose(paths):
    """Return the text of files without code, tables and the targets of links."""
    texts = [re.sub(r"(?ms)^```.*?^```\n|^[|<].*?$|^ *(:|\.\.) .*?$", "", path.read_text(encoding="utf-8")) for path in paths]
    return re.sub(r"\]\([^)]*\)", "]", "\n".join(texts)).replace("[", "").replace("]", "")


def write_new_model(folder, text, seed):
    """Write a tokenizer trained on a text, and a model with random weights; return the tokens of the text."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text], vocab_size=VOCABULARY, show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    rng = np.random.default_rng(seed)
    shapes = {"model.embed_tokens.weight": (VOCABULARY, WIDTH), "model.norm.weight": (WIDTH,)}
    for at in range(LAYERS):
        base = f"model.layers.{at}"
        shapes |= {f"{base}.self_attn.{each}_proj.weight": (WIDTH, WIDTH) for each in "qkvo"}
        shapes |= {f"{base}.mlp.{each}_proj.weight": (D_FF, WIDTH) for each in ("gate", "up")}
        shapes |= {f"{base}.mlp.down_proj.weight": (WIDTH, D_FF)}
        shapes |= {f"{base}.{each}_layernorm.weight": (WIDTH,) for each in ("input", "post_attention")}
    weights = {
        name: np.ones(shape, np.float32) if len(shape) == 1 else rng.normal(size=shape, scale=0.05).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": VOCABULARY}, indent=1))
    return np.asarray(tokenizer.encode(text).ids)


def loss(model, ids):
    return model.loss(ids)


def train(model, ids, steps, seed):
    """Return the model after some steps on random parts of a text."""
    rng = np.random.default_rng(seed)
    optimiser = mha.AdamW(mha.warmup_cosine(3e-3, warmup=steps // 10, total=steps), clip_norm=1.0)
    state = optimiser.init(model)
    began = time.perf_counter()
    for step in range(steps):
        starts = rng.integers(0, len(ids) - TOKENS, size=TEXTS)
        batch = [ids[at : at + TOKENS].tolist() for at in starts]
        value, gradients = mha.value_and_grad(partial(loss, ids=batch))(model)
        model, state = optimiser.step(model, gradients, state)
        if step % 50 == 0 or step + 1 == steps:
            print(f"step {step}: loss {float(value):.3f}, {time.perf_counter() - began:.0f} s", flush=True)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the directory to write, which must be new")
    parser.add_argument("--texts", type=Path, nargs="+", default=sorted(DOCS.glob("**/*.md")), help="files to learn from")
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    text = prose(options.texts)
    with tempfile.TemporaryDirectory() as new:
        ids = write_new_model(Path(new), text, options.seed)
        model = mt.LanguageModel.from_pretrained(new, backend=options.backend)
        print(f"{len(ids)} tokens; {model!r}".partition("\n  ")[0])
        model = train(model, ids, options.steps, options.seed)
        model.save_pretrained(options.out)
    print(model.generate("Attention is", max_new_tokens=60, temperature=0.7, seed=1))


if __name__ == "__main__":
    main()
