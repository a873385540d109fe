"""Integrations: models as other libraries have them, in the process of the caller.

langchain.py, llama_index.py, haystack.py and pydantic_ai.py have the classes for the library of
that name, which must be installed; sentences.py has `encode` as sentence-transformers has it.

Not here: what a request does (aggml.models). The classes translate messages, options and answers,
and nothing else: their awaited methods call the model's, their other methods the blocking model's.
"""
