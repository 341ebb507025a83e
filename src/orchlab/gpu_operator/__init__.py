"""The mock GPU Operator: what NVIDIA's does to a cluster, done to simulated nodes.

It decides each node's labels and what its device plugin registers; the simulator plays the kubelets. Its operands are real DaemonSets,
whose pods the real controllers make and KWOK runs. What it knows of a node stands on the node, so it can be restarted at any time.
"""
