"""Plugins that show that the suite judges every kernel by name, prepared calls, weights, conversions and ``parallel``."""

from .plugin import HANDLES, STATES, Plugin, plugins

OPT_IN = {"priority": -5, "opt_in": True}
"""Kernels that only ``use_kernel`` chooses."""
_NO_FEATURES = {"section": "test_promises test_inputs", "handles": frozenset()}
_OTHER_FEATURES = {"section": "test_kernels test_promises", "handles": HANDLES | STATES}
_NO_LSE = {"handles": HANDLES - {"lse"}}
_WEIGHTS = {"op": "attention_weights", "handles": HANDLES - {"lse", "value_dim"}, "kernel": OPT_IN}


def _prepared(name, fault, says):
    fields = {"load": "wrong_plugins.dense:right", "prepare": f"wrong_plugins.prepared:{name}", "opt_in": True}
    return Plugin(name, "prepared", fault, "test_prepared", 0 if says else None, name, kernel=fields, says=says)


_BLOCKS = {
    "opt_in test_promises": [
        ("reaches_masked_rows", 1, "test_1_a_value_of_nan and reaches", "0 times NaN in a row that sees no key"),
        ("stands_for_a_mask", 3, "test_3_no_finite and stands_for", "masked scores are -1e30"),
        ("out_only_with_nan", 1, "test_1_a_value_of_nan and out_only", "0 times NaN in a row, without lse", _NO_LSE),
        ("out_only", None, "out_only", "none", {"section": "test_promises test_threads", **_NO_LSE}),
        ("without_features", None, "without_features", "none", _NO_FEATURES),
        ("other_features", None, "other_features", "none", _OTHER_FEATURES),
        ("right", None, "by_kernel_right", "none", {"section": "test_promises test_threads test_determinism test_inputs"}),
        ("refusing", None, "refusing", "none", {"kernel": {**OPT_IN, "supports": lambda call: "no"}, "says": "every call: no"}),
        (
            "races",
            14,
            "test_calls_of_one_shape_do_not_mix and races",
            "rounds while another call is computed",
            {"section": "test_threads"},
        ),
    ],
    "weights test_weights": [
        ("off_by_a_ten_thousandth", 0, "covering_design and off_by", "weights are off by 0.01%"),
        ("ignores_lse", 0, "covering_design and ignores_lse", "normalised over the chosen columns"),
        ("sorts_rows", 0, "covering_design and sorts_rows", "the rows are in order"),
        ("mean_of_masked", 1, "test_1 and mean_of_masked", "equal weights for a row that sees no key"),
        ("drops_the_sink", 0, "covering_design and drops_the_sink", "the sink is ignored"),
        ("changes", 14, "covering_design and changes", "the last bit changes from call to call"),
        ("right_weights", None, "", "none", {"section": "test_kernels test_weights test_promises"}),
    ],
    "backends test_namespace": [
        ("unsigned", 0, "test_numbers_of_every_dtype and int8 and not uint8", "to_numpy reads int8 without its sign"),
        ("in_memory_order", 0, "test_views_of_every_dtype and bool", "to_numpy reads bool in the order of memory"),
        ("without_signs_of_zero", 0, "test_numbers_of_every_dtype and float32", "from_numpy loses the sign of zero"),
        ("int64_through_float64", 0, "test_numbers_of_every_dtype and int64", "from_numpy converts int64 through float64"),
    ],
    "backends test_layers": [
        ("a_row_late", 0, "test_decoder", "write leaves out a row"),
        ("over_the_first", 0, "test_decoder", "write replaces the first rows"),
    ],
    "backends test_parallel": [
        ("as_completed", 0, "test_results_come_in_order", "results come as they are completed"),
        ("in_pairs", 0, "test_results_come_in_order", "the last of an odd number of items is lost"),
        ("drops_errors", 0, "test_an_exception_reaches_the_caller", "errors are dropped"),
        ("reads_all", 0, "test_items_are_read_as_results", "all items are read before the first result"),
        ("one_at_a_time", 0, "test_nested_calls_return", "nested calls wait for each other"),
        ("right_parallel", None, "", "none"),
    ],
}
_PREPARED = [
    _prepared("of_right", "none", ""),
    _prepared("keeps_a_key", "the key of the first call", "a prepared call with other numbers than the first"),
    _prepared("keeps_its_result", "all results are one array", "a prepared call changed the result of the one before"),
    _prepared("reads_rows", "assumes contiguous keys", "a prepared call with arrays that are "),
    _prepared("for_one_thread", "right in one thread only", "another thread got other bits"),
]
BY_NAME = [*plugins(_BLOCKS, opt_in={"kernel": OPT_IN}, weights=_WEIGHTS, backends={"backend": "wrong"}), *_PREPARED]
