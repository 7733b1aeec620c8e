"""Inputs of the tests: calls of attention, pieces and layers, random problems, ONNX test cases and bad inputs."""
