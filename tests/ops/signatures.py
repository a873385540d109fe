"""Parameters of the functions of ggml.h, without ``ctx``.

They are taken from the recorded calls, which name operands first and then the arguments, in the
order of ggml.h. `_OTHERS` lists the functions that no call shows, or whose operands do not come
first. Not here: what is compared with them (test_builders.py).
"""

from __future__ import annotations

from corpus_loader import op_cases

__all__ = ["PARAMETERS"]

_YARN = "n_ctx_orig freq_base freq_scale ext_factor attn_factor beta_fast beta_slow"
_VOLUME = "s0 s1 s2 p0 p1 p2 d0 d1 d2"
_BOTH = ("", "_inplace")
_OTHERS = {
    "mul_mat_id": "as_ b ids",  # named `as` in ggml, a keyword of Python
    # functions that change an existing node
    "mul_mat_set_prec": "a prec",
    "mul_mat_set_hint": "a hint",
    "soft_max_add_sinks": "a sinks",
    "flash_attn_ext_set_prec": "a prec",
    "flash_attn_ext_get_prec": "a",
    "flash_attn_ext_set_n_kv_max": "a n_kv_max",
    "prec_set_acc": "a prec",
    "prec_set_src": "a prec idx",
    "flash_attn_ext_add_sinks": "a sinks",
    "rope_set_offset": "a n_offs",
    # functions without a recorded call
    "view_tensor": "src",
    "flash_attn_back": "q k v d masked",
    **{f"map_custom1{end}": "a fun n_tasks userdata" for end in _BOTH},
    **{f"map_custom2{end}": "a b fun n_tasks userdata" for end in _BOTH},
    **{f"map_custom3{end}": "a b c fun n_tasks userdata" for end in _BOTH},
    "custom_4d": "type ne0 ne1 ne2 ne3 args n_args fun n_tasks userdata",
    "custom_inplace": "a args n_args fun n_tasks userdata",
    # functions whose recorded calls have another order
    **{f"rope_ext{end}": f"a b c n_dims mode {_YARN}" for end in (*_BOTH, "_back")},
    **{f"rope_custom{end}": f"a b n_dims mode {_YARN}" for end in _BOTH},
    **{f"rope_multi{end}": f"a b c n_dims sections mode {_YARN}" for end in (*_BOTH, "_back")},
    "im2col_back": "a b ne s0 s1 p0 p1 d0 d1 is_2D",
    "im2col_3d": f"a b IC {_VOLUME} dst_type",
    "conv_3d": f"a b IC {_VOLUME}",
}


def _recorded() -> dict[str, str]:
    """For each function the arguments of its longest call, since calls may leave operands out."""
    found: dict[str, list[str]] = {}
    for case in op_cases():
        later = {name for name in case.modify.values() if isinstance(name, str)}
        names = [value.name for value in case.inputs if value.name not in later] + list(case.args)
        if not case.steps and len(names) > len(found.get(case.op, [])):
            found[case.op] = names
    return {op: " ".join(names) for op, names in found.items()}


#: The key is the function's name without ``ggml_``.
PARAMETERS = _recorded() | _OTHERS
