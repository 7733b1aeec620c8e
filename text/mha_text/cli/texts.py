"""The commands on texts, ``mha encode``, ``mha search``, ``mha attend`` and ``mha generate``: their arguments."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mha_core import MhaError
from mha_core.cli.command import BackendName, command, failing_clearly

from ..corpus.precision import PRECISIONS
from ..corpus.reader import Reader
from ..corpus.rows import Columns
from ..models.language_model import LanguageModel
from . import attend as attending
from . import corpus as corpora
from . import encode as encoding
from . import generate as generating
from . import search as searching
from .similar import show_nearest

Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE|-",
        help="Files of texts, folders of them, or patterns such as 'corpus/*.parquet': Parquet, CSV, TSV, JSON lines, by their "
        "suffixes; any other file has one text per line. - is standard input.",
        allow_dash=True,
    ),
]
Model = Annotated[
    str,
    typer.Option("--model", "-m", metavar="DIR|REPO", envvar="MHA_MODEL", help="Directory of a model, or a repository id."),
]
Texts = Annotated[list[str] | None, typer.Option("--text", "-t", metavar="T", help="A text; repeatable.")]
Device = Annotated[str | None, typer.Option("--device", metavar="D", help="One of the backend's devices, such as cuda.")]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="x.npy|DIR|-",
        help="File for the vectors, one (n, d) array; a folder for Parquet files of ids and vectors; or - for a JSON list per "
        "text. Default: a summary.",
    ),
]
Similar = Annotated[
    int | None,
    typer.Option("--similar", "-k", min=1, metavar="K", help="Print the K nearest texts to each text instead of vectors."),
]
Column = Annotated[
    str | None,
    typer.Option("--column", "--field", metavar="NAME", help="The column, or field of JSON lines, that holds the texts."),
]
Id = Annotated[
    str | None, typer.Option("--id", metavar="NAME", help="The column or field of ids. Default: rows are numbered from 0.")
]
Prompt = Annotated[str | None, typer.Option("--prompt", metavar="T", help="A text to put in front of each text.")]
PromptName = Annotated[
    str | None,
    typer.Option("--prompt-name", metavar="NAME", help="The name of a prompt that the model has, such as query or document."),
]
TruncateDim = Annotated[
    int | None, typer.Option("--truncate-dim", min=1, metavar="K", help="Keep only the first K numbers of each vector.")
]
Precision = Annotated[
    str, typer.Option("--precision", metavar="NAME", help=f"How a folder stores vectors: {', '.join(PRECISIONS)}.")
]
SkipInvalid = Annotated[
    bool,
    typer.Option("--skip-invalid", help="List rows without a text in DIR/_rejected/rejected.parquet, instead of stopping."),
]
Workers = Annotated[
    int | None, typer.Option("--workers", "-w", min=1, metavar="N", help="Encode in N processes of this machine, by Dask.")
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler", metavar="ADDRESS", help="Encode on the Dask cluster of this scheduler, such as tcp://host:8786."
    ),
]


@command("Example:  mha encode --model DIR sentences.txt --similar 3")
def encode(
    *,
    model: Model,
    files: Files = None,
    text: Texts = None,
    backend: BackendName = None,
    device: Device = None,
    output: Output = None,
    similar: Similar = None,
    column: Column = None,
    id: Id = None,
    prompt: Prompt = None,
    prompt_name: PromptName = None,
    truncate_dim: TruncateDim = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what --similar finds as JSON, a line for each text.")] = False,
    precision: Precision = "float32",
    skip_invalid: SkipInvalid = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
) -> None:
    """Turn texts into vectors with a pretrained encoder, or find similar texts (--similar)."""
    has_file = output not in (None, "-")
    is_folder = has_file and _is_folder(str(output))
    in_parts = is_folder or workers is not None or scheduler is not None
    only_in_folders = f"is for a folder of vectors; add --output vectors/{'' if output is None else f', not {output}'}"
    for is_wrong, name, message in (
        (not files and not text, "FILE", "no texts; give FILE..., - for standard input, or --text T"),
        (
            has_file and not is_folder and not str(output).endswith(".npy"),
            "--output",
            f"{output!r} does not end in .npy; give x.npy, a folder such as vectors/, or - for JSON lines",
        ),
        (as_json and not similar, "--json", "is for --similar; --output - prints vectors as JSON"),
        (output == "-" and similar, "--output", "--similar prints to standard output too; give a file"),
        (id is not None and not is_folder, "--id", only_in_folders),
        (precision != "float32" and not is_folder, "--precision", only_in_folders),
        (skip_invalid and not is_folder, "--skip-invalid", only_in_folders),
        (precision not in PRECISIONS, "--precision", f"{precision!r} is none of {', '.join(PRECISIONS)}"),
        (workers is not None and scheduler is not None, "--workers", "a scheduler has workers; leave out one of the two"),
        (
            in_parts and (text or similar or not has_file or Path("-") in (files or [])),
            "--output",
            "a folder, --workers and --scheduler are for files of texts, and write files: leave out --text, - and --similar",
        ),
    ):
        if is_wrong:
            raise typer.BadParameter(message, param_hint=name)
    columns = Columns(column, id)
    with failing_clearly():
        try:
            sources = encoding.sources_of(files or [], columns)
        except FileNotFoundError as error:
            raise typer.BadParameter(str(error), param_hint="FILE") from error
        load = Reader.of(model, backend=backend, device=device)
        vectors: dict[str, Any] = {"prompt": prompt, "prompt_name": prompt_name, "truncate_dim": truncate_dim}
        if in_parts:
            rows = {"column": column, "id": id, "precision": precision, "skip_invalid": skip_invalid}
            corpora.run(sources, load, Path(str(output)), workers=workers, scheduler=scheduler, **rows, **vectors)
        else:
            show = None if similar is None else partial(show_nearest, count=similar, as_json=as_json)
            encoding.run(sources, columns, text or [], load, output, show, **vectors)


def _is_folder(output: str) -> bool:
    path = Path(output)
    return not output.endswith(".npy") and (output.endswith("/") or not path.suffix or path.is_dir())


@command('Example:  mha search "birds at night" --in vectors/ --model DIR')
def search(
    queries: Annotated[list[str], typer.Argument(metavar="QUERY", help="What to look for.")],
    *,
    corpus: Annotated[
        Path, typer.Option("--in", metavar="x.npy|DIR", help="Vectors that `mha encode --output` wrote with the same model.")
    ],
    model: Model,
    backend: BackendName = None,
    device: Device = None,
    top_k: Annotated[int, typer.Option("--top", "-k", min=1, metavar="K", help="Results for each query.")] = 5,
    texts: Annotated[
        list[Path] | None,
        typer.Option("--texts", metavar="FILE", help="The files of texts that were encoded, to print the texts; repeatable."),
    ] = None,
    column: Column = None,
    prompt: Prompt = None,
    prompt_name: PromptName = None,
    truncate_dim: TruncateDim = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the texts of an encoded corpus that are nearest in meaning to each query.

    By default queries have the model's prompt query, if there is one, and their vectors are cut as those of a folder were.
    """
    with failing_clearly():
        searching.run(
            queries,
            corpus,
            Reader.of(model, backend=backend, device=device),
            top_k,
            texts or [],
            column,
            as_json=as_json,
            prompt=prompt,
            prompt_name=prompt_name,
            truncate_dim=truncate_dim,
        )


