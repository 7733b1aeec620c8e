"""The names that torch, transformers and ONNX have for what caches keys and values, or could: a new one may fill a cell."""

import inspect
import pkgutil
from importlib import import_module

from needs import Library

onnx, caches = map(Library, ("onnx", "transformers.cache_utils"))
paged_attention = Library("torch.nn.attention.experimental._paged_attention")
varlen = Library("torch.nn.attention.varlen")


def public(of):
    return {name for name in vars(of) if not name.startswith("_")}


def of_torch():
    packages = import_module("torch.nn.attention"), import_module("torch.nn.attention.experimental")
    modules = {module.name for package in packages for module in pkgutil.iter_modules(package.__path__)}
    return modules | public(paged_attention.PagedAttention) | set(inspect.signature(varlen.varlen_attn).parameters)


def of_transformers():
    """Return the classes of caches, and their methods."""
    module = import_module(caches.name)
    classes = {name for name, x in vars(module).items() if inspect.isclass(x) and x.__module__ == module.__name__}
    return classes | public(caches.Cache)


def of_onnx():
    """Return the operators whose text or inputs name a cache."""
    schemas = onnx.defs.get_all_schemas()
    return {x.name for x in schemas if any("cache" in text.lower() for text in (x.doc, *(each.name for each in x.inputs)))}


NAMES = {
    "torch": (
        of_torch,
        """_fa3 _fa4 _paged_attention _registry _scaled_dot_product_attention_quantized _utils bias experimental flex_attention
        varlen assign convert_logical_block_mask erase get_mask_mod get_score_mod reserve block_table cu_seq_k cu_seq_q
        enable_gqa key max_k max_q num_splits query return_aux scale seqused_k value window_size""",
    ),
    "transformers": (
        of_transformers,
        """BaseQuantizedLayer Cache CacheLayerMixin DFlashCache DummyLayer DynamicCache DynamicIndexedLayer DynamicLayer
        DynamicSlidingWindowLayer EncoderDecoderCache Fp8QuantizedLayer HQQQuantizedLayer KVSharingDict
        LinearAttentionAndFullAttentionLayer LinearAttentionAndSlidingWindowAttentionLayer
        LinearAttentionAndStaticFullAttentionLayer LinearAttentionAndStaticSlidingWindowAttentionLayer
        LinearAttentionCacheLayerMixin LinearAttentionLayer MtpCache QuantizedCache QuantizedLayer QuantoQuantizedLayer
        SlidingWindowCache StaticCache StaticIndexedLayer StaticLayer StaticSlidingWindowLayer activate_past_recording
        batch_repeat_interleave batch_select_indices batch_size crop early_initialization get_conv_state get_mask_sizes
        get_max_length get_query_offset get_recurrent_state get_seq_length has_previous_state is_compileable is_croppable
        is_dummy is_initialized is_linear is_recording_past is_sliding offload prefetch reorder_cache reset update
        update_conv_state update_indexer update_recurrent_state""",
    ),
    "ONNX": (of_onnx, "Attention RotaryEmbedding TensorScatter"),
}
"""column -> a function that returns the names of today, and those that docs/field.md was written by."""
