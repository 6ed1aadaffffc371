"""Facets of a method: what others ask of it besides training, in its record.

Each is an object beside the method; here are the types in which they speak. A method without one is
trained all the same, and who asks for it learns that there is none.
"""
