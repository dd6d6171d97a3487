"""One textbook decoder (decoder.py) driven by an Arch; families/ reads checkpoints' configs and names into it.

Imports nothing here: a config can be read without torch.
"""
