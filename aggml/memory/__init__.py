"""Memory: buffers, and which tensors lie where in them, and for how long.

Here: buffer.py is a block of memory, multi_buffer.py several blocks as one, graph_memory.py the
memory of one graph. allocator/ decides which tensors share bytes, arrays.py makes host arrays,
numa.py tells which memory is near which processors, shortage.py makes the error message when there
is too little memory.
"""
