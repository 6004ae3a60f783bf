"""REINFORCE-style optimisation of language models from human feedback, as a library.

Importing this package imports nothing else: take what you need from its modules.
"""
