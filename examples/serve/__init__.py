"""A service over HTTP as OpenAI's: embeddings and completions, batched continuously.

engine.py batches; app.py speaks HTTP; __main__.py is the command.
"""
