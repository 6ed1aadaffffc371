"""What others ask of a method besides training it: its facets, which stand in its record.

Each is an object beside the method; here are the types in which they speak. A method without one is
trained all the same, and who asks for it is told that there is none.
"""
