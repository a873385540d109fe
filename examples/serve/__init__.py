"""A service over HTTP with OpenAI's routes: embeddings and completions, batched continuously.

engine.py makes batches, app.py speaks HTTP, __main__.py is the command line.
"""
