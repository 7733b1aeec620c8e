"""Every plugin of this folder: its fault, the section of the suite that must find it, and the promise that it breaks."""

from .edges import FAULTS
from .plugin import FUNCTIONS, HANDLES, STATES, Plugin, plugins

_HALF = {"dtype": "float16"}
_PIECES = {"handles": frozenset()}
_INT8 = {"section": "test_covering", "op": "linear_int8"}
_HALF_NORMS = {"section": "test_half_precision", "op": "rms_norm", **_HALF}
_GRADIENT = {"backend": "torch", "handles": HANDLES | {"gradient"}}
_HALF_QUERY = {"section": "test_promises", "dtype": "bfloat16"}
_INT8_ROWS = {"handles": HANDLES | {"int8"}}
_FUNCTIONS = {"handles": HANDLES | FUNCTIONS}
_FUNCTION_GRADIENTS = {"op": "attention_vjp", "handles": HANDLES - {"lse"} | FUNCTIONS | {"d_lse", "d_bias", "d_sink"}}
_DROPOUT = {"handles": HANDLES | {"weight_dropout"}}
_STATES = {"handles": HANDLES | STATES}
_WIDE_INPUTS = {"section": "test_inputs", "dtype": "float64"}
_WRONG = {"backend": "wrong"}
_IMPORTS = {**_WRONG, "registered": "wrong_plugins.imports"}
_MEMORY = {"handles": frozenset(), "says": "makes an array as large as the scores"}
_STRICT = {"backend": "array_api_strict"}
_LAYER = frozenset(
    {
        *("attention=MultiHeadAttention", "feed_forward=FeedForward", "norm_1=LayerNorm", "norm_2=LayerNorm", "norm_first"),
        *(f"attention.{name}" for name in ("b_q", "b_k", "b_v", "b_o")),
        *(f"feed_forward.activation={name}" for name in ("relu", "gelu", "silu")),
        "mask",
    }
)
_ENCODER = {"section": "test_covering", "op": "encoder_layer", "handles": _LAYER}

