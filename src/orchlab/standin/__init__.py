"""What runs in containers on real kubelets instead of programs that need a GPU: the operands of the GPU Operator and the labs' workloads.

One image has all of them (Dockerfile), built by orchlab.kube.standin_image; it also brings KWOK and the simulator into a kind cluster.
"""
