"""Memory: buffers, who lies where in them, and how long.

Here: buffer.py is a block of memory, multi_buffer.py several as one, graph_memory.py the memory of
one graph, allocator/ decides who shares which bytes, arrays.py makes host arrays, numa.py tells
which memory is near which processors, shortage.py what a failure to get memory says.
"""
