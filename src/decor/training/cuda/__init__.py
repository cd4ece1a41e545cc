"""On an NVIDIA GPU: kernels of noise and gossip, their channel, and steps replayed as one graph."""