_BLOCKS = {
    "scores test_kernels": [
        ("scale_off", 0, "plain", "the scale is 1% off"),
        ("last_key_dropped", 0, "plain", "the last key is left out"),
        (
            *("first_key_of_the_second_tile_dropped", 0, "a_kernel", "the 65th key is left out"),
            {"section": "test_covering", "says": "a smaller problem that fails too: "},
        ),
        ("merged_by_the_maximum", 0, "plain", "halves of the keys merged by their maxima, not by their sums"),
        ("rounded_values", 0, "plain", "values rounded to float16"),
    ],
    "scores test_promises": [
        ("softcap_after_mask", 6, "test_6", "softcap after the mask"),
        ("softcap_after_bias", 6, "test_6", "softcap after the bias"),
        ("query_rounded", 9, "test_9", "the query rounded to float16 after scaling", _HALF),
        ("half_scores", 9, "test_9", "scores summed in float16", _HALF),
    ],
    "masks test_promises": [
        ("causal_off_by_one", 5, "test_5", "causal masks let one key too many through"),
        ("causal_by_fours", 5, "test_5", "in float16 four queries see the keys of the last of them (pytorch #195910)", _HALF),
        ("window_too_wide", 5, "test_5", "windows reach one key too far back"),
        ("aligned_at_the_end", 5, "test_5", "positions are aligned at the end, and the offset is ignored"),
        ("first_head_of_the_mask", 11, "test_11", "all heads use the mask of the first head"),
        ("mask_turned", 4, "test_4", "True means masked"),
        ("minus_ten_thousand", 3, "test_3", "masked scores are -10,000"),
        ("minus_a_billion", 3, "test_3", "masked scores are -1,000,000,000"),
        ("added", 3, "test_3", "1,000,000,000 is subtracted from masked scores"),
    ],
    "rows test_promises": [
        ("mean_for_an_empty_row", 1, "test_1_", "the mean of the values for a row that sees no key"),
        ("nan_for_an_empty_row", 1, "test_1_", "NaN for a row that sees no key"),
        ("lowest_lse_for_an_empty_row", 1, "test_1_", "lse of a row that sees no key is the lowest number of its dtype"),
        ("sink_of_an_empty_row_forgotten", 1, "test_1_", "the sink is ignored if there are no keys"),
        ("values_leak_into_an_empty_row", 1, "test_1_", "0 times NaN in a row that sees no key"),
        ("lse_of_base_2", 2, "test_2", "lse is a base-2 logarithm"),
        ("lse_rounded", 2, "test_2", "lse rounded to float16, then widened again"),
        ("lse_in_half_precision", 2, "test_2", "lse in the dtype of the query", _HALF),
        ("sink_in_lse_only", 6, "test_6", "the sink counts in lse, not in the output"),
    ],
    "shapes test_kernels": [
        ("heads_tiled", 6, "declared_feature_works", "query heads read key heads in turn, not in groups"),
        (
            "first_of_the_batch",
            6,
            "declared_feature_works",
            "the first query is used for the whole batch if the batch shares keys",
        ),
        ("values_as_wide_as_keys", 6, "declared_feature_works", "value_dim is assumed to equal head_dim"),
        ("keys_in_pairs", 0, "plain", "an odd last key scores 0"),
    ],
    "shapes test_promises": [
        ("no_width", 8, "test_8", "heads of width 0 divide by it"),
        ("no_keys", 8, "test_8", "no keys give 0 / 0"),
        ("no_queries", 8, "test_8", "no queries raise IndexError"),
    ],
    "features test_kernels": [
        ("ignores_softcap", 6, "declared_feature_works", "softcap declared and ignored"),
        ("ignores_sink", 6, "declared_feature_works", "sink declared and ignored"),
        ("ignores_bias", 6, "declared_feature_works", "bias declared and ignored"),
        ("ignores_causal", 6, "declared_feature_works", "causal declared and ignored"),
        ("ignores_key_lengths", 6, "declared_feature_works", "key_lengths declared and ignored"),
        ("ignores_packed", 6, "declared_feature_works", "packed declared and ignored"),
        ("crashes", 6, "declared_feature_works", "every call raises an exception"),
        ("casual", 6, "declared_feature_is_known", "declares a feature that does not exist", {"handles": HANDLES | {"casual"}}),
    ],
    "inputs test_inputs": [
        ("looks_behind_the_keys", 7, "test_7", "reads keys that were dropped, times 0", {"section": "test_promises"}),
        ("writes_to_the_query", 12, "test_12", "scales the query in place"),
        ("writes_to_the_mask", 12, "test_12", "clears a column of the mask"),
        (
            *("scales_the_query_and_back", 0, "kernel_on_problems"),
            "doubles the query in place, and halves it again after the call",
            {"section": "test_covering", "says": "query was written to during the call, at"},
        ),
        ("reads_in_memory_order", 12, "test_12", "assumes contiguous arrays"),
        ("unsigned_strides", 12, "test_12", "assumes positive strides"),
    ],
    "inputs test_kernels": [
        ("in_double_precision", 0, "plain", "the output is always float64"),
        ("drops_the_last_query", 0, "plain", "the output lacks the last query"),
        ("in_numpy", 0, "plain", "the output is a NumPy array, the input is not", _STRICT),
        ("on_another_device", 0, "plain", "the output is on another device", _STRICT),
    ],
    "memory test_memory": [("all_scores_at_once", 13, "", "all L x S scores at once", _MEMORY)],
    "state test_kernels": [
        ("shared_scratch", 14, "one_shape", "all threads write scores into one array", {"section": "test_threads"}),
        ("different_each_time", 14, "attention", "the last bit changes from call to call", {"section": "test_determinism"}),
        ("keeps_the_first_answer", 0, "plain", "returns the result of an earlier call of the same shape"),
    ],
    "pieces test_kernels": [
        ("gelu_always_tanh", 0, "of_a_piece", "gelu always uses the tanh approximation", {"op": "gelu"}),
        ("layer_norm_ddof", 0, "of_a_piece", "layer_norm divides by n - 1", {"op": "layer_norm"}),
        (
            *("layer_norm_without_nan", 0, "a_kernel", "layer_norm takes NaN as 0"),
            {"section": "test_covering", "op": "layer_norm", "says": "expected nan"},
        ),
        ("rms_norm_centred", 0, "of_a_piece", "rms_norm subtracts the mean", {"op": "rms_norm"}),
        (
            "rotary_pairs_swapped",
            0,
            "of_a_piece",
            "rotary pairs neighbours in place of halves, and halves in place of neighbours",
            {"op": "rotary"},
        ),
        ("linear_writes_to_x", 12, "pieces", "linear writes to its input", {"section": "test_inputs", "op": "linear"}),
        *(
            (f"linear_int8_{name}", 0, "a_kernel", f"linear with int8 weights {fault}", _INT8)
            for name, fault in (
                ("saturates", "adds up pairs of products in int16"),
                ("of_one_scale", "rounds a row by one scale"),
                ("toward_zero", "rounds toward zero"),
                ("ties_away", "rounds ties away from zero"),
            )
        ),
        ("rms_norm_in_half_precision", 9, "norms", "rms_norm squares in float16", _HALF_NORMS),
        ("encoder_layer_always_post_norm", 0, "of_a_layer", "the encoder layer ignores norm_first", _ENCODER),
        ("encoder_layer_without_mask", 0, "of_a_layer", "the encoder layer ignores the mask", _ENCODER),
        (
            *("encoder_layer_of_each_sequence", 0, "layers_with", "functions see element 0 of the batch in an encoder layer"),
            {**_ENCODER, "section": "test_functions"},
        ),
    ],
    "piece_gradients test_gradients": [
        ("gradient_at_nan", 0, "of_a_piece", "the gradient of relu at NaN is that of its result", {"op": "relu_vjp"}),
        ("negative_ids_left_out", 0, "of_a_piece", "embedding_vjp leaves ids below 0 out", {"op": "embedding_vjp"}),
    ],
    "gradients test_kernels": [
        ("gradient_cut", 6, "gradient", "gradient declared and cut off"),
        ("gradient_of_the_key_cut", 6, "gradient", "no gradient for the key"),
    ],
    "gradients test_transforms": [
        ("gradient_of_the_sink_cut", 0, "of_attention", "no gradient for the sink"),
        ("gradient_of_the_bias_cut", 0, "of_attention", "no gradient for a bias that is an array"),
        ("gradient_of_lse_cut", 0, "of_attention", "no gradient through lse"),
        ("gradient_of_wide_values_rounded", 0, "of_attention", "gradients rounded to bfloat16 with values wider than 32"),
        ("tangent_of_the_value_cut", 0, "of_attention and forward", "no forward gradient for the value", _STATES),
        ("one_value_for_all", 0, "of_attention and vmap", "vmap uses the values of the first element for all", _STATES),
        ("query_rounded_in_bfloat16", 9, "test_9", "the query rounded to bfloat16 after scaling", _HALF_QUERY),
    ],
    "int8_rows test_covering": [
        ("scale_of_the_first_head", 0, "a_kernel", "keys in int8 have the scales of the first head"),
        ("scale_of_the_first_value", 0, "a_kernel", "values in int8 have the scale of the first"),
        ("scales_of_keys_for_values", 0, "a_kernel", "values in int8 have the scales of the keys"),
        ("scales_a_step_too_small", 0, "a_kernel", "a scale is the largest number / 128, where 127 was meant"),
    ],
    "dropout test_covering": [("one_seed", 0, "a_kernel", "dropout takes every seed as 0")],
    "functions test_functions": [
        ("ignores_the_head", 11, "masks_that", "functions receive 0 for every head"),
        ("ignores_the_offset", 5, "masks_that", "functions receive the index of a query for its position"),
        ("ignores_the_batch", 0, "masks_that", "functions receive 0 for every element of the batch"),
        ("ignores_the_last_tile", 0, "masks_that", "masks are not evaluated beyond the last whole tile of 64 queries and keys"),
        ("some_for_all", 0, "map_of_tiles", "a tile of a map of which some pairs attend counts as whole"),
        ("after_the_mask", 6, "scores_that", "score functions are applied after the mask"),
        ("before_softcap", 6, "scores_that", "score functions are applied before softcap"),
    ],
    "function_gradients test_functions": [
        ("arrays_of_the_first_head", 0, "gradients_of_scores", "the arrays of a function have the gradients of the first head"),
        ("last_array_forgotten", 0, "gradients_of_scores", "the last array of a function has a gradient of 0"),
        ("slope_forgotten", 0, "gradients_of_scores", "gradients pass through a score function unchanged"),
    ],
    "edges test_covering": [(name, 0, "a_kernel", fault) for name, fault in FAULTS.items()],
    "backends test_algebra": [
        ("matmul_of_few_bits", 0, "option_alone", "matmul keeps ten bits"),
        ("sum_in_half_precision", 0, "option_alone", "sum accumulates in float16"),
        ("one_buffer", 0, "each_option_alone", "from_numpy gives arrays of one shape the same memory", {"dtype": "float64"}),
        ("integers_float", 10, "test_10", "is_floating says yes to integers", {"section": "test_promises"}),
        ("where_by_product", 7, "nobody_sees", "where() multiplies by 0 and 1", {"section": "test_gradients"}),
        ("strides_read_forwards", 12, "test_12", "from_numpy reads negative strides as positive", {"section": "test_inputs"}),
        ("numbers_through_float32", 0, "numbers_come_in", "from_numpy rounds float64 to float32", _WIDE_INPUTS),
    ],
    "imports test_imports": [
        (
            "with_the_plugin",
            None,
            "",
            "the plugin imports its array library when it is imported itself",
            {**_IMPORTS, "says": "import it inside namespace()"},
        ),
    ],
}
TABLE = plugins(
    _BLOCKS,
    pieces=_PIECES,
    piece_gradients=_PIECES,
    gradients=_GRADIENT,
    backends=_WRONG,
    dropout=_DROPOUT,
    int8_rows=_INT8_ROWS,
    functions=_FUNCTIONS,
    function_gradients=_FUNCTION_GRADIENTS,
)


