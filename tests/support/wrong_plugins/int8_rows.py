"""Attention to keys and values in int8: a right kernel, and wrong ones that take other scales."""

from mha_core import Int8Rows

from .dense import right as attend


def _by_scales(scales):
    """Return a kernel whose keys and values are multiplied by ``scales(key, value)``."""

    def kernel(p):
        if not isinstance(p.key, Int8Rows):
            return attend(p)
        rows = (p.key, p.value)
        wide = (x.values.astype(scale.dtype) * scale for x, scale in zip(rows, scales(*rows), strict=True))
        return attend(p.with_arrays(p.query, *wide))

    return kernel


right = _by_scales(lambda key, value: (key.scale, value.scale))
scale_of_the_first_head = _by_scales(lambda key, value: (key.scale[..., :1, :, :], value.scale))
scale_of_the_first_value = _by_scales(lambda key, value: (key.scale, value.scale[..., :1, :]))
scales_of_keys_for_values = _by_scales(lambda key, value: (key.scale, key.scale))
scales_a_step_too_small = _by_scales(lambda key, value: (key.scale * 127 / 128, value.scale * 127 / 128))
