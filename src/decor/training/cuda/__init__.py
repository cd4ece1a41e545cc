"""On an NVIDIA card: the kernels of noise and gossip, the channel that calls them, and steps
replayed as one graph.
"""
