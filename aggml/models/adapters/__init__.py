"""Adapters: LoRA adapters and control vectors, which change a model without changing its file.

Here: their arguments (given.py), their files (files.py, peft.py, control_vectors.py), their
tensors and nodes (stacks.py), all of a model's read together (reading.py), and the products that
can take them (adaptable.py). Not here: the steps in which they are used (../decoder/step.py), who
chooses one (../text_model.py), merging one into a file (../converting.py).
"""
