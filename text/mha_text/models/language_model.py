"""Pretrained language models: texts in, their continuations out, on any backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

from mha_core import cross_entropy
from mha_core.shared import Array, LoadedBackend, backend_of, check, integers

from .batches import check_iterable
from .causal_model import CausalModel, build_causal_model
from .chat import ChatTemplate, read_dialogue
from .checkpoint import choose
from .families import MODEL_TYPES
from .files import ModelError, WeightsFile, model_type, read_json
from .generation import generated_tokens
from .heads import LANGUAGE_MODELS
from .hints import WRITING_HINTS, hinted
from .pretrained import Pretrained
from .sampling import GenerationError, Sampling
from .tokens import Tokenizer, check_text
from .written import TextStream, Written

_ROWS = 256  # hidden states whose logits are in memory at once
_PROMPTS = "a list of prompts: write [prompt]"


@dataclass(frozen=True, eq=False)
class LanguageModel(Pretrained):
    """A pretrained language model, which continues texts.

    Families: Qwen3, Llama 2 and 3, Mistral and Gemma 3. Weights are read from one safetensors file or from shards. Prompts of
    different lengths are computed together without padding; each layer's cache is written in place where the backend can.

    >>> import mha_text as mt
    >>> model = mt.LanguageModel.from_pretrained("path/to/Qwen3-0.6B")  # doctest: +SKIP
    >>> model.generate("Swifts sleep", max_new_tokens=8)  # doctest: +SKIP
    ' on the wing, high above the clouds'
    """

    model: CausalModel
    tokenizer: Tokenizer
    backend: LoadedBackend
    device: Any = None
    ends: frozenset[int] = frozenset()
    """The tokens that end a text: eos_token_id of generation_config.json, or of config.json."""
    chat: ChatTemplate | None = None
    """The template of dialogues; None: prompts are texts only."""

    _hints = WRITING_HINTS

    @classmethod
    def _read(cls, folder: Path, backend: LoadedBackend, device: Any, make: Callable[[Any], Array]) -> Self:
        kind, file = model_type(folder, LANGUAGE_MODELS), WeightsFile(folder)
        model = build_causal_model(folder, choose(folder, MODEL_TYPES[kind], file), file, make)
        file.finish()
        vocabulary, max_length = model.text.words.shape[0], model.text.max_length
        tokenizer = Tokenizer.read(folder, vocabulary=vocabulary, max_positions=max_length)
        return cls(model, tokenizer, backend, device, _ends(folder), read_dialogue(folder))

    def __repr__(self) -> str:
        return f"LanguageModel(max_seq_length={self.max_seq_length})\nmodel: {self.model!r}"

    @hinted
    def generate(
        self,
        prompts: str | Iterable[Any],
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        cache_dtype: str | None = None,
    ) -> Any:
        """Return what the model writes after each prompt, a list of strings; after one prompt, a string.

        Parameters
        ----------
        prompts : strings or dialogues, or one of them
            A dialogue is a list of messages, {"role": "user", "content": "..."}, which the model's chat template makes a text.
        max_new_tokens : int
            How many tokens a text may grow by, unless the model ends it before.
        temperature : float
            0 takes the most likely token each time; other numbers divide the logits, of which a token is drawn.
        top_k, top_p, min_p : int, float, float, or None
            Only the ``top_k`` most likely tokens may be drawn; only the fewest whose probabilities add up to ``top_p``; only
            those with at least ``min_p`` of the largest probability. In this order, as in transformers.
        seed : int
            Of what is drawn: by the seed, the prompt's place in the list and the token's in the text, on every backend alike.
        stop : str, or strings
            Text is cut before the first of them.
        cache_dtype : "int8", or None
            "int8" rounds keys and values to int8, which take about a quarter of float32's memory, and long texts less time.

        Raises
        ------
        TypeError
            For prompts that are neither, and for keywords of transformers, with what to write instead.
        GenerationError
            A ValueError, for a prompt without tokens or without room for ``max_new_tokens`` within ``max_seq_length``, for
            numbers out of range, and for logits with NaN.
        ModelError
            For a dialogue that the chat template cannot show.
        """
        is_one = isinstance(prompts, str) or _is_dialogue(prompts)
        check_iterable("prompts", [prompts] if is_one else prompts, _PROMPTS)
        sampling, stops = Sampling(temperature, top_k, top_p, min_p, seed), _strings(stop)
        texts = [prompts] if is_one else list(prompts)
        written = [Written(self.tokenizer.tokenizer, ids, stops) for ids in self._prompts(texts, max_new_tokens)]
        for _ in self._grow(written, sampling, max_new_tokens, cache_dtype):
            pass
        return written[0].text if is_one else [each.text for each in written]

    @hinted
    def stream(
        self,
        prompt: Any,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        cache_dtype: str | None = None,
    ) -> TextStream:
        """Return an iterator of what ``generate`` returns for one prompt, in pieces, each as soon as it is known.

        Its ``text`` is what was written so far, ``prompt_tokens`` and ``new_tokens`` count tokens. Options and errors as there.
        """
        sampling = Sampling(temperature, top_k, top_p, min_p, seed)
        (ids,) = self._prompts([prompt], max_new_tokens)
        written = Written(self.tokenizer.tokenizer, ids, _strings(stop))
        return TextStream(written, self._grow([written], sampling, max_new_tokens, cache_dtype))

    def _grow(
        self, written: Sequence[Written], sampling: Sampling, max_new_tokens: int, cache_dtype: str | None
    ) -> Iterator[None]:
        """Let the texts grow, and yield after each step."""
        if not written:
            return
        prompts = [each.prompt for each in written]
        settings = sampling, self.ends, max_new_tokens, lambda text: written[text].is_stopped, cache_dtype
        steps = generated_tokens(self.model, self.backend, prompts, *settings)
        for step in steps:
            for text, token in step:
                written[text].add(token)
            yield

    @hinted
    def score(self, texts: Iterable[str]) -> Array:
        """Return the log-likelihood of each text, in nats, (n,) in float32.

        It is the sum over its tokens but the first of log p(token | tokens before); 0 for a text of one token.

        Raises TypeError if an item is not a string, GenerationError for a text that is empty or longer than ``max_seq_length``.
        """
        check_iterable("texts", texts, "a list of strings: write [text]")
        xp = self.backend.xp
        likelihoods = [self._likelihood(ids) for ids in self._ids("texts", list(texts), 0)]
        return xp.stack(likelihoods) if likelihoods else xp.zeros((0,), dtype=xp.float32, device=self.device)

    def logits(self, text: str) -> Array:
        """Return the logits of the token after each token of a text, (L, vocabulary), in the model's dtype."""
        (ids,) = self._ids("texts", [text], 0)
        return self.model.logits(self.model.states([ids]))

    def loss(self, ids: Sequence[Sequence[int]]) -> Array:
        """Return the mean of -log p(token | tokens before), in nats, over all tokens of texts but the first: for training.

        ``ids``: the token ids of each text, as ``tokenizer(texts)`` returns them. Texts are laid end to end without padding,
        and have gradients as in any function of mha_core.

        Raises GenerationError unless one text at least has two tokens.
        """
        labels = [token for text in ids for token in text[1:]]
        if not labels:
            raise GenerationError("no text has two tokens: there is nothing to predict")
        ends = accumulate(map(len, ids))
        before = [at for end, text in zip(ends, ids, strict=True) for at in range(end - len(text), end - 1)]
        states = self.model.states(ids)
        xp = backend_of({"states": states}).xp  # the tape's, if gradients are recorded
        rows = xp.take(states, integers(xp, before, self.device), axis=0)
        return cross_entropy(self.model.logits(rows), integers(xp, labels, self.device))

    def _likelihood(self, ids: Sequence[int]) -> Array:
        xp, states = self.backend.xp, self.model.states([ids])
        total = xp.zeros((), dtype=xp.float32, device=self.device)
        for first in range(0, len(ids) - 1, _ROWS):
            labels = ids[first + 1 : first + 1 + _ROWS]
            logits = self.model.logits(states[first : first + len(labels), :])
            mean = cross_entropy(logits, integers(xp, labels, self.device))
            total = total - len(labels) * xp.astype(mean, xp.float32)
        return total

    def _prompts(self, prompts: Sequence[Any], max_new_tokens: int) -> list[list[int]]:
        """Return the tokens of prompts, texts or dialogues."""
        check.integer("max_new_tokens", max_new_tokens, 1)
        return self._ids("prompts", prompts, max_new_tokens)

    def _ids(self, name: str, texts: Sequence[Any], room: int) -> list[list[int]]:
        """Return the tokens of texts and dialogues, behind which there is room for more tokens."""
        every = []
        for at, text in enumerate(texts):
            if _is_dialogue(text):
                if self.chat is None:
                    raise GenerationError(f"{name}[{at}] is a dialogue, and the model has no chat template: give its text")
                ids, cut = self.tokenizer.of_chat(self.chat.dialogue(text))
            else:
                check_text(f"{name}[{at}]", text)
                (ids,), cut = self.tokenizer([text])
            if not ids:
                raise GenerationError(f"{name}[{at}] has no tokens: expected a text that is not empty")
            if cut or len(ids) + room > self.max_seq_length:
                length = f"more than {self.max_seq_length}" if cut else str(len(ids))
                more = f", and max_new_tokens is {room}" if room else ""
                raise GenerationError(f"{name}[{at}] has {length} tokens{more}; the model has {self.max_seq_length} positions")
            every.append(ids)
        return every


def _is_dialogue(prompt: Any) -> bool:
    """Return True for a list of messages."""
    return isinstance(prompt, Sequence) and bool(prompt) and all(isinstance(each, Mapping) for each in prompt)


def _strings(stop: str | Sequence[str]) -> Sequence[str]:
    """Return the strings that stop a text. Raises TypeError for what are none, ValueError for an empty one."""
    if not isinstance(stop, str):
        check_iterable("stop", stop, "a string, or a list of them")
    every = [stop] if isinstance(stop, str) else [*stop]
    for word in every:
        check_text("stop", word)
        if not word:
            raise GenerationError("stop has an empty string, which every text contains: leave it out")
    return every


def _ends(folder: Path) -> frozenset[int]:
    """Return the tokens that end a text: eos_token_id of generation_config.json, or else of config.json."""
    for path in (folder / "generation_config.json", folder / "config.json"):
        value = read_json(path, optional=True).get("eos_token_id")
        every = [value] if isinstance(value, int) else value
        if every is None:
            continue
        if not isinstance(every, list) or not all(isinstance(each, int) and not isinstance(each, bool) for each in every):
            raise ModelError(f"{path}: eos_token_id is {value!r}; expected an int, or a list of them")
        return frozenset(every)
    return frozenset()
