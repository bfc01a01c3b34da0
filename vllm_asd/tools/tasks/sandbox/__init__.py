"""What runs inside: one process holds the program that a model wrote, another its tests.

The tests' process asks the program's for values, as plain data, and compares them itself. So the program
never meets the assertions, nor anything else that could tell it what passes: it can only answer questions.

Both are started by `vllm_asd.tools.tasks.isolation` without site-packages and without this project, so these
modules import the standard library and, relatively, each other.
"""