def _head(text: str) -> Any:
    if text == "mean" or text.removeprefix("-").isdecimal():
        return text if text == "mean" else int(text)
    raise typer.BadParameter(f"{text!r} is neither a number nor mean")


@command('Example:  mha attend "Some birds never land to rest." --model DIR --output page.html')
def attend(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text.")],
    *,
    model: Model,
    backend: BackendName = None,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="x.html|x.png|-", help="An interactive page, a picture, or - for the terminal."),
    ] = "-",
    layer: Annotated[
        int | None, typer.Option("--layer", metavar="N", help="Layer, from 0. Default: that of the head; in a picture, all.")
    ] = None,
    head: Annotated[
        Any,
        typer.Option(
            "--head",
            metavar="N|mean",
            parser=_head,
            help="Head, from 0, or the mean of all, by default of the last layer. Default: the head with the largest weights "
            "between words that are not neighbours; in a picture, all.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", metavar="N|TOKEN", help="In a page, the token that is selected: its number, from 0, or itself."
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page or picture when it is written.")] = False,
) -> None:
    """Show what each head of a pretrained encoder attends to in a text."""
    if show and output == "-":
        raise typer.BadParameter("there is no file to open: add --output page.html", param_hint="--open")
    if output != "-" and Path(output).suffix not in attending.WRITERS:
        endings = " or ".join(attending.WRITERS)
        raise typer.BadParameter(
            f"{output!r} does not end in {endings}; give such a file, or - for the terminal", param_hint="--output"
        )
    if token is not None and not output.endswith(".html"):
        raise typer.BadParameter("is selected in a page: add --output page.html", param_hint="--token")
    with failing_clearly():
        attending.run(text, model, backend, output, layer, head, token)
        if show and typer.launch(output):
            raise MhaError(f"nothing on this machine opens {output}; it is written")


@command('Example:  mha generate "Swifts sleep" --model DIR --max-new-tokens 40')
def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to continue.")],
    *,
    model: Model,
    backend: BackendName = None,
    device: Device = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="NAME", help="The dtype to compute in. Default: float32.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", metavar="int8", help="int8: linear maps with int8 weights, which are smaller.")
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=1, metavar="N", help="The most tokens to write.")
    ] = 128,
    temperature: Annotated[
        float,
        typer.Option("--temperature", metavar="T", help="Draw tokens, their logits divided by T. 0 takes the likeliest."),
    ] = 0.0,
    top_k: Annotated[int | None, typer.Option("--top-k", metavar="K", help="Draw one of the K likeliest tokens.")] = None,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", metavar="P", help="Draw one of the fewest tokens whose probabilities add up to P."),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option("--min-p", metavar="P", help="Draw a token with at least P times the largest probability."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Another seed draws other tokens.")] = 0,
    stop: Annotated[list[str] | None, typer.Option("--stop", metavar="T", help="End before this text; repeatable.")] = None,
    cache_dtype: Annotated[
        str | None, typer.Option("--cache-dtype", metavar="int8", help="int8: keys and values of earlier tokens are rounded.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Give PROMPT to the chat template as a message, and print the answer.")
    ] = False,
) -> None:
    """Continue a text with a pretrained language model."""
    with failing_clearly():
        generating.run(
            prompt,
            partial(LanguageModel.from_pretrained, model, backend=backend, device=device, dtype=dtype, weights=weights),
            is_message=chat,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            stop=stop or [],
            cache_dtype=cache_dtype,
        )
