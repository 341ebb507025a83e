"""The device plugin of the nodes whose kubelets are real: `python -m orchlab.device_plugin` in a pod of the DaemonSet
nvidia-device-plugin-daemonset. It registers with kubelet what the GPU Operator has decided for the node (the annotation
orchlab/gpu-inventory), hands the simulated GPUs to containers and writes on the pods which they hold.

It needs grpcio and protobuf, which nothing else in orchlab imports.
"""
