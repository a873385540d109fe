"""The settings of a tokenizer_config.json: carried out, without effect, or refused by name.

transformers reads that file for its Python class. Beside a tokenizer.json most of it says once more
what that file says. Here: the table of settings, the tokens that it adds. Not here: the special
tokens by name, the chat template (vocabularies.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from aggml.models.checkpoints.folder_vocabulary import AddedToken
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["NEUTRAL", "WITHOUT_EFFECT", "added_tokens", "check_tokenizer_config"]

#: Settings that name a special token.
NAMED: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
#: Settings that are read here or in vocabularies.py.
READ: Final = (
    "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "chat_template",
    *NAMED,
)  # fmt: skip
FLAGS: Final = ("special", "lstrip", "rstrip", "single_word", "normalized")
#: Settings that change no token of a text here, with the reason.
WITHOUT_EFFECT: Final = {
    **dict.fromkeys(
        ("tokenizer_class", "auto_map", "processor_class", "backend", "use_fast", "tokenizer_type",
         "slow_tokenizer_class", "fix_mistral_regex", "trust_remote_code", "from_slow",
         "mistral_format", "image_processor_class", "feature_extractor_class"),
        "it chooses a class of transformers",
    ),
    **dict.fromkeys(
        ("name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file", "merges_file",
         "_commit_hash", "transformers_version", "is_local", "local_files_only", "vocab_size",
         "_name_or_path", "init_inputs", "device_map", "revision", "from_pretrained", "dtype",
         "torch_dtype", "files_loaded", "model_type", "use_auth_token", "token", "cache_dir"),
        "it says where the files come from",
    ),
    **dict.fromkeys(
        ("model_max_length", "max_length", "max_len", "stride", "truncation", "truncation_side",
         "truncation_strategy", "padding", "padding_side", "pad_to_multiple_of",
         "pad_token_type_id", "pad_token_id", "max_position_embeddings",
         "max_target_length", "model_input_names", "return_token_type_ids", "tokenizer_padding",
         "tokenizer_truncation"),
        "the model's context says how long a text may be, and texts share a step without padding",
    ),
    **dict.fromkeys(
        ("add_bos_token", "add_eos_token"),
        "beside a tokenizer.json transformers leaves it to the post-processor of that file; "
        "without one it is read",
    ),
    **dict.fromkeys(
        ("legacy", "sp_model_kwargs", "use_default_system_prompt", "spaces_between_special_tokens",
         "errors", "use_legacy_template", "add_dummy_prefix_space", "full_tokenizer_file"),
        "it is for tokenizers of transformers without a tokenizer.json",
    ),
    **dict.fromkeys(
        ("clean_up_tokenization_spaces",
         "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"),
        "tokens become exactly their text",
    ),
    **dict.fromkeys(
        ("model_specific_special_tokens", "response_schema", "response_template",
         "tool_use_template", "grounded_generation_template", "chat_control_tokens",
         "default_chat_template", "verbose", "special_tokens_pattern", "token_type_ids_pattern",
         "token_type_ids_include_special_tokens", "never_split", "do_basic_tokenize",
         "keep_accents", "src_lang", "tgt_lang", "language", "task", "predict_timestamps",
         "bot_token", "eot_token", "eom_token", "image_token", "video_token", "audio_token",
         "image_token_id", "vision_bos_token", "vision_eos_token", "boi_token", "eoi_token",
         "prefix_token", "suffix_token", "middle_token", "fill_token", "suffix_first", "dropout",
         "word_delimiter_token", "extra_ids", "cls_token_type_id", "sep_token_type_id",
         "pad_token_segment_id", "generation_config", "add_generation_prompt", "inference_mode"),
        "it names tokens, or is for uses other than tokens of a text",
    ),
}  # fmt: skip
#: Settings that a tokenizer.json has itself, in its own words: it is the one that is carried out.
OF_TOKENIZER_JSON: Final = (
    "add_prefix_space", "do_lower_case", "lowercase", "strip_accents", "tokenize_chinese_chars",
    "trim_offsets", "normalize", "do_lowercase_and_remove_accent", "remove_space",
    "add_space_before_special", "max_input_chars_per_word", "byte_fallback", "wordpieces_prefix",
    "clean_text", "handle_chinese_chars", "rstrip", "lstrip",
)  # fmt: skip
#: Settings whose one value is carried out; any other is refused.
NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "split_special_tokens": (False, None),
    "sanitize_control_tokens": (False, None),
}
#: Names of tokens for other media.
_TOKEN_NAME: Final = re.compile(r"[a-z0-9_]+_tokens?(_ids?)?")
#: Settings of a vocab.txt, and their values that are carried out there.
OF_WORD_LIST: Final[Mapping[str, tuple[Any, ...]]] = {
    "do_lower_case": (True, False, None),
    "strip_accents": (None,),
    "tokenize_chinese_chars": (True, None),
    "do_basic_tokenize": (True, None),
    "never_split": (None, []),
}


def check_tokenizer_config(told: Mapping[str, Any], folder: Path) -> None:
    """Check that there is no setting that would be dropped in silence.

    Args:
        told: the contents of tokenizer_config.json.
        folder: of the model.

    Raises:
        ModelError: names the setting.
    """
    name = str(folder / "tokenizer_config.json")
    whole = (folder / "tokenizer.json").is_file()
    known = {*READ, *WITHOUT_EFFECT, *OF_TOKENIZER_JSON, *NEUTRAL}
    for key, value in told.items():
        if key not in known and not _TOKEN_NAME.fullmatch(key):
            raise ModelError(
                f"{name} has the unknown setting {key!r}, which is refused: if it changes no "
                "token, take it out"
            )
        if key in NEUTRAL and value not in NEUTRAL[key]:
            raise ModelError(
                f"{name}: {key} is {value!r}, which cannot be carried out; expected "
                f"{NEUTRAL[key][0]!r}"
            )
        if not whole and key in OF_WORD_LIST and value not in OF_WORD_LIST[key]:
            raise ModelError(
                f"{name}: {key} is {value!r}, which cannot be carried out without a "
                "tokenizer.json: save the tokenizer once more with transformers"
            )


def added_tokens(told: Mapping[str, Any], folder: Path) -> list[AddedToken]:
    """Tokens that the file adds, by id; then those that it only names, which are special.

    Raises:
        ModelError: one of them is damaged.
    """
    name = str(folder / "tokenizer_config.json")
    given = told.get("added_tokens_decoder") or {}
    if not isinstance(given, dict):
        raise ModelError(f"{name}: added_tokens_decoder is {given!r:.60}, expected an object")
    found: list[AddedToken] = []
    for key, token in given.items():
        place = f"{name}: added_tokens_decoder[{key!r}]"
        if not (isinstance(key, str) and key.isascii() and key.isdigit()):
            raise ModelError(f"{place} is no token id")
        found.append(_read_token(token, place, int(key)))
    found.sort(key=lambda x: x.id or 0)
    named = [key for key in NAMED if told.get(key) is not None]
    found += [_read_token(told[key], f"{name}: {key}", None) for key in named]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = told.get(key) or ()
        values = more.values() if isinstance(more, dict) else more
        found += [_read_token(x, f"{name}: {key}", None) for x in values if not isinstance(x, list)]
    return found


def _read_token(token: Any, place: str, i: int | None) -> AddedToken:  # noqa: ANN401
    """One token, as a text or an object."""
    if isinstance(token, str):
        return AddedToken(token, special=True, id=i)
    if not isinstance(token, dict) or not isinstance(token.get("content"), str):
        raise ModelError(f"{place} is {token!r:.60}, expected a text or an object with content")
    flags = {k: x for k, x in token.items() if k not in ("content", "__type", "id")}
    for flag, value in flags.items():
        if flag not in FLAGS:
            raise ModelError(f"{place} has the unknown setting {flag!r}, which is refused")
        if not isinstance(value, bool):
            raise ModelError(f"{place}.{flag} is {value!r:.60}, expected true or false")
    if i is None:
        flags["special"] = True
    return AddedToken(token["content"], id=i, **({"special": False} | flags))
