"""Config: the values of a folder's config.json, each under one of several possible names.

Here: reading values. Not here: their names in GGUF (keys.py, architectures/).
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from aggml.models.checkpoints.settings import check_rope, check_types
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["UNREADABLE", "Config", "read_json"]

#: What code that reads a value of an unexpected form raises.
UNREADABLE: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file.

    Raises:
        ModelError: the file is no JSON object.
    """
    try:
        found = json.loads(
            path.read_text(encoding="utf-8-sig")
        )  # some begin with a byte order mark
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {str(path)!r}: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{str(path)!r} is no JSON object")
    return found


class Config:
    """The values of a config.json; for a model of text and images, those of its text part.

    Attributes:
        values: by name.
        read: the names of all values that were looked for.
        model_type, classes: the kind of model, and transformers' names of its class.

    Raises:
        ModelError: a value is of another type than it must be.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        inner = values.get("text_config")
        self.values: dict[str, Any] = (
            {**values, **inner} if isinstance(inner, dict) else dict(values)
        )
        outer = values.get("tie_word_embeddings")
        if outer is not None:  # transformers asks the whole model, not its text part
            self.values["tie_word_embeddings"] = outer
        kinds = self.values.get("layers_block_type")
        if isinstance(kinds, list):  # a list of the layers alone says how many there are
            self.values.setdefault("num_hidden_layers", len(kinds))
        check_types(self.values)
        self.read: set[str] = set()
        self.model_type: str = str(self.values.get("model_type", ""))
        self.classes: list[str] = [str(x) for x in values.get("architectures") or ()]

    def get(self, *names: str, default: Any = None) -> Any:  # noqa: ANN401 as the file has it
        """The value of the first of these names that has one, or ``default``."""
        self.read.update(names)
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        return default

    def need(self, *names: str) -> Any:  # noqa: ANN401 as the file has it
        """The value of the first of these names that has one.

        Raises:
            ModelError: none has one.
        """
        found = self.get(*names)
        if found is None:
            raise ModelError(f"config.json has no {' or '.join(names)}")
        return found

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Say which settings were looked at if they cannot be what they are used for.

        Args:
            what: is made of them, for the message.

        Raises:
            ModelError: the code within met a value of a form that it does not expect.
        """
        before, self.read = self.read, set()
        try:
            yield
        except ModelError:
            raise
        except UNREADABLE as error:
            told = ", ".join(
                f"{x} = {self.values[x]!r:.60}"
                for x in sorted(self.read)
                if self.values.get(x) is not None
            )
            raise ModelError(
                f"config.json has {told or 'no settings'}, of which {what} cannot be made: "
                f"{' '.join(str(error).split())}"
            ) from error
        finally:
            self.read |= before

    @property
    def head(self) -> int:
        """Elements of a head."""
        return int(self.get("head_dim", default=self._by_heads))

    @property
    def _by_heads(self) -> int:
        width = int(self.need("hidden_size", "n_embd", "dim"))
        return width // int(self.need("num_attention_heads", "n_head", "n_heads"))

    def rope(self, layers: str = "full_attention") -> dict[str, Any]:
        """The settings of rotary positions: "rope_theta", "factor", ...

        Newer files have all of them in ``rope_parameters``, older ones in several places.

        Args:
            layers: the type of layer, used if types of layers have different settings.

        Raises:
            ModelError: a setting that is not known, or of another type than it must be.
        """
        found = self._rope(layers)
        check_rope(found)
        return found

    def _rope(self, layers: str) -> dict[str, Any]:
        found = self.get("rope_parameters", default={})
        if layers in found:
            told = found[layers]
            if not isinstance(told, dict):
                raise ModelError(
                    f"config.json has rope_parameters of {layers} = {told!r:.60}, expected was an "
                    "object"
                )
            return dict(told)
        if found and "rope_theta" not in found and "rope_type" not in found:
            return {}  # it has settings for other types of layers only
        old = dict(self.get("rope_scaling", default={}))
        if "type" in old:
            old.setdefault("rope_type", old["type"])
        for name, value in old.items():
            if name in found and found[name] != value:
                raise ModelError(
                    f"config.json has {name} = {value!r} in rope_scaling, and {found[name]!r} in "
                    "rope_parameters"
                )
        base = self.get("rope_theta", "rotary_emb_base", "global_rope_theta")
        base = None if isinstance(base, list) else base  # see `rope_keys`
        return ({} if base is None else {"rope_theta": base}) | old | dict(found)
