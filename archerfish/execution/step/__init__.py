"""The data of one step: the state of its rows, its inputs, and the protocol of a model that runs it."""
