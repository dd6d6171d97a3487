"""One textbook decoder (decoder.py) driven by an Arch; families/ reads checkpoints' configs and tensor names into it.

Imports nothing here, so that a config can be read without torch.
"""