def _right(module, section, name="right", **settings):
    return Plugin(name, module, "none", section, None, **settings)


RIGHT = [
    _right("scores", "test_kernels"),
    _right("scores", "test_covering", select="a_kernel"),
    _right("masks", "test_promises"),
    _right("rows", "test_promises", **_HALF),
    _right("shapes", "test_kernels", **_HALF),
    _right("edges", "test_covering", select="a_kernel", kernel={"load": "wrong_plugins.dense:right", "priority": 9}),
    _right("int8_rows", "test_covering", select="a_kernel", **_INT8_ROWS),
    _right("functions", "test_functions", **_FUNCTIONS),
    _right("functions", "test_covering", "right_on_problems", select="a_kernel", **_FUNCTIONS),
    _right("function_gradients", "test_functions", select="gradients", **_FUNCTION_GRADIENTS),
    _right("dropout", "test_covering", select="a_kernel", **_DROPOUT),
    _right("features", "test_algebra"),
    _right("inputs", "test_inputs"),
    _right("inputs", "test_covering", select="kernel_on_problems"),
    _right("inputs", "test_kernels", "right_strict", select="plain", **_STRICT),
    _right("memory", "test_memory", "blockwise"),
    _right("state", "test_threads"),
    *(
        _right("pieces", "test_kernels", op, op=op, select="of_a_piece", **_PIECES)
        for op in ("gelu", "layer_norm", "rms_norm", "rotary", "linear")
    ),
    _right("pieces", name="linear_int8", select="a_kernel", **_INT8, **_PIECES),
    _right("pieces", name="encoder_layer", select="of_a_layer", **_ENCODER),
    *(
        _right("piece_gradients", "test_gradients", op, op=op, select="of_a_piece", **_PIECES)
        for op in ("relu_vjp", "embedding_vjp")
    ),
    _right("gradients", "test_kernels", select="gradient or plain", **_GRADIENT),
    _right("gradients", "test_transforms", select="of_attention", **{**_GRADIENT, "handles": HANDLES | STATES}),
    _right("imports", "test_imports", **_WRONG),
    _right("backends", "test_promises", **_WRONG),
    _right("backends", "test_gradients", select="nobody_sees", **_WRONG),
    _right("backends", "test_namespace", "right_namespace", **_WRONG),
    _right("backends", "test_inputs", "right_numbers", dtype="float64", **_WRONG),
]
"""Plugins without a fault, built in the same way: they must pass, which shows that the suite finds the fault itself."""


def markdown():
    """Return ``TABLE`` as docs/wrong-plugins.md shows it."""
    rows = [
        f"| {p.id} | {p.fault} | {p.section.removeprefix('test_')} | {'' if p.promise is None else p.promise} |" for p in TABLE
    ]
    return "\n".join(["| plugin | its fault | found by | promise |", "| --- | --- | --- | --- |", *rows])
