"""Makes tests/models/templates.json: chats as transformers renders them with templates.

Run by hand (``python -m benchmarks.make_templates``) where transformers is installed, when
tests/models/templates.py changes. Not here: the comparison (tests/models/test_templates.py).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from benchmarks.peers import module

TESTS: Final = Path(__file__).resolve().parent.parent / "tests" / "models"


def main() -> None:
    sys.path.append(str(TESTS.parent))
    from models import templates

    library, jinja2 = module("tokenizers"), module("jinja2")
    words = library.Tokenizer(library.models.BPE())
    own = module("transformers").PreTrainedTokenizerFast(tokenizer_object=words, **templates.TOKENS)
    found: dict[str, str | None] = {}
    for name, source in templates.TEMPLATES.items():
        for case, told in templates.CONVERSATIONS.items():
            given = {"add_generation_prompt": True} | told
            messages = given.pop("messages")
            try:
                text = own.apply_chat_template(
                    messages, chat_template=source, tokenize=False, **given
                )
            except jinja2.TemplateError as error:
                print(f"{name} refuses {case}: {error}")
                text = None
            found[f"{name} {case}"] = text
    (TESTS / "templates.json").write_text(json.dumps(found, indent=1) + "\n", encoding="ascii")
    print(f"{len(found)} texts")


if __name__ == "__main__":
    main()
