"""Metal kernels as C++: compiled and run on a machine without Metal, for tests."""
